"""buildah: no daemon, and with BUILDAH_ISOLATION=chroot no more rights than a container has."""

from __future__ import annotations

from pathlib import Path

from rlctl_ci.builders.program import Look, Program


def make(home: Path, look: Look = lambda _: None) -> Program:
    """A `Maker`."""
    return Program("buildah", home, look)
