"""Generations of a learner: written in the background, committed by the manager, read when the learner starts."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from rlctl_agents.checkpoint.parts import (
    LEARNER,
    POLICY,
    Corrupt,
    PartError,
    name_of,
    read_part,
    remove_leftovers,
    write_part,
)
from rlctl_agents.checkpoint.policy import PolicyFile, pack_policy
from rlctl_agents.checkpoint.state import StateError
from rlctl_agents.training.learner_state import LearnerState
from rlctl_agents.types.control import Commit, Generation, Reply
from rlctl_agents.types.experience import ModelRef
from rlctl_agents.wire.rpc.client import RemoteError

log = logging.getLogger(__name__)


class Job(NamedTuple):
    """A generation to be written."""

    number: int
    state: LearnerState
    ref: ModelRef
    steps: int  # agent steps learned from
    term: int


class CheckpointWriter:
    """Writer of generations, one at a time; while it is busy, the newest waits and replaces older ones.

    Args:
        folder: folder of checkpoints, on the volume.
        boot: of this process.
        policy: description of the tensors; its ref and steps become those of each generation. None: it is not written.
        commit: reports the parts to the manager.
        count: records the seconds of a generation in the metrics.
        now: returns Unix time.
        resumed: number of the generation that the learner resumed from; 0: there was none.
        ordered: highest number that was ever ordered.
        version: of the learner's weights as it begins.
    """

    def __init__(
        self,
        folder: Path,
        boot: str,
        policy: PolicyFile | None = None,
        *,
        commit: Callable[[Commit], Reply],
        count: Callable[[float], None],
        now: Callable[[], float] = time.time,
        resumed: int = 0,
        ordered: int = 0,
        version: int = 0,
    ) -> None:
        self._folder = folder
        self._boot = boot
        self._policy = policy
        self._commit = commit
        self._count = count
        self._now = now
        self._saved, self._ordered = resumed, ordered
        self._version = version  # of the newest generation
        self._waiting: Job | None = None
        self._turn = threading.Condition()
        self._busy = False
        self._stop = False
        self._thread = threading.Thread(target=self._run, name="generations", daemon=True)
        self.committed = 0
        """Number of the newest generation that the manager has committed."""
        self.failed = 0
        """Number of the newest generation that failed; the manager orders it under another number then."""

    def start(self) -> None:
        """Start the thread; removes the half-written files of crashed processes of this host."""
        remove_leftovers(self._folder)
        self._thread.start()

    def save(self, job: Job) -> None:
        """Write a generation as soon as possible. Does not wait."""
        self._saved, self._version = job.number, job.ref.version
        with self._turn:
            self._waiting = job
            self._turn.notify_all()

    def unsaved(self, version: int) -> bool:
        """True if weights of this version are in no generation, or the newest one failed."""
        return version > self._version or 0 < self._saved == self.failed

    def wants(self, number: int) -> bool:
        """True if the order is new; it is remembered."""
        new = number > max(self._ordered, self._saved)
        if new:
            self._ordered = number
        return new

    def next_number(self, told: int) -> int:
        """Number above all that were ordered or saved.

        Args:
            told: number of the manager's newest order.
        """
        return max(self._ordered, self._saved, told) + 1

    def settle(self, timeout_s: float) -> bool:
        """Wait until nothing is left to write; False on a timeout."""
        with self._turn:
            return self._turn.wait_for(lambda: self._waiting is None and not self._busy, timeout_s)

    def close(self) -> None:
        """Stop the thread; a waiting generation is not written."""
        with self._turn:
            self._stop = True
            self._turn.notify_all()

    def write(self, job: Job) -> None:
        """Write and commit one generation; a failure is logged and remembered."""
        started = time.monotonic()
        try:
            name = name_of(job.ref.policy, job.number, LEARNER)
            part = write_part(self._folder, name, job.state.pack())
            parts = {LEARNER: part}
            if self._policy is not None:
                described = replace(self._policy, ref=job.ref, steps=job.steps, tensors=part.file)
                name = name_of(job.ref.policy, job.number, POLICY, "json")
                parts[POLICY] = write_part(self._folder, name, pack_policy(described))
            generation = Generation(
                number=job.number,
                policy=job.ref.policy,
                term=job.term,
                ref=job.ref,
                steps=job.steps,
                created=self._now(),
                parts={name: part.file for name, part in parts.items()},
                sha256={name: part.sha256 for name, part in parts.items()},
            )
            said = self._commit(Commit(generation, self._boot))
        except Exception as error:  # of any kind: this thread lives on, and the generation is ordered again
            expected = isinstance(error, (PartError, TimeoutError, RemoteError))
            log.error("generation %d was not saved: %s", job.number, error, exc_info=not expected)
            self.failed = job.number
            return
        seconds = time.monotonic() - started
        self._count(seconds)
        if not said.ok:
            log.warning("generation %d was not committed: %s", job.number, said.why)
            self.failed = job.number
            return
        self.committed = job.number
        log.info(
            "generation %d saved at version %d", job.number, job.ref.version,
            extra={"kv": {"steps": job.steps, "seconds": round(seconds, 3), "file": part.file}},
        )  # fmt: skip

    def _run(self) -> None:
        while True:
            with self._turn:
                self._turn.wait_for(lambda: self._stop or self._waiting is not None)
                if self._stop:
                    return
                job, self._waiting, self._busy = self._waiting, None, True
            try:
                assert job is not None
                self.write(job)
            finally:
                with self._turn:
                    self._busy = False
                    self._turn.notify_all()


class NothingReadable(Exception):
    """Committed generations of which none can be read: starting anew would hide the loss."""


def resume(folder: Path, generations: Iterable[Generation], restore: Callable[[bytes], str]) -> Generation | None:
    """Resume from the newest generation that is whole. One that the volume does not give now is no reason to go back.

    Args:
        folder: folder of checkpoints.
        generations: committed ones, newest first.
        restore: restores the bytes of the learner's part; returns the parts that it could not restore, in words.

    Returns:
        The generation, or None when there was none.

    Raises:
        NothingReadable: there were some, and all are damaged.
        PartError: the file system refuses to read one.
    """
    failures = []
    for generation in generations:
        try:
            data = read_part(folder, generation.parts[LEARNER], generation.sha256[LEARNER])
            problem = restore(data)
        except (Corrupt, StateError, KeyError, ValueError) as error:
            reason = f"it has no part {error}" if isinstance(error, KeyError) else str(error)
            failures.append(f"generation {generation.number}: {reason}")
            log.error("generation %d cannot be used, trying an older one: %s", generation.number, reason)
            continue
        if problem:
            log.warning("%s", problem)
        log.info(
            "resumed from generation %d: version %d, %d steps", generation.number, generation.ref.version,
            generation.steps, extra={"kv": {"lineage_before": generation.ref.lineage}},
        )  # fmt: skip
        return generation
    if failures:
        raise NothingReadable(
            f"none of {len(failures)} generations can be read ({'; '.join(failures)}); to begin anew, start another run"
        )
    return None
