"""Networks and action distributions."""
