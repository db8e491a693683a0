"""Changes of a run: up, down, scale, rollback, and what differs from what is wanted."""
