"""Acting of policies in environments, and the episodes that result."""
