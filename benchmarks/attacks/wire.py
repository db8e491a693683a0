"""Clients without keys and with an actor's, against processes that listen by CURVE; see `tests.wire.attacker`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from rlctl_agents.wire.sockets import MAX_MESSAGE_BYTES
from tests.wire import attacker

CLIENTS, FRAMES = 3, 96
ANNOUNCED_BYTES = 700 << 20
MOST_MORE_MIB = 64.0
LEAST_SHARE = 0.1
"""Share of its throughput alone that an honest sender keeps beside an attack."""
WITHIN_S = 120.0


def strangers() -> dict[str, Any]:
    """Clients without keys that announce and send a large command."""
    with tempfile.TemporaryDirectory() as folder:
        seen = attacker.strangers(Path(folder), ANNOUNCED_BYTES, CLIENTS)
    return {**seen._asdict(), "held": seen.most_mib < seen.before_mib + MOST_MORE_MIB}


def above_the_limit() -> dict[str, Any]:
    """One message with the actor's key, of frames that are each a byte too large: the first ends the connection."""
    with tempfile.TemporaryDirectory() as folder:
        seen = attacker.one_message(Path(folder), FRAMES, MAX_MESSAGE_BYTES + 1, WITHIN_S)
    return {**seen._asdict(), "held": seen.most_mib < seen.before_mib + MOST_MORE_MIB}


def within_the_limit() -> dict[str, Any]:
    """The same of the largest frames that are allowed. ZeroMQ holds them all until the last is there, which only the
    memory of the pod bounds; the defence is that the message is thrown away then, and its memory given back."""
    with tempfile.TemporaryDirectory() as folder:
        seen = attacker.one_message(Path(folder), FRAMES, MAX_MESSAGE_BYTES, WITHIN_S)
    return {**seen._asdict(), "held": seen.after_mib < seen.before_mib + MOST_MORE_MIB}


def starved(what: str, seconds: float = 4.0) -> dict[str, Any]:
    """Blocks per second of an honest sender beside an attack with the actor's key, and without."""
    with tempfile.TemporaryDirectory() as folder:
        seen = attacker.starved(Path(folder), what, seconds)
    held = seen.beside > LEAST_SHARE * seen.alone and seen.boots <= 2
    return {"alone": seen.alone, "beside": seen.beside, "refused": sum(seen.rejected.values()), "held": held}
