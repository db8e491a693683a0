"""Where everybody listens, and whom everybody talks to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import product

from rlctl_agents.types.control import Channels, Peers

CHANNELS: Mapping[str, tuple[str, ...]] = {"modelpool": ("rpc", "notice"), "learner": ("experience",)}
"""What a role listens on; the others only connect."""
TALKS_TO: Mapping[str, tuple[str, ...]] = {
    "modelpool": (),
    "learner": ("modelpool",),
    "actor": ("learner", "modelpool"),
    "evaluator": ("modelpool",),
}
PORTS: Mapping[str, int] = {"rpc": 7100, "notice": 7101, "experience": 7102}
"""Of each channel where every replica has a name of its own, as on a cluster."""
STAYS_S = 60.0
"""A peer that fell silent is named for so long: it comes back under the same address, or somebody else does. A learner
is named no longer than its lease while another one lives."""


class Addresses:
    """Addresses from one pattern, and the replicas that are named to others.

    Args:
        pattern: with `{role}`, `{index}`, and `{channel}` or `{port}`.
        clock: monotonic seconds.

    Raises:
        ValueError: the pattern lacks one of the three, or has others.

    Example:
        `ipc:///folder/{role}-{index}.{channel}` on one machine, `tcp://run-{role}-{index}.run-{role}:{port}` on a
        cluster, whose names are those of the pods.
    """

    def __init__(self, pattern: str, clock: Callable[[], float]) -> None:
        try:
            tried = {
                _filled(pattern, role, index, channel)
                for role, index, channel in product("ab", (0, 1), ("rpc", "notice"))
            }
        except (KeyError, IndexError, ValueError) as error:
            raise ValueError(
                f"{pattern!r}: only {{role}}, {{index}}, {{channel}} and {{port}} may be filled in"
            ) from error
        if len(tried) != 8:
            raise ValueError(f"{pattern!r}: must hold {{role}}, {{index}}, and {{channel}} or {{port}}")
        self._pattern = pattern
        self._clock = clock
        self._named: dict[tuple[str, int], float] = {}  # (role, index) -> last seen alive

    @property
    def one_machine(self) -> bool:
        """Everybody runs here."""
        return self._pattern.startswith(("ipc://", "inproc://"))

    def bind(self, role: str, index: int) -> Channels:
        """Where a replica listens."""
        return {channel: _filled(self._pattern, role, index, channel) for channel in CHANNELS.get(role, ())}

    def alive(self, replicas: Iterable[tuple[str, int]]) -> None:
        """These live now."""
        now, living = self._clock(), {one for one in replicas if one[0] in CHANNELS}
        self._named |= dict.fromkeys(living, now)
        # actors go to the learners that are left
        given_up = {"learner"} if any(role == "learner" for role, _ in living) else set()
        self._named = {
            one: seen
            for one, seen in self._named.items()
            if one in living or (now - seen < STAYS_S and one[0] not in given_up)
        }

    def peers(self, role: str) -> Peers:
        """Whom a role talks to. Replica 0 is among them: it exists, and connecting early costs nothing. Only learner 0
        is left out where others live without it.
        """
        found = {one for one in self._named if one[0] in TALKS_TO.get(role, ())}
        learners = any(other == "learner" for other, _ in found)
        found |= {(other, 0) for other in TALKS_TO.get(role, ()) if not (other == "learner" and learners)}
        return {f"{other}/{index}": self.bind(other, index) for other, index in sorted(found)}


def _filled(pattern: str, role: str, index: int, channel: str) -> str:
    return pattern.format(role=role, index=index, channel=channel, port=PORTS[channel])
