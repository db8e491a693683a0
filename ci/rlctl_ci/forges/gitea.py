"""Gitea and Forgejo: bare hexadecimal HMAC-SHA256 over the raw body. https://docs.gitea.com/usage/webhooks"""

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
    there,
)
from rlctl_ci.store.records import Push


def _of(headers: Headers, what: bytes) -> bytes | None:
    """Forgejo's own header; Gitea's only where Forgejo's is not there at all: a second one rescues no bad first."""
    forgejo = b"x-forgejo-" + what
    return only(headers, forgejo if there(headers, forgejo) else b"x-gitea-" + what)


class Gitea:
    """A `Forge`."""

    def verify(self, headers: Headers, body: bytes, secrets: Iterable[bytes], now: float) -> bool:
        given = _of(headers, b"signature")
        return given is not None and any_equal([hex_hmac(secret, body) for secret in secrets], given)

    def read(self, headers: Headers, body: bytes) -> Event:
        name = text((_of(headers, b"event") or b"").decode("ascii", "replace"), 50)
        delivery = delivery_of(headers, (b"x-forgejo-delivery", b"x-gitea-delivery"), body)
        if not name:
            raise Malformed("no X-Gitea-Event")
        if name != "push":
            return Event(delivery, name, why=f"event {name}")
        told = document(body)
        return push_event(
            delivery, name, told.get("ref"), told.get("after"),
            author=at(told, "head_commit", "author", "name") or at(told, "pusher", "login"),
            title=at(told, "head_commit", "message"),
        )  # fmt: skip

    def sign(self, body: bytes, secret: bytes, *, delivery: str, now: float) -> list[tuple[str, str]]:
        return [
            ("X-Gitea-Event", "push"),
            ("X-Gitea-Delivery", delivery),
            ("X-Gitea-Signature", hex_hmac(secret, body).decode()),
        ]

    def example(self, push: Push) -> dict[str, Any]:
        commit = {"message": push.title, "author": {"name": push.author}}
        return {"ref": push.ref, "after": push.sha, "head_commit": commit, "pusher": {"login": push.author}}
