"""The status of a run: its figures, its bottleneck, its problems."""
