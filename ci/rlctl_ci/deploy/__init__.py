"""Redeploys a run, and watches whether it is the better for it. In a process of its own: see `child`."""
