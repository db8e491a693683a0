"""Key classes of messages, and the requests that each class may make."""

from __future__ import annotations

from collections.abc import Mapping

import zmq
from msgspec import Struct

from rlctl_agents.types.control import (
    Commit,
    Contribute,
    Enlist,
    EvalResult,
    GetModel,
    Hello,
    KeepModel,
    Note,
    PutModel,
    Recorded,
    Report,
    Sampled,
)
from rlctl_agents.wire.keys import ACTOR, CORE

Classes = Mapping[type[Struct], frozenset[str]]

ALL = frozenset((ACTOR, CORE))
ONLY_CORE = frozenset((CORE,))

MANAGER: Classes = {
    **dict.fromkeys((Hello, Recorded, Report, Sampled), ALL),
    **dict.fromkeys((Commit, Contribute, Enlist, EvalResult, Note), ONLY_CORE),
}
REPLAY: Classes = {}
"""Requests to a replay shard: only learners draw, and their key class is core."""
MODELPOOL: Classes = {GetModel: ALL, PutModel: ONLY_CORE, KeepModel: ONLY_CORE}
"""Requests to a modelpool. In all three tables, a request that is not named may be made by core processes alone."""


def class_of(frame: zmq.Frame) -> str:
    """Key class of the sender of a frame, "" when it did not come over a CURVE connection."""
    return _property(frame, "User-Id")


def address_of(frame: zmq.Frame) -> str:
    """IP address of the machine that a frame came from."""
    return _property(frame, "Peer-Address") or "this machine"


def refusal(classes: Classes, whose: str, kind: type[Struct], request: Struct | None) -> str:
    """Reason why a request is forbidden, "" when it is allowed.

    A class other than core acts for the role of its own name only: in a request with an actor key, `role` is `actor`.

    Args:
        classes: request class -> key classes that may make it.
        whose: the caller's key class, "" when it has none.
        kind: class of the request.
        request: the request; None before it is decoded: then `kind` alone decides.
    """
    if whose not in classes.get(kind, ONLY_CORE):
        return f"{kind.__name__} may not be asked with {_with(whose)}"
    role = getattr(request, "role", whose)
    if whose != CORE and role != whose:
        return f"{kind.__name__} as {str(role)[:40]!r} may not be asked with {_with(whose)}"
    return ""


def _property(frame: zmq.Frame, name: str) -> str:
    try:
        return str(frame.get(name))
    except zmq.ZMQError:  # it has none of that name
        return ""


def _with(whose: str) -> str:
    return f"the key of class {whose}" if whose else "no key of the run"
