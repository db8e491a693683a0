"""Stored models of a run: their list, and the copy of one in a folder."""
