"""Access to a run on a cluster: its manager's control API, its pages, its logs."""
