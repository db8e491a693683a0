"""The images of a cluster: what is in them, who builds and pushes them. Programs are started in `programs` alone."""
