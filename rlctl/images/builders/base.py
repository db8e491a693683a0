"""Contract of a builder, and the errors of its failures."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, Protocol

from rlctl.errors import BackendUnreachable, WorkloadFailed
from rlctl.image_names import Reference

Name = Literal["core", "actor", "learner", "ci"]
NAMES: Final[tuple[Name, ...]] = ("core", "actor", "learner")
"""Names of a run's images, as its spec has them; `ci` is that of the service which redeploys runs."""
OVERLAY_MARK: Final = "# Written by `rlctl image push`."
"""Beginning of an overlay file, which tells it from the user's own files."""
LAST_LINES: Final = 15
"""Last lines of a failed program that its error shows."""

_LOGIN = re.compile(r"unauthori[sz]ed|denied|authentication|no basic auth|forbidden|\b40[13]\b", re.IGNORECASE)
_PLAIN = re.compile(r"server gave HTTP response to HTTPS client|first record does not look like a TLS", re.IGNORECASE)
_CERTIFICATE = re.compile(r"x509|certificate", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Ended:
    """Result of a program that has ended."""

    code: int
    lines: tuple[str, ...]  # its last output, both streams in order


class Run(Protocol):
    """Starts a program and waits for it."""

    def __call__(self, argv: Sequence[str], say: Callable[[str], object] | None = None) -> Ended:
        """Run a program to its end.

        Args:
            argv: program and arguments; never go through a shell.
            say: called with every line of output.

        Raises:
            BackendUnreachable: it cannot be started.
        """


@dataclass(frozen=True, slots=True)
class Build:
    """One image to be built, in the same terms for every builder."""

    tag: str  # its full name: registry/repository:tag
    context: Path
    file: Path
    target: str | None = None
    args: Mapping[str, str] = field(default_factory=dict)
    volumes: tuple[str, ...] = ()  # HOST:CONTAINER[:ro], for as long as it builds
    network: str | None = None  # as the builder calls it: host, none
    verify: bool = True  # certificates of registries that a base comes from


class Builder(Protocol):
    """buildah, podman or docker. Names are given in full, with registry and tag."""

    name: str

    def refusal(self) -> str:
        """Reason why a builder cannot be used here although its program is there; "" when it can."""

    def build(self, build: Build, say: Callable[[str], object] | None = None) -> str:
        """Build and tag an image; unchanged layers are cached.

        Returns:
            The digest of its configuration, `sha256:...`.

        Raises:
            BuildFailed: a step failed; its last lines are in `details`.
            UsageError: this builder cannot do what is asked.
        """

    def find(self, tag: str) -> str | None:
        """Digest of the configuration of an image on this machine; None if it is not here."""

    def push(self, tag: str, *, verify: bool, say: Callable[[str], object] | None = None) -> str:
        """Push an image under its own name; layers that the registry has are not sent again.

        Returns:
            The digest that a cluster pulls it by, `sha256:...`.

        Raises:
            PushFailed: the registry does not answer, or refuses.
        """


class BuildFailed(WorkloadFailed):
    """A step of a build failed."""

    def __init__(self, builder: str, image: str, ended: Ended) -> None:
        super().__init__(f"{builder} could not build {image} (exit {ended.code})", objects=(image,))
        self.details = _last(ended)


class PushFailed(BackendUnreachable):
    """A registry does not answer, or refuses."""

    def __init__(self, builder: str, image: str, ended: Ended) -> None:
        registry = Reference.parse(image).asked.registry
        self.details = _last(ended)
        said = "\n".join(self.details)
        if _PLAIN.search(said):
            hint = f"{registry} speaks plain HTTP: --no-tls-verify"
        elif _CERTIFICATE.search(said):
            hint = f"the certificate of {registry} is not trusted here: install its authority, or --no-tls-verify"
        elif _LOGIN.search(said):
            hint = f"{builder} login {registry}"
        else:
            hint = "check --registry and the network"
        super().__init__(f"{builder} could not push {image} (exit {ended.code})", hint=hint, objects=(image,))


def _last(ended: Ended) -> tuple[str, ...]:
    return tuple(line for line in ended.lines if line.strip())[-LAST_LINES:]
