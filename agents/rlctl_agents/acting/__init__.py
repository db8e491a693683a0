"""Policies that act in environments, and the episodes that come of it."""
