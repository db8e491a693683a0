"""Base of all forges: headers as they came, bodies that are not trusted yet, and text for people."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from rlctl_ci.git.refs import HEADS, fault, is_sha, is_zero
from rlctl_ci.store.records import Push

Headers = Sequence[tuple[bytes, bytes]]
"""Names in small letters, in the order in which they came; a name may come twice."""
MAX_DEPTH: Final = 64
MAX_TEXT: Final = 200
_DELIVERY = re.compile(rb"[!-~]{1,200}")


class Malformed(ValueError):
    """A signed body that is not what the forge documents."""


@dataclass(frozen=True, slots=True)
class Event:
    """A verified delivery."""

    delivery: str  # equal when it is redelivered
    name: str  # as the forge calls it
    push: Push | None = None  # None: of no interest
    why: str = ""  # reason for which it is of no interest


class Forge(Protocol):
    """Signature scheme and payload format of one kind of forge."""

    def verify(self, headers: Headers, body: bytes, secrets: Iterable[bytes], now: float) -> bool:
        """Whether one of the secrets has signed these bytes. Never raises."""

    def read(self, headers: Headers, body: bytes) -> Event:
        """Parse a body.

        Raises:
            Malformed: it is not what the forge documents.
        """

    def sign(self, body: bytes, secret: bytes, *, delivery: str, now: float) -> list[tuple[str, str]]:
        """Headers of a signed push, for `rlctl ci test-hook`."""

    def example(self, push: Push) -> dict[str, Any]:
        """Body of such a push."""


def only(headers: Headers, name: bytes) -> bytes | None:
    """The value of a header; None when it is missing or comes more than once."""
    found = [value for key, value in headers if key == name]
    return found[0] if len(found) == 1 else None


def there(headers: Headers, name: bytes) -> bool:
    return any(key == name for key, _ in headers)


def hex_hmac(secret: bytes, body: bytes) -> bytes:
    return hmac.new(secret, body, hashlib.sha256).hexdigest().encode()


def any_equal(candidates: Iterable[bytes], given: bytes) -> bool:
    """Whether `given` equals a candidate, compared in constant time; bytes, because text outside ASCII raises."""
    found = False
    for candidate in candidates:
        found |= hmac.compare_digest(candidate, given)
    return found


def delivery_of(headers: Headers, names: Iterable[bytes], body: bytes) -> str:
    """Number that the forge has given to a delivery; without one, a hash of the body."""
    for name in names:
        value = only(headers, name)
        if value is not None and _DELIVERY.fullmatch(value):
            return value.decode("ascii")
    return f"body-{hashlib.sha256(body).hexdigest()}"


def document(body: bytes) -> Mapping[str, Any]:
    """Parse a JSON object, no deeper than MAX_DEPTH.

    Raises:
        Malformed: the body is no such object.
    """
    try:
        found = json.loads(body.decode("utf-8"), parse_constant=_no_constant)
        _check_depth(found)
    except (ValueError, RecursionError) as error:  # also integers of more digits than Python reads
        raise Malformed("not JSON") from error
    if not isinstance(found, dict):
        raise Malformed("not a JSON object")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            below
            for one in level
            if isinstance(one, (dict, list))
            for below in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return
    raise ValueError("too deep")


def text(value: Any, most: int = MAX_TEXT) -> str:
    """Untrusted text as one line that neither a terminal nor a page takes for anything but text."""
    if not isinstance(value, str):
        return ""
    line = value.split("\n", 1)[0]
    kept = "".join(
        sign for sign in line if unicodedata.category(sign) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
    )
    return kept[:most].strip()


def at(value: Any, *keys: str) -> Any:
    """A value deep in a document; None where anything on the way is missing or of another kind."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def push_event(delivery: str, name: str, ref: Any, after: Any, *, author: Any, title: Any) -> Event:
    """Event of a push to a branch, or of anything else with the reason to ignore it.

    Raises:
        Malformed: ref or commit are missing or invalid.
    """
    if not isinstance(ref, str) or not isinstance(after, str):
        raise Malformed("no ref, or no commit")
    if not ref.startswith(HEADS):
        return Event(delivery, name, why=f"{text(ref)} is no branch")
    if wrong := fault(ref):
        raise Malformed(f"ref: {wrong}")
    if is_zero(after):
        return Event(delivery, name, why=f"branch {text(ref.removeprefix(HEADS))} was deleted")
    if not is_sha(after):
        raise Malformed("the commit is no full name of one")
    return Event(delivery, name, Push(ref, after, text(author), text(title)))
