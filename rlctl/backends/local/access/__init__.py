"""Read access to a run on this machine: its logs, its pages, its processes."""
