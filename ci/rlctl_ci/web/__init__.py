"""The HTTP surface. Nothing of a request is looked at before its host, its origin and its size."""
