"""Batches into better weights: one learner, or many that step together."""
