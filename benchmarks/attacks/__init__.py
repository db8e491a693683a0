"""Attacks on what listens, run again on loopback against the real thing: whether each defence holds, and how."""
