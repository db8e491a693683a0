"""A run on a cluster from outside: its manager's control API, its pages, its logs."""
