"""Limits of requests: hosts and origins, connections, rates, sources, answers that go on."""
