"""Calls with a deadline, and large answers in turns."""
