"""Processes of a run: supervisord, its event listener, restarts, causes of death."""
