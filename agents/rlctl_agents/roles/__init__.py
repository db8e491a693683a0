"""The role processes: one `main` each, which wires parts together and does no arithmetic."""
