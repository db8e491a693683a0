"""Builders, which make images or a folder of a commit: one file each, and a line in `core.wiring.artifact_builder`."""
