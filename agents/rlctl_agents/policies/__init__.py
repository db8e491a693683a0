"""Stored policies outside of a run: in Python, in whole episodes, as exported graphs."""
