"""Matches and evaluations: quotas, their cadence and their results."""
