"""What every benchmark needs: host card, calibration, CPU of a process tree, rounds, statistics, CSV, plots, tables."""
