"""Why a pod does not run, or was never made, in plain words: pure functions over objects as the API server gives them.

One module for each place where things go wrong; each answers with a Cause, or None when it has nothing to say.
"""
