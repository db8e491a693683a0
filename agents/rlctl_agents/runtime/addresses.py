"""Addresses of replicas, and the peers of each role."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import product

from rlctl.spec.names import PORTS
from rlctl.spec.roles import FAN_OUT, serving
from rlctl_agents.types.control import Channels, Peers

CHANNELS: Mapping[str, tuple[str, ...]] = {
    "modelpool": ("rpc", "notice"),
    "replay": ("experience", "rpc"),
    "learner": ("experience",),
}
"""Channels on which each role listens; the other roles only connect."""
TALKS_TO: Mapping[str, tuple[str, ...]] = {
    "modelpool": ("modelpool",),
    "replay": (),
    "learner": ("replay", "modelpool"),
    "actor": ("replay", "learner", "modelpool"),
    "evaluator": ("modelpool",),
}
STAYS_S = 60.0
"""Time for which a silent peer stays named: it or a successor comes back under the same address. While another of its
role lives it is named no longer than its lease."""


class Addresses:
    """Addresses from one pattern, and the replicas that are named to others.

    Args:
        pattern: with `{role}`, `{index}`, and `{channel}` or `{port}`.
        clock: monotonic seconds.

    Raises:
        ValueError: the pattern lacks one of the three, or has others.

    Example:
        `ipc:///folder/{role}-{index}.{channel}` on one machine, `tcp://run-{role}-{index}.run-{role}:{port}` on a
        cluster, where `run-{role}-{index}` is the name of a pod.
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
        """True if all replicas run on this machine."""
        return self._pattern.startswith(("ipc://", "inproc://"))

    def bind(self, role: str, index: int) -> Channels:
        """Channels on which a replica listens."""
        return {channel: _filled(self._pattern, role, index, channel) for channel in CHANNELS.get(role, ())}

    def alive(self, replicas: Iterable[tuple[str, int]]) -> None:
        """Record the replicas that live now."""
        now, living = self._clock(), {one for one in replicas if one[0] in CHANNELS}
        self._named |= dict.fromkeys(living, now)
        given_up = {role for role, _ in living}  # their clients go to the replicas that are left
        self._named = {
            one: seen
            for one, seen in self._named.items()
            if one in living or (now - seen < STAYS_S and one[0] not in given_up)
        }

    def peers(self, role: str, index: int, shards: int = 0) -> Peers:
        """Peers of a replica: of an actor one learner, or one shard of the replay; of a learner every shard; and one
        modelpool.

        Replica 0 stands for a role without a living replica: its address is known, and connecting early costs nothing.

        Args:
            shards: of the replay, as many as are wanted now; 0: learners receive from actors.
        """
        talks_to = TALKS_TO.get(role, ())
        found: set[tuple[str, int]] = set()
        if "replay" in talks_to and shards:
            living = self._of("replay")
            home = index % max(shards, *(shard + 1 for shard in living), 1)
            one = [home if home in living or not living else living[index % len(living)]]
            found = {("replay", other) for other in (one if role == "actor" else living)}
        elif "learner" in talks_to:
            learners = self._of("learner") or [0]
            found = {("learner", learners[index % len(learners)])}
        if "modelpool" in talks_to and (role, index) != ("modelpool", 0):
            found.add(("modelpool", self._pool_of(role, index)))
        return {f"{other}/{number}": self.bind(other, number) for other, number in sorted(found)}

    def _of(self, role: str) -> list[int]:
        return sorted(index for other, index in self._named if other == role)

    def _pool_of(self, role: str, index: int) -> int:
        """Modelpool of a replica. Learners bring weights to pool 0, the others hand them down a tree, and actors pull
        from these. Evaluators ask number 0: the others may lack the version that is to be played."""
        pools = self._of("modelpool")
        if role == "modelpool":
            above = (index - 1) // FAN_OUT
            while above and above not in pools:
                above = (above - 1) // FAN_OUT
            return above
        if role != "actor" or not pools:
            return 0
        there = serving(pools[-1] + 1)
        home = there[index % len(there)]  # so that a pool that falls silent moves only its own actors
        living = [pool for pool in pools if pool in there]
        return home if home in living else living[index % len(living)]


def _filled(pattern: str, role: str, index: int, channel: str) -> str:
    return pattern.format(role=role, index=index, channel=channel, port=PORTS[channel])
