"""Policies acting in environments, and the episodes that result."""
