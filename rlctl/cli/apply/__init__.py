"""Changes of a run: checked, sent to its target, and followed until it is ready or over."""
