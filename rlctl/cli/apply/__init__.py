"""Changes of a run: tried, checked, sent to its target, and followed until it is ready or over."""
