"""Processes of a run as its objects show them, and why one does not run."""
