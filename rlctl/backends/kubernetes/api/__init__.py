"""API server: calls, retries, refusals in words, watches, port-forwards."""
