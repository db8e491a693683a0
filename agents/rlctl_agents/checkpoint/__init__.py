"""Immutable parts of generations on a volume."""
