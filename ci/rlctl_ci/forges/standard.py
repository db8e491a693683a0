"""Standard Webhooks: HMAC-SHA256 over id, time and body, for in-house systems. https://www.standardwebhooks.com"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
from collections.abc import Iterable
from typing import Any, Final

from rlctl_ci.forges.base import (
    Event,
    Headers,
    any_equal,
    at,
    delivery_of,
    document,
    only,
    push_event,
    text,
)
from rlctl_ci.store.records import Push

TOLERANCE_S: Final = 300.0
PREFIX: Final = b"whsec_"
_MOST_SIGNATURES: Final = 10


def signature(secret: bytes, identity: bytes, timestamp: bytes, body: bytes) -> bytes:
    """Signature `v1,<base64>` of a webhook.

    A secret is base64 behind `whsec_`, with or without the `=` at its end, or else taken as it is.
    """
    key = secret
    if secret.startswith(PREFIX):
        coded = secret.removeprefix(PREFIX).rstrip(b"=")
        with contextlib.suppress(binascii.Error):
            key = base64.b64decode(coded + b"=" * (-len(coded) % 4), validate=True)
    digest = hmac.new(key, identity + b"." + timestamp + b"." + body, hashlib.sha256).digest()
    return b"v1," + base64.b64encode(digest)


def verified(headers: Headers, body: bytes, secrets: Iterable[bytes], now: float) -> bool:
    """Whether one of the signatures is by one of the secrets, and the time is within five minutes of `now`."""
    identity, timestamp = only(headers, b"webhook-id"), only(headers, b"webhook-timestamp")
    given = only(headers, b"webhook-signature")
    if identity is None or timestamp is None or given is None or not identity or b"." in identity:
        return False
    if not timestamp.isdigit() or len(timestamp) > 12 or abs(int(timestamp) - now) > TOLERANCE_S:
        return False
    wanted = [signature(secret, identity, timestamp, body) for secret in secrets]
    found = False
    for one in given.split(b" ")[:_MOST_SIGNATURES]:
        found |= any_equal(wanted, one)
    return found


class Standard:
    """`Forge` of in-house systems. The body: `{"type": "push", "data": {"ref", "sha", "author", "title"}}`."""

    def verify(self, headers: Headers, body: bytes, secrets: Iterable[bytes], now: float) -> bool:
        return verified(headers, body, secrets, now)

    def read(self, headers: Headers, body: bytes) -> Event:
        delivery = delivery_of(headers, (b"webhook-id",), body)
        told = document(body)
        name = text(told.get("type"), 50)
        if name != "push":
            return Event(delivery, name or "-", why=f"event {name or '-'}")
        data = told.get("data")
        return push_event(
            delivery, name, at(data, "ref"), at(data, "sha"), author=at(data, "author"), title=at(data, "title")
        )  # fmt: skip

    def sign(self, body: bytes, secret: bytes, *, delivery: str, now: float) -> list[tuple[str, str]]:
        stamp = str(int(now)).encode()
        return [
            ("webhook-id", delivery),
            ("webhook-timestamp", stamp.decode()),
            ("webhook-signature", signature(secret, delivery.encode(), stamp, body).decode()),
        ]

    def example(self, push: Push) -> dict[str, Any]:
        data = {"ref": push.ref, "sha": push.sha, "author": push.author, "title": push.title}
        return {"type": "push", "data": data}
