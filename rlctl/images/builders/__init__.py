"""Builders of images: one file each, behind one contract."""
