"""Registries by the OCI distribution API: names, tags, sizes, uploads, artifacts beside an image."""
