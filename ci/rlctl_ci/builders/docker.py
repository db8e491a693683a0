"""docker: on a machine of its own; never with the socket of a cluster's node."""

from __future__ import annotations

from pathlib import Path

from rlctl_ci.builders.program import Look, Program


def make(home: Path, look: Look = lambda _: None) -> Program:
    """A `Maker`."""
    return Program("docker", home, look)
