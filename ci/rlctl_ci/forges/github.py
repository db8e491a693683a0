"""GitHub: HMAC-SHA256 over the raw body, no time in it. https://docs.github.com/en/webhooks"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from rlctl_ci.forges.base import (
    Event,
    Headers,
    Malformed,
    any_equal,
    at,
    delivery_of,
    document,
    hex_hmac,
    only,
    push_event,
    text,
)
from rlctl_ci.store.records import Push


class GitHub:
    """`Forge` of GitHub."""

    event: ClassVar = "X-GitHub-Event"
    delivery: ClassVar = "X-GitHub-Delivery"
    signature: ClassVar = "X-Hub-Signature-256"
    prefix: ClassVar = "sha256="
    """Prefix of a signature."""
    pusher: ClassVar = "name"
    """Key of the pusher's name."""

    def given(self, headers: Headers, name: str) -> bytes | None:
        """Value of one of these headers; None when it is missing or comes more than once."""
        return only(headers, name.lower().encode())

    def verify(self, headers: Headers, body: bytes, secrets: Iterable[bytes], now: float) -> bool:
        given = self.given(headers, self.signature)
        return given is not None and any_equal([self._signed(secret, body).encode() for secret in secrets], given)

    def read(self, headers: Headers, body: bytes) -> Event:
        name = text((self.given(headers, self.event) or b"").decode("ascii", "replace"), 50)
        delivery = delivery_of(headers, self.deliveries(), body)
        if not name:
            raise Malformed(f"no {self.event}")
        if name != "push":
            return Event(delivery, name, why=f"event {name}")
        told = document(body)
        return push_event(
            delivery, name, told.get("ref"), told.get("after"),
            author=at(told, "head_commit", "author", "name") or at(told, "pusher", self.pusher),
            title=at(told, "head_commit", "message"),
        )  # fmt: skip

    def deliveries(self) -> tuple[bytes, ...]:
        """Headers with the number of a delivery."""
        return (self.delivery.lower().encode(),)

    def sign(self, body: bytes, secret: bytes, *, delivery: str, now: float) -> list[tuple[str, str]]:
        return [(self.event, "push"), (self.delivery, delivery), (self.signature, self._signed(secret, body))]

    def example(self, push: Push) -> dict[str, Any]:
        commit = {"message": push.title, "author": {"name": push.author}}
        return {"ref": push.ref, "after": push.sha, "head_commit": commit, "pusher": {self.pusher: push.author}}

    def _signed(self, secret: bytes, body: bytes) -> str:
        return f"{self.prefix}{hex_hmac(secret, body).decode()}"
