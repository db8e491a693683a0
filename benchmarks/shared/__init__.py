"""Tools of all benchmarks: host card, calibration, CPU of a process tree, rounds, statistics, CSV, plots, tables."""
