"""Causes for which a pod does not run, or was never made, in plain words: pure functions over the API server's objects.

One module for each place where things go wrong; each answers with a Cause, or None when it has nothing to say.
"""
