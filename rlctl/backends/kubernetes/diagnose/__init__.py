"""Processes of a run by its objects, and the causes for which one does not run."""
