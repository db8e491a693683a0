"""How throughput grows with actors, beside what one process can do."""
