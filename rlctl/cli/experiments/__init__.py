"""Experiments: sweeps of many runs, and the comparison of runs, swept or not."""
