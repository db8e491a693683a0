"""Gitea and Forgejo: bare hexadecimal HMAC-SHA256 over the raw body. https://docs.gitea.com/usage/webhooks"""

from __future__ import annotations

from typing import ClassVar

from rlctl_ci.forges.base import Headers, only, there
from rlctl_ci.forges.github import GitHub


class Gitea(GitHub):
    """`Forge` of Gitea and Forgejo."""

    event: ClassVar = "X-Gitea-Event"
    delivery: ClassVar = "X-Gitea-Delivery"
    signature: ClassVar = "X-Gitea-Signature"
    prefix: ClassVar = ""
    pusher: ClassVar = "login"

    def given(self, headers: Headers, name: str) -> bytes | None:
        """Value of Forgejo's header; of Gitea's only where Forgejo's is missing: a good one excuses no bad one."""
        forgejo = _forgejo(name)
        return only(headers, forgejo if there(headers, forgejo) else name.lower().encode())

    def deliveries(self) -> tuple[bytes, ...]:
        return (_forgejo(self.delivery), *super().deliveries())


def _forgejo(name: str) -> bytes:
    return name.replace("Gitea", "Forgejo").lower().encode()
