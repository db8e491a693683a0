"""rlctl: one spec file runs a distributed reinforcement-learning training, on one machine or on a cluster."""

__version__ = "0.2.0"
