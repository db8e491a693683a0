"""Backends: a target's way from documents to processes. One package per target, imported only
when used; what they share lies beside them."""
