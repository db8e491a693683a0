"""Runs by name: the index of those that were started from this machine, and names of their models. No pydantic."""
