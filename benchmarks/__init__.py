"""Measurements, each one command: `python -m benchmarks NAME`. docs/performance.md has what they found."""
