"""Logs of all processes of a run, kept on its volume and searched there."""
