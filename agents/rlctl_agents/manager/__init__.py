"""The manager of a run: membership, books, evaluation, checkpoints, status. Imports no torch."""
