"""SQLite store on a local disk: the only package that knows its tables. What is acknowledged is stored and synced."""
