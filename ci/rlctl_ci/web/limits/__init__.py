"""Limits of requests: hosts and origins, connections, rates, sources, streams."""
