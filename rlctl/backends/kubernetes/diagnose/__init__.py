"""Processes of a run as its objects show them, and the causes for which one does not run."""
