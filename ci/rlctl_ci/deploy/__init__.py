"""Redeployment of a run, and the watch that decides whether it is kept. In a process of its own: see `child`."""
