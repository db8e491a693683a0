"""The end of a run: stop conditions, the last generation, and what stays of a manager afterwards."""
