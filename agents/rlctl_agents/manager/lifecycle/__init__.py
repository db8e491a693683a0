"""Phases of a run: running, saving, telling, over; finished, and running again when more is asked of it."""
