"""States of a build and their transitions: the whole state machine in one table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, get_args

State = Literal[
    "received", "queued", "fetching", "building", "pushing", "deploying", "verifying", "interrupted",
    "succeeded", "ignored", "superseded", "cancelled", "failed", "rolled_back",
]  # fmt: skip
STATES: Final[tuple[State, ...]] = get_args(State)
TERMINAL: Final[frozenset[State]] = frozenset(
    {"succeeded", "ignored", "superseded", "cancelled", "failed", "rolled_back"}
)
ACTIVE: Final[tuple[State, ...]] = ("fetching", "building", "pushing", "deploying", "verifying")
"""States in which a worker holds the lease of the build."""
WAITING: Final[tuple[State, ...]] = ("received", "queued")
MAX_ATTEMPTS: Final = 3
"""Attempts at a build that may be killed, or find its target unreachable once its deployment has begun."""

_STEPS: Mapping[State, State] = {
    "received": "queued", "queued": "fetching", "fetching": "building", "building": "pushing", "pushing": "deploying",
    "deploying": "verifying", "verifying": "succeeded", "interrupted": "queued",
}  # fmt: skip
NEXT: Final[Mapping[State, frozenset[State]]] = {
    state: frozenset(
        {
            *([_STEPS[state]] if state in _STEPS else []),
            *(("ignored", "superseded", "cancelled", "failed") if state not in TERMINAL else ()),
            *(("interrupted", "deploying", "rolled_back", "succeeded") if state in ACTIVE else ()),
            *(("rolled_back",) if state in ("succeeded", "failed") else ()),
        }
    )
    for state in STATES
}
"""State -> states that may follow it. From an active state a build may end at once: there was nothing to build, or
nothing to deploy. If an earlier attempt has deployed, the next one moves to deploying at once. A build that is over may
be rolled back later."""


def allowed(before: State, after: State) -> bool:
    """Whether a build may move from the first state to the second."""
    return after in NEXT[before]
