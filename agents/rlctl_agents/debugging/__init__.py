"""A run in one process and one thread, for debuggers."""
