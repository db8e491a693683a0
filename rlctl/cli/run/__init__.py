"""A run as verbs handle it: which one, from which spec, applied, awaited."""
