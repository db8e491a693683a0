"""Books of a run: the ledger of steps, counters of all processes, and statistics of their episodes."""
