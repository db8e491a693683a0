"""Trackers of a run: TensorBoard, and beside it what the spec names, one module each."""
