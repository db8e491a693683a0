"""Matches and evaluations: who plays, how often, and what came of it."""
