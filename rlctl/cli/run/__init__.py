"""A run as verbs handle it: chosen, prepared from a spec, applied, awaited."""
