"""Builders: a commit becomes images or a folder, one file each. One more is a file, and a line in `hands.maker`."""
