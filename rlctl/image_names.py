"""Names of images, taken apart and put together: `registry/repository:tag@digest`."""

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
_REGISTRY: Final = r"(?:[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+(?::[0-9]{1,5})?|[A-Za-z0-9-]+:[0-9]{1,5}|localhost)"
_REPOSITORY: Final = r"[a-z0-9]+(?:(?:\.|__?|-+|/)[a-z0-9]+)*"
_TAG: Final = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
DIGEST: Final = r"sha256:[0-9a-f]{64}"
"""Pattern of a digest."""
_NAMED: Final = f"(?:{_REGISTRY}/)?{_REPOSITORY}"
IMAGE: Final = f"^{_NAMED}(?::{_TAG}(?:@{DIGEST})?|@{DIGEST})$"
"""Name of an image by tag, by digest, or both; of both the digest counts."""
IMAGE_BY_DIGEST: Final = f"^{_NAMED}(?::{_TAG})?@{DIGEST}$"
"""Name with a digest, for images whose tag is not resolved: a tag could be another image on every node."""
_REFERENCE: Final = re.compile(
    f"(?:(?P<registry>{_REGISTRY})/)?(?P<repository>{_REPOSITORY})(?::(?P<tag>{_TAG}))?(?:@(?P<digest>{DIGEST}))?"
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
        found = cls.try_parse(text)
        if found is None:
            raise UsageError(
                f"{text!r} is no name of an image",
                hint="as in registry.example.org/team/rlctl-actor:1.0, in small letters",
            )
        return found

    @classmethod
    def try_parse(cls, text: str) -> Reference | None:
        """Read text that may be the name of an image; None when it is not one."""
        match = _REFERENCE.fullmatch(text)
        return None if match is None else cls(**{key: value or "" for key, value in match.groupdict().items()})

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

    @property
    def by_tag(self) -> Reference:
        """The same without its digest."""
        return replace(self, digest="")

    def by_digest(self, digest: str = "") -> Reference:
        """The one that a pod takes: by digest alone, as a tag says nothing beside it.

        Args:
            digest: in place of its own.

        Raises:
            ValueError: there is none.
        """
        if not (digest or self.digest):
            raise ValueError(f"an image without a digest: {self}")
        return replace(self, tag="", digest=digest or self.digest)


def registry_of_folder(folder: str) -> str:
    """Registry of a place for images, `host[:port][/path]`; "" where it is no such place."""
    inside = Reference.try_parse(f"{folder}/x")
    return "" if inside is None else inside.registry


def loopback(registry: str) -> bool:
    """A registry, or the host of one, is on this machine, where it may speak plain HTTP."""
    name = registry.partition("]")[0].removeprefix("[")
    if name.count(":") == 1:  # two: an IPv6 address
        name = name.partition(":")[0]
    try:
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False


def host(registry: str) -> str:
    """Host and port that a registry is asked at."""
    return HOSTS.get(registry, registry)
