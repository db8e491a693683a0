"""CURVE keys of a run: two Secrets, created once, outside of everything that is rendered or compared.

A CURVE key pair is an X25519 pair in Z85. Three pairs: the servers' (that listen), `core` and `actor` (that connect).
The actor's secret key is derived from the servers', so that after a command is killed between the two Secrets, the next
one creates the same second Secret.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from rlctl.backends.kubernetes.api.interface import Key, Object
from rlctl.errors import BackendUnreachable, Conflict
from rlctl.spec.names import UID, keys_name, labels

_Z85: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


def core_key(run: str) -> Key:
    return Key("Secret", keys_name(run, "core"))


def actor_key(run: str) -> Key:
    return Key("Secret", keys_name(run, "actor"))


def to_z85(data: bytes) -> str:
    """Encode bytes as Z85 (ZeroMQ RFC 32).

    Raises:
        ValueError: the length is no multiple of 4.
    """
    if len(data) % 4:
        raise ValueError(f"must be a multiple of 4 bytes, got {len(data)}")
    text = []
    for start in range(0, len(data), 4):
        number = int.from_bytes(data[start : start + 4], "big")
        text += [_Z85[number // 85**power % 85] for power in (4, 3, 2, 1, 0)]
    return "".join(text)


def from_z85(text: str) -> bytes:
    """Decode Z85 (ZeroMQ RFC 32).

    Raises:
        ValueError: the text is no Z85.
    """
    if len(text) % 5:
        raise ValueError(f"must be a multiple of 5 characters, got {len(text)}")
    data = b""
    for start in range(0, len(text), 5):
        number = 0
        for sign in text[start : start + 5]:
            number = number * 85 + _Z85.index(sign)
        data += number.to_bytes(4, "big")
    return data


def public_of(secret: bytes) -> bytes:
    """Public half of an X25519 secret key of 32 bytes; equals zmq.curve_public.

    Raises:
        BackendUnreachable: the package `cryptography` is not installed.
    """
    try:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    except ModuleNotFoundError as error:
        raise BackendUnreachable(
            "the keys of a run cannot be made: the package cryptography is not installed",
            hint='install it with: pip install "rlctl[kubernetes]"',
        ) from error
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def make(run: str, uid: str, random: Callable[[int], bytes] = secrets.token_bytes) -> Object:
    """The Secret of class core with new keys."""
    server, core = random(32), random(32)
    data = {
        "server.key": to_z85(server),
        "server.pub": to_z85(public_of(server)),
        "core.key": to_z85(core),
        "core.pub": to_z85(public_of(core)),
        "actor.pub": to_z85(public_of(_actor_secret(server, uid))),
    }
    return _secret(core_key(run), run, uid, data)


def derived(core: Object, run: str, uid: str, kubectl: str = "kubectl") -> Object:
    """The Secret of class actor that belongs to a Secret of class core.

    Args:
        kubectl: beginning of a command for their namespace.

    Raises:
        Conflict: the Secret of class core holds no such keys.
    """
    try:
        data = core["data"]
        server = from_z85(base64.b64decode(data["server.key"]).decode())
        actor = _actor_secret(server, uid)
        files = {
            "server.pub": to_z85(public_of(server)),
            "actor.key": to_z85(actor),
            "actor.pub": to_z85(public_of(actor)),
        }
    except (KeyError, TypeError, ValueError) as error:
        raise Conflict(
            f"{core_key(run)} does not hold the keys of run {run}: {type(error).__name__}: {error}",
            hint=f"Stop the run, then remove it, and the run gets new keys: {kubectl} delete secret "
            f"{core_key(run).name}",
            objects=(str(core_key(run)),),
        ) from error
    return _secret(actor_key(run), run, uid, files)


def check_not_lost(run: str, there: Iterable[Object]) -> None:
    """Check that a Secret of class core may be created.

    Args:
        there: live workloads of the run; their pods hold the keys of an earlier Secret.

    Raises:
        Conflict: new keys would separate new pods from those that run.
    """
    alive = [thing for thing in there if not thing["metadata"].get("deletionTimestamp")]
    if alive:
        core = core_key(run)
        raise Conflict(
            f"{core} of the live run {run} is lost: with new keys, pods that start from now on and those that run "
            f"would not understand each other",
            hint=f"Put it back from a backup; or rlctl down {run}, then rlctl up SPEC: all start with new keys, the "
            f"data stays.",
            objects=(str(core),),
        )


def _actor_secret(server: bytes, uid: str) -> bytes:
    return hmac.new(server, f"rlctl actor key of {uid}".encode(), hashlib.sha256).digest()


def _secret(key: Key, run: str, uid: str, data: Mapping[str, str]) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": key.name, "labels": labels(run), "annotations": {UID: uid}},
        "type": "Opaque",
        "immutable": True,
        "data": {name: base64.b64encode(text.encode()).decode() for name, text in data.items()},
    }
