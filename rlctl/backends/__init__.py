"""Backends: a target's way from documents to processes. One module per target, imported only when used."""
