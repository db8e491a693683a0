"""What is wrong with a spec, or worth a second look, in words."""
