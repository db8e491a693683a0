"""Names of images, taken apart and put together: `registry/repository:tag@digest`."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Final

from rlctl.errors import UsageError

LOCAL: Final = "localhost"
"""Registry name of an image that exists on this machine only."""
HUB: Final = "docker.io"
HOSTS: Final = {HUB: "registry-1.docker.io"}
"""Registry -> host that serves its API, where the two differ."""
_REGISTRY: Final = r"(?:[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+(?::[0-9]{1,5})?|[A-Za-z0-9-]+:[0-9]{1,5}|localhost)"
_REPOSITORY: Final = r"[a-z0-9]+(?:(?:\.|__?|-+|/)[a-z0-9]+)*"
_TAG: Final = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
DIGEST: Final = r"sha256:[0-9a-f]{64}"
"""Pattern of a digest."""
_NAMED: Final = f"(?:{_REGISTRY}/)?{_REPOSITORY}"
IMAGE: Final = f"^{_NAMED}(?::{_TAG}(?:@{DIGEST})?|@{DIGEST})$"
"""Pattern of an image name with a tag, a digest or both; the digest takes precedence."""
IMAGE_BY_DIGEST: Final = f"^{_NAMED}(?::{_TAG})?@{DIGEST}$"
"""Pattern of a name with a digest, for images whose tag is not resolved: nodes may resolve a tag differently."""
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
            UsageError: the text is no name of an image.
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
        """Whether the image belongs to a registry that can be queried."""
        return self.registry not in ("", LOCAL)

    @property
    def asked(self) -> Reference:
        """Fully qualified name: on Docker Hub where no registry is named, as every node assumes."""
        registry = self.registry or HUB
        folder = "library/" if registry == HUB and "/" not in self.repository else ""
        return replace(self, registry=registry, repository=f"{folder}{self.repository}")

    @property
    def by_tag(self) -> Reference:
        """The reference without its digest."""
        return replace(self, digest="")

    def by_digest(self, digest: str = "") -> Reference:
        """The reference by digest alone, as a pod uses it: a tag beside a digest is ignored.

        Args:
            digest: replaces that of the reference.

        Raises:
            ValueError: there is no digest.
        """
        if not (digest or self.digest):
            raise ValueError(f"an image without a digest: {self}")
        return replace(self, tag="", digest=digest or self.digest)


def registry_of_folder(folder: str) -> str:
    """Registry of an image repository's prefix `host[:port][/path]`; "" when the text is no such prefix."""
    inside = Reference.try_parse(f"{folder}/x")
    return "" if inside is None else inside.registry


def loopback(registry: str) -> bool:
    """Whether a registry, or its host, is on this machine, where plain HTTP is allowed."""
    name = registry.partition("]")[0].removeprefix("[")
    if name.count(":") == 1:  # two: an IPv6 address
        name = name.partition(":")[0]
    try:
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False


def host(registry: str) -> str:
    """Host and port that serve a registry's API."""
    return HOSTS.get(registry, registry)
