"""Preflight checks: faults that can be known before anything is sent."""
