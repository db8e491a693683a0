"""Stored policies outside of a run: in Python, and in whole episodes."""
