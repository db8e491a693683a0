"""A run as verbs find it: chosen, its spec prepared, what is known of it."""
