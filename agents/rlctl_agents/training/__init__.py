"""Updates of weights from batches: by one learner, or by many that step together."""
