"""Changes of a run: up, down, scale, rollback, and the differences from what is wanted."""
