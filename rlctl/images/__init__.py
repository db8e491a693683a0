"""The images of a cluster: their content, their builders, their push. Programs are started in `programs` alone."""
