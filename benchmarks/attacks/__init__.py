"""Attacks on processes that listen, run again on loopback: whether each defence holds, in figures."""
