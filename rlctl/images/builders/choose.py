"""Choice of the builder: the requested one, else the first that is installed and can be used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from rlctl.errors import BackendUnreachable
from rlctl.images.builders.base import Builder, Run
from rlctl.images.builders.buildah import Buildah, Podman
from rlctl.images.builders.docker import Docker

BUILDERS: Final[dict[str, Callable[[Run, Path], Builder]]] = {"buildah": Buildah, "podman": Podman, "docker": Docker}
"""Builders in order of preference: those without a daemon first. A further builder is one line here."""


def choose(wanted: str | None, *, which: Callable[[str], str | None], run: Run, scratch: Path) -> Builder:
    """A builder that can be used.

    Args:
        wanted: a name of BUILDERS; None: any.
        which: path of a program, or None, as shutil.which.
        run: starts programs.
        scratch: an empty folder of the builder's own.

    Raises:
        BackendUnreachable: none is there, or none of those can be used.
    """
    refusals = []
    for name in [wanted] if wanted else BUILDERS:
        if which(name) is None:
            refusals.append(f"{name}: not on PATH")
            continue
        builder = BUILDERS[name](run, scratch)
        refusal = builder.refusal()
        if not refusal:
            return builder
        refusals.append(f"{name}: {refusal}")
    raise BackendUnreachable(
        f"{wanted} cannot be used" if wanted else "no builder of images can be used here",
        hint=f"{'; '.join(refusals)}; on Debian and Ubuntu: apt-get install buildah",
        objects=tuple([wanted] if wanted else BUILDERS),
    )
