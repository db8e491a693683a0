"""Changes of a run: start, convergence and graceful stop of its processes."""
