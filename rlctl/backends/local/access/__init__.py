"""A run on this machine from outside: its logs, its pages, its processes."""
