"""SQLite on a local disk: the only place that knows its tables. What is acknowledged is in here, and synced."""
