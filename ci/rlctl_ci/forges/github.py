"""GitHub: HMAC-SHA256 over the raw body, no time in it. https://docs.github.com/en/webhooks"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

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
    """A `Forge`."""

    def verify(self, headers: Headers, body: bytes, secrets: Iterable[bytes], now: float) -> bool:
        given = only(headers, b"x-hub-signature-256")
        return given is not None and any_equal([b"sha256=" + hex_hmac(secret, body) for secret in secrets], given)

    def read(self, headers: Headers, body: bytes) -> Event:
        name = text((only(headers, b"x-github-event") or b"").decode("ascii", "replace"), 50)
        delivery = delivery_of(headers, (b"x-github-delivery",), body)
        if not name:
            raise Malformed("no X-GitHub-Event")
        if name != "push":
            return Event(delivery, name, why=f"event {name}")
        told = document(body)
        return push_event(
            delivery, name, told.get("ref"), told.get("after"),
            author=at(told, "head_commit", "author", "name") or at(told, "pusher", "name"),
            title=at(told, "head_commit", "message"),
        )  # fmt: skip

    def sign(self, body: bytes, secret: bytes, *, delivery: str, now: float) -> list[tuple[str, str]]:
        return [
            ("X-GitHub-Event", "push"),
            ("X-GitHub-Delivery", delivery),
            ("X-Hub-Signature-256", f"sha256={hex_hmac(secret, body).decode()}"),
        ]

    def example(self, push: Push) -> dict[str, Any]:
        commit = {"message": push.title, "author": {"name": push.author}}
        return {"ref": push.ref, "after": push.sha, "head_commit": commit, "pusher": {"name": push.author}}
