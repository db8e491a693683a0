"""Names of images, taken apart: `registry/repository:tag@digest`."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Final

from rlctl.errors import UsageError

LOCAL: Final = "localhost"
"""In place of a registry: an image that never left this machine."""
HUB: Final = "docker.io"
HOSTS: Final = {HUB: "registry-1.docker.io"}
"""Registry -> host that is asked, where the two differ."""
_REFERENCE = re.compile(
    r"(?:(?P<registry>[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+(?::[0-9]{1,5})?|[A-Za-z0-9-]+:[0-9]{1,5}|localhost)/)?"
    r"(?P<repository>[a-z0-9]+(?:(?:\.|__?|-+|/)[a-z0-9]+)*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?"
    r"(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)


@dataclass(frozen=True, slots=True)
class Reference:
    """The name of an image."""

    registry: str  # "" where each builder has its own default
    repository: str
    tag: str = ""
    digest: str = ""

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Read the name of an image.

        Raises:
            UsageError: it is not one.
        """
        match = _REFERENCE.fullmatch(text)
        if match is None:
            raise UsageError(
                f"{text!r} is no name of an image",
                hint="as in registry.example.org/team/rlctl-actor:1.0, in small letters",
            )
        return cls(**{key: value or "" for key, value in match.groupdict().items()})

    def __str__(self) -> str:
        return (
            (f"{self.registry}/" if self.registry else "")
            + self.repository
            + (f":{self.tag}" if self.tag else "")
            + (f"@{self.digest}" if self.digest else "")
        )

    @property
    def remote(self) -> bool:
        """It names a registry that can be asked."""
        return self.registry not in ("", LOCAL)

    @property
    def asked(self) -> Reference:
        """As a registry is asked for it: what names none lies on Docker Hub, as every node takes it."""
        registry = self.registry or HUB
        folder = "library/" if registry == HUB and "/" not in self.repository else ""
        return replace(self, registry=registry, repository=f"{folder}{self.repository}")

    def by_digest(self, digest: str) -> Reference:
        """The one that a pod takes: by digest alone."""
        return replace(self, tag="", digest=digest)


def loopback(registry: str) -> bool:
    """A registry is on this machine, where it may speak plain HTTP."""
    name = registry.rpartition(":")[0] or registry
    try:
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False


def host(registry: str) -> str:
    """Host and port that a registry is asked at."""
    return HOSTS.get(registry, registry)
