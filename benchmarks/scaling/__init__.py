"""Growth of throughput with actors, beside the throughput of one process."""
