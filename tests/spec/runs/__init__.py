"""Index of runs, and names of models."""
