"""Recording of the actions in a vector of environments, at the cost of a few copies a step.

Of the answers only digests are kept. Copies are bytes, which are made three times as fast as arrays; they are packed
and hashed some hundred steps at a time.
"""

from __future__ import annotations

import json
import logging
import re
import time
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlctl_agents.envs.base import Env, Rests
from rlctl_agents.repro.provenance import code_digests
from rlctl_agents.repro.record import CHUNK_STEPS, FORMAT, Chunk, Digests, Header, Kind, Start, action_leaves, opened
from rlctl_agents.types.experience import Arrays, Decisions

CHUNK_BYTES = 1 << 20
"""Most bytes that are copied before they are packed; one step of large answers may exceed it."""
KEPT_BYTES = 8 << 20
"""Most bytes of packed actions and digests in memory, and so of a record."""
PLACE = re.compile(r" \(.*, seed ([0-9]+), step [0-9]+\)$")
"""End of the text of an `EnvError.at`: its place."""

log = logging.getLogger(__name__)


class EpisodeRecorder:
    """An `Env` that remembers the actions since its reset with seeds, and digests of the answers.

    Single environments of Gymnasium are played again alone: the one that is asked for, from its reset with a seed, or
    from the beginning of the episode with the state that its `np_random` had then. So the oldest steps may be
    forgotten. Others are stepped together, perhaps from one generator: only all steps since the reset lead to where
    they are. Once these are more than `KEPT_BYTES`, nothing is recorded any more.

    Args:
        env: the vector, not reset yet.
        section: `env` of the spec.
        training: True for an actor.
    """

    def __init__(self, env: Env, section: dict[str, Any], *, training: bool) -> None:
        self._env, self._section, self._training = env, section, training
        self.spaces, self.envs, self.frame_skip = env.spaces, env.envs, env.frame_skip
        self.code = code_digests()
        """Provenance of the modules that the environments were made with."""
        self._singles = singles(env)
        self._alone = self._singles is not None or type(env).__name__ == "Atari"
        if isinstance(env, Rests):
            self.rest = env.rest
        self._told_apart = self._alone or not training  # the episodes of each environment
        self._slots = env.envs * env.spaces.seats
        self._leaves = action_leaves(env.spaces)
        self._names = [leaf.name for leaf in self._leaves]
        self._digests = Digests(env.spaces, alone=self._alone)
        self._begin([])

    def reset(self, seeds: Sequence[int] | None = None) -> Decisions:
        """Reset the environments, and begin a new recording."""
        self._begin(list(seeds or ()))
        decisions = self._env.reset(seeds)
        self._take(decisions)
        self._width = len(self._copies)  # of each answer
        self._opening = self._digested()
        size = sum(map(len, self._copies)) * self._slots // decisions.slot.size
        self._most = max(1, min(CHUNK_STEPS, CHUNK_BYTES // max(1, size)))
        self._empty()
        return decisions

    def step(self, slot: NDArray[np.int64], action: Arrays) -> Decisions:
        """Step the environments, and record."""
        if not self.records:
            return self._env.step(slot, action)
        self._acting.append(self._waiting)
        for name in self._names:
            self._acted.append(action[name].tobytes())
        decisions = self._env.step(slot, action)
        self._take(decisions)
        if len(self._acting) >= self._most:
            self._seal()
        return decisions

    def close(self) -> None:
        """Close the environments."""
        self._env.close()

    def crashed(self, error: str) -> tuple[Header, list[Chunk]]:
        """The episode in which the environment has just raised.

        Args:
            error: text of the EnvError.
        """
        index = None
        if self._alone and (found := PLACE.search(error)) is not None and int(found[1]) in self._seeds:
            index = self._seeds.index(int(found[1]))
        at_reset = self._answers < 0
        actions = 0 if at_reset else self._answers + 1
        episode, first = (0, 0) if index is None else (self._count[index], self._first[index])
        return self._cut("crash", index, episode, first, self._answers, actions)

    def ended(self, kind: Kind, index: int, number: int) -> tuple[Header, list[Chunk]]:
        """An episode that is over; not for training.

        Args:
            index: of the environment.
            number: of its episode, from 0.
        """
        first, last = self._episodes[index][number]
        return self._cut(kind, index, number + 1, first, last, last)

    def _begin(self, seeds: list[int]) -> None:
        self._seeds, self.records = seeds, bool(seeds)
        self._chunks: list[Chunk] = []
        self._bytes = self._sealed = 0  # sealed: number of the last action in a chunk
        self._most = CHUNK_STEPS
        self._answers = -1  # number of the last one
        self._episodes: list[list[tuple[int, int]]] = [[] for _ in range(self.envs)]
        self._count, self._first = [1] * self.envs, [0] * self.envs  # of the present episodes
        self._generators = [""] * self.envs
        self._waiting = b""
        self._empty()

    def _empty(self) -> None:
        """Begin a chunk."""
        self._acting: list[bytes] = []  # slots of each action; b"": all
        self._acted: list[bytes] = []  # leaves of actions, likewise
        self._copies: list[bytes] = []  # of answers, one after the other

    def _take(self, decisions: Decisions) -> None:
        """Copy an answer."""
        self._answers += 1
        self._waiting = b"" if decisions.slot.size == self._slots else decisions.slot.tobytes()
        self._digests.copy(decisions, self._copies)
        if self._told_apart and (b"\1" in self._copies[-2] or b"\1" in self._copies[-1]):
            self._end(decisions)

    def _end(self, decisions: Decisions) -> None:
        """Record the ends of episodes."""
        over = decisions.terminated | decisions.truncated
        if decisions.life is not None:
            over &= ~decisions.life
        for env in set((decisions.slot[over] // self.spaces.seats).tolist()):
            if not self._training:
                self._episodes[env].append((self._first[env], self._answers))
            self._count[env] += 1
            self._first[env] = self._answers + 1
            if self._singles is not None:
                self._generators[env] = _state(self._singles[env])

    def _digested(self) -> NDArray[np.uint32]:
        """Digests of the answers of this chunk: [answers, environments, 2] where they are alone, else [answers, 2]."""
        both = self._digests.of(self._copies, self._width)
        return both.reshape(-1, self.envs, 2) if self._alone else both

    def _seal(self) -> None:
        """Pack what was copied."""
        if not self._acting:
            return
        digests = self._digested().tobytes() if self._copies else b""
        whole, data = not any(self._acting), b""
        counts = [len(slots) // 8 or self._slots for slots in self._acting]
        if not whole:
            every_slot = np.arange(self._slots).tobytes()
            slot = np.frombuffer(b"".join(slots or every_slot for slots in self._acting), np.int64)
            data = np.array(counts, np.int32).tobytes() + slot.astype(np.int32).tobytes()
        for n, leaf in enumerate(self._leaves):
            data += (
                np.frombuffer(b"".join(self._acted[n :: len(self._leaves)]), leaf.dtype).astype(leaf.stored).tobytes()
            )
        self._chunks.append(Chunk(self._sealed + 1, len(counts), sum(counts), whole, zlib.compress(data, 1), digests))
        self._sealed += len(counts)
        self._bytes += len(self._chunks[-1].data) + len(digests)
        self._empty()
        self._forget()

    def _forget(self) -> None:
        """Drop the oldest chunks beyond `KEPT_BYTES`; where all are needed, stop recording."""
        while self._bytes > KEPT_BYTES and self._chunks:
            if self._singles is None:
                self._chunks, self.records = [], False
                log.info("episodes are not recorded any more: their environments are stepped together for too long")
                return
            oldest = self._chunks.pop(0)
            self._bytes -= len(oldest.data) + len(oldest.digests)

    def _cut(
        self, kind: Kind, index: int | None, episode: int, first: int, answers: int, actions: int
    ) -> tuple[Header, list[Chunk]]:
        """Header and chunks of an episode."""
        self._seal()
        starts, why_not = self._starts(index, first)
        alone = self._alone and index is not None
        chunks = self._chunks if starts else []
        opening: tuple[int, int] | None = None
        if answers >= 0:
            obs, came = (self._opening[0, index] if alone else self._opening[0]).ravel()[:2].tolist()
            opening = (obs, came)
        header = Header(
            format=FORMAT, run="", process="", kind=kind, created=time.time(), env=self._section,
            training=self._training, envs=self.envs, seats=self.spaces.seats, seeds=self._seeds, alone=alone,
            index=index, episode=episode, begin=first, answers=answers, actions=actions, leaves=self._leaves,
            starts=starts, why_not=why_not, opening=opening,
        )  # fmt: skip
        if alone and index is not None:
            chunks = [self._column(chunk, index) for chunk in chunks]
        return header, [chunk for chunk in chunks if chunk.first <= actions]

    def _starts(self, index: int | None, first: int) -> tuple[list[Start], str]:
        """Answers from which the episode can be played again; or none, and the reason."""
        if self._alone and index is None:
            return [], "it is not known in which of the environments it was"
        if not self._seeds:
            return [], "the environment was not reset with seeds"
        there = self._chunks[0].first if self._chunks else 1
        starts = [Start(0)] if self.records and there == 1 else []
        if self._training and index is not None and first > 0 and there <= first and self._generators[index]:
            starts.append(Start(first, self._generators[index]))
        why = (
            f"of the {self._sealed:,} steps since the reset the first are not kept, those after {KEPT_BYTES >> 20} MiB"
        )
        return starts, "" if starts else why

    def _column(self, chunk: Chunk, index: int) -> Chunk:
        """Part of a chunk that belongs to one environment."""
        _, _, action = opened(self._leaves, chunk, np.arange(self.envs))
        data = [action[leaf.name][index :: self.envs].astype(leaf.stored).tobytes() for leaf in self._leaves]
        digests = np.frombuffer(chunk.digests, np.uint32).reshape(-1, self.envs, 2)[:, index].tobytes()
        return Chunk(chunk.first, chunk.steps, chunk.steps, True, zlib.compress(b"".join(data), 1), digests)


def singles(env: Any) -> Sequence[Any] | None:
    """The single environments of Gymnasium that a vector steps one after the other; None: it is of another kind.

    `envs` does not expose them: its private attributes are read here and nowhere else.
    """
    found = getattr(env, "_singles", None)
    inner = getattr(env, "_env", None)  # of `Stacked`
    return found if found is not None or type(env).__name__ != "Stacked" else singles(inner)


def _state(single: Any) -> str:
    """State of the generator that Gymnasium gives an environment, as JSON; "" where it has none that can be read."""
    try:
        return json.dumps(single.unwrapped.np_random.bit_generator.state)
    except Exception:  # of the user's own code; no run ends by it
        return ""
