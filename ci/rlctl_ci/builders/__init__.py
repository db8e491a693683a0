"""Builders, which make images or a folder of a commit: one file each, and a line in `rlctl_ci.core.wiring.maker`."""
