"""GitLab: a secret in clear, or a signing token (`whsec_...`) that makes it a Standard Webhook.

https://docs.gitlab.com/user/project/integrations/webhooks/
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rlctl_ci.forges import standard
from rlctl_ci.forges.base import (
    Event,
    Headers,
    Malformed,
    any_equal,
    at,
    delivery_of,
    document,
    only,
    push_event,
    text,
)
from rlctl_ci.store.records import Push


class GitLab:
    """`Forge` of GitLab. A secret that begins with whsec_ is a signing token and never compared in clear."""

    def verify(self, headers: Headers, body: bytes, secrets: Iterable[bytes], now: float) -> bool:
        known = list(secrets)
        signing = [secret for secret in known if secret.startswith(standard.PREFIX)]
        plain = [secret for secret in known if not secret.startswith(standard.PREFIX)]
        if signing and standard.verified(headers, body, signing, now):
            return True
        given = only(headers, b"x-gitlab-token")
        return bool(plain) and given is not None and any_equal(plain, given)

    def read(self, headers: Headers, body: bytes) -> Event:
        name = text((only(headers, b"x-gitlab-event") or b"").decode("ascii", "replace"), 50)
        delivery = delivery_of(headers, (b"idempotency-key", b"webhook-id", b"x-gitlab-event-uuid"), body)
        if not name:
            raise Malformed("no X-Gitlab-Event")
        if name != "Push Hook":
            return Event(delivery, name, why=f"event {name}")
        told = document(body)
        commits = told.get("commits")
        last = commits[-1] if isinstance(commits, list) and commits else None
        return push_event(
            delivery, name, told.get("ref"), told.get("after"),
            author=told.get("user_name") or at(last, "author", "name"),
            title=at(last, "message"),
        )  # fmt: skip

    def sign(self, body: bytes, secret: bytes, *, delivery: str, now: float) -> list[tuple[str, str]]:
        said = [("X-Gitlab-Event", "Push Hook"), ("Idempotency-Key", delivery)]
        if secret.startswith(standard.PREFIX):
            return said + standard.Standard().sign(body, secret, delivery=delivery, now=now)
        return [*said, ("X-Gitlab-Token", secret.decode("utf-8", "replace"))]

    def example(self, push: Push) -> dict[str, Any]:
        return {
            "object_kind": "push", "ref": push.ref, "after": push.sha, "user_name": push.author,
            "commits": [{"message": push.title, "author": {"name": push.author}}],
        }  # fmt: skip
