"""Causes for which a pod does not run, or was never created, in words: pure functions over the API server's objects.

One module for each place where things go wrong; each returns a Cause, or None when it has nothing to say.
"""
