"""Durations of the stages of a build."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from rlctl_ci.core.states import ACTIVE, WAITING

Event = tuple[float, str, str]
"""Time in seconds since the epoch, state, note."""


def seconds(events: Sequence[Event]) -> dict[str, Any]:
    """Seconds that the stages of a build took, from the push on; of a build in flight, so far.

    Args:
        events: events of one build, in order.

    Returns:
        stages: state -> seconds in it, over all attempts; redeployed: until every replica ran the new code and had
        reported; verified: until the watch after that had ended well. None for what has not happened.

    Example:
        received at 10, deploying at 12, verifying at 20, succeeded at 50: redeployed 10, verified 40.
    """
    stages: dict[str, float] = {}
    for (at, state, _), (after, _, _) in itertools.pairwise(events):
        if state in (*WAITING, *ACTIVE):
            stages[state] = stages.get(state, 0.0) + max(0.0, after - at)  # clocks may be set back
    begun = events[0][0] if events else 0.0
    redeployed = [at - begun for at, state, _ in events if state == "verifying"]
    verified = [at - begun for at, state, _ in events if state == "succeeded"]
    return {
        "stages": {state: round(took, 3) for state, took in stages.items()},
        "redeployed": round(redeployed[-1], 3) if redeployed else None,
        "verified": round(verified[-1], 3) if redeployed and verified else None,
    }


def in_words(events: Sequence[Event]) -> str:
    """Durations of a build's stages as one line for its log.

    Example:
        "redeployed 9.6 s after the push, verified after 14.7 s (fetching 0.1, deploying 9.4, verifying 5.1)".
    """
    found = seconds(events)
    said = [f"redeployed {found['redeployed']:.1f} s after the push"] if found["redeployed"] is not None else []
    said += [f"verified after {found['verified']:.1f} s"] if found["verified"] is not None else []
    stages = ", ".join(f"{state} {took:.1f}" for state, took in found["stages"].items() if took >= 0.05)
    return f"{', '.join(said) or 'seconds'} ({stages or 'no time at all'})"
