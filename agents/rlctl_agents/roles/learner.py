"""The learner: experience in, weights out, generations on the way."""

from __future__ import annotations

import logging
import os
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch

from rlctl.spec.layout import Layout
from rlctl_agents import algorithms
from rlctl_agents.acting.bootstrap import make_algorithm, seed_torch
from rlctl_agents.algorithms.base import AlgorithmError
from rlctl_agents.experience.batch_loader import Intake
from rlctl_agents.experience.batching import ROWS_OF_ALL, Arrival, Assembler, Columns, LockStep, LockStepError
from rlctl_agents.experience.validation import ValueCheck
from rlctl_agents.runtime.manager_session import Member, Snapshot
from rlctl_agents.runtime.metrics import VERSIONS
from rlctl_agents.runtime.process import (
    BASE_ROWS,
    FAILED_GENERATION,
    RANK,
    RESTS,
    RESUMED,
    RESUMING,
    ROWS,
    Process,
    Refusals,
    UserFault,
    open_wire,
    refused_connections,
)
from rlctl_agents.training.checkpoint_writer import Generations, Job, NothingReadable, resume
from rlctl_agents.training.collective import Broken
from rlctl_agents.training.device import choose_device, compiles, require_device
from rlctl_agents.training.ranks import Ranks
from rlctl_agents.training.trainer import Diverged, Learning, Updated
from rlctl_agents.types.control import Commit, Lease, Said
from rlctl_agents.types.experience import schema_difference
from rlctl_agents.weights.publisher import Publisher, require_size
from rlctl_agents.wire.experience import ExperienceReceiver
from rlctl_agents.wire.sockets import Wire

TAKE_S = 0.1
"""Longest wait for a batch between two looks at orders and the stop flag."""
TAKE_TOGETHER_S = 0.02
"""The same between two looks at how it stands with the others."""
LAST_GENERATION_S = 6.0
"""Of the ten seconds that an orderly stop may take."""
COMMIT_S = 3.0
LISTEN_S = 0.01
"""Between two looks whether the modelpool has caught up."""
SAY_AGAIN_S = 10.0
SCHEMA_S = 60.0
"""So long a learner waits for actors that fit."""
QUEUED_BATCHES = 3
"""Nobody begins a new segment while so much experience is here: one batch to learn from, one full, one to spare."""
BATCHES = 2
"""One is learned from while the other is filled."""

log = logging.getLogger(__name__)


def main(process: Process) -> None:
    """Learn until asked to stop.

    Raises:
        UserFault: device, algorithm or network cannot be had as the spec asks.
        Diverged: losses or gradients are not finite any more.
    """
    process.explained = (Diverged,)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    if process.arguments.volume is None:
        raise UserFault("command line: a learner needs --volume, for its generations")
    require_device(process.spec)
    with ExitStack() as stack:
        wire = open_wire(process.arguments)
        stack.callback(wire.close)
        member = Member(process, wire)
        lease = join(process, member)
        if lease is None:
            return
        stack.callback(member.close)
        device = choose_device(process.spec, lease.index, lease.learners)
        process.metrics.set(RESUMING, 1.0)
        if lease.learners > 1:
            process.metrics.set(RANK, -1.0)  # what it reads may be older than what the others have
        member.start(Snapshot)  # reading a large generation takes longer than a lease outlives silence
        learner = Learner(process, wire, member, lease, Layout(process.arguments.volume).checkpoints, device)
        stack.callback(learner.close)
        process.metrics.set(RESUMING, 0.0)
        member.snapshot = learner.snapshot
        learner.run()
        if member.moved:
            raise RuntimeError(member.moved)


def join(process: Process, member: Member) -> Lease | None:
    """A lease whose experience fits; None when asked to stop meanwhile.

    After a change of the spec, the manager may know the segments of the actors before the change for a while.

    Raises:
        UserFault: the algorithm cannot be found, or does not fit the spaces.
        RuntimeError: the actors go on meaning something else by a segment than this learner.
    """
    patience = time.monotonic() + SCHEMA_S
    while (lease := member.join(needs_experience=True)) is not None:
        assert lease.experience is not None
        try:
            own = algorithms.schema_of(process.spec, lease.experience.spaces, process.spec.policy_names[0])
        except AlgorithmError as fault:
            raise UserFault(str(fault)) from fault
        difference = schema_difference(own, lease.experience.schema)
        if not difference:
            return lease
        if time.monotonic() > patience:
            raise RuntimeError(f"learner and actors differ: {difference}; different releases of the algorithm?")
        process.stop.wait(1.0)
    return None


class Learner:
    """One policy's learner: its weights, whom it hears and whom it tells."""

    def __init__(
        self, process: Process, wire: Wire, member: Member, lease: Lease, folder: Path, device: torch.device
    ) -> None:
        assert lease.experience is not None, "joined with needs_experience"
        self._process, self._member, self._lease = process, member, lease
        spec = process.spec
        self._policy = spec.policy_names[0]
        config = spec.policy(self._policy).algorithm
        seed_torch(spec.seed, "learner", lease.index)  # what is resumed from replaces it
        algorithm = make_algorithm(spec, self._policy, lease.experience.spaces, gpu=device.type == "cuda")
        self._config = config
        self._schema = schema = lease.experience.schema
        self._streams = streams = streams_of(config.batch_rows, schema.segment_steps)
        self._learning = Learning(
            algorithm, policy=self._policy, lineage=lease.next_lineage, device=device, lock_step=spec.sync
        )
        require_size(self._policy, self._learning.weights_bytes())
        try:
            resumed = resume(folder, lease.generations, self._learning.restore)
        except NothingReadable as error:
            raise RuntimeError(str(error)) from error
        if resumed is not None:
            process.metrics.set(RESUMED, resumed.number)
        process.metrics.set(ROWS, self._learning.consumed_rows)
        self._saved = resumed.number if resumed is not None else 0
        self._saved_rows = self._learning.consumed_rows
        self._base = {BASE_ROWS: float(self._learning.taken_rows)}
        self._ordered = max((one.number for one in lease.generations), default=0)
        self._publish_every = 1 if spec.sync else config.publish_every_updates
        self._reached = (self._learning.ref, self._learning.consumed_rows)  # replaced as a whole: reports read it
        self._published = -1  # newest version handed to the publisher
        self._first_version = self._learning.version
        self._most_ahead = most_ahead(config.max_lag_versions, self._publish_every)
        self._waits_for_pools = algorithm.on_policy and not spec.sync  # lock-step waits by its nature
        self._lock_step = LockStep(schema, streams) if spec.sync else None
        assembler: Assembler = self._lock_step or Arrival(schema, config.max_lag_versions)
        self._receiver = ExperienceReceiver(
            wire,
            lease.bind["experience"],
            run=process.uid,
            boot=process.boot,
            schema=schema,
            budget_rows=config.budget_rows,
            term=lease.term,
            leased_since_s=lease.leased_since_s,
            batch_rows=config.batch_rows,
            queue_rows=0 if spec.sync else QUEUED_BATCHES * config.batch_rows,
            check=ValueCheck(lease.experience.spaces, schema),
        )
        batches = [self._learning.allocate(schema, streams) for _ in range(BATCHES)]
        if compiles(spec, device) and lease.learners == 1:
            self._learning.compile(batches[0])  # before the first beat, after which a minute of silence is a fault
        self._intake = Intake(self._receiver, assembler, batches, self._learning.ref, self._learning.stage)
        self._publisher = Publisher(
            wire,
            process.boot,
            pools=lambda: member.peers_of("modelpool"),
            term=lambda: member.term,
            every_version=spec.sync,
        )
        self._generations = Generations(
            folder,
            process.boot,
            commit=self._commit,
            count=lambda seconds: process.metrics.add("checkpoint_seconds", seconds),
        )
        process.metrics.declare("lag_versions", VERSIONS)
        for name in ("consumed_rows", "unique_rows", "updates", "nonfinite", "wait_model_seconds"):
            process.metrics.add(name, 0.0)
        self._starved_since = self._said = time.monotonic()
        self._refusals = Refusals(
            process.metrics, lambda: dict(self._receiver.rejected), lambda: refused_connections(wire)
        )
        one_machine = process.arguments.bind in ("", "127.0.0.1", "::1")
        self._ranks = Ranks(process, member, self._learning, device, one_machine=one_machine)
        self._columns: Columns | None = None  # the batch in hand
        self._tried = False  # to learn from it, when the group broke up
        self._fresh = True  # an update was just made, or none: look at the others before waiting for a batch
        self._placed = False  # as often as there is a new place
        self._running = False
        self._rests = False  # it has learned from as many rows as it may

    def snapshot(self) -> Snapshot:
        """The books, for a report; called by another thread."""
        self._process.metrics.set("queue_rows", self._intake.waiting_rows)
        self._refusals.count()
        self._process.metrics.set(FAILED_GENERATION, self._generations.failed)
        model, rows = self._reached
        accounts, place = self._receiver.accounts, self._ranks.gauges
        if not self._ranks.placed:
            return Snapshot(accounts=accounts, gauges=place)
        base = {} if self._ranks.seeded else self._base
        return Snapshot(accounts=accounts, model=model, gauges={ROWS: float(rows), **base, **place})

    def run(self) -> None:
        """Learn until the process is asked to stop."""
        self._publisher.start()
        self._generations.start()
        while not self._process.stop.is_set():
            self.run_once()

    def run_once(self) -> None:
        """Whatever is due, then at most one update."""
        self._process.pulse.beat()
        self._receiver.term, self._receiver.leased_since_s = self._member.term, self._member.leased_since_s
        if not self._ranks.placed and not self._ranks.find_place():
            self._placed = False
            return
        if not self._placed:
            self._take_place()
        try:
            self._step()
        except Broken as error:
            self._placed = False
            self._ranks.broken(error, updating=self._tried)

    def _take_place(self) -> None:
        """It has another place: its weights are those of the group now, and its part of a batch may be another."""
        streams, first = self._ranks.share(self._streams), not self._running
        rows, config = streams * self._schema.segment_steps, self._config
        if self._tried and self._columns is not None and self._learning.version == self._reached[0].version + 1:
            self._done_with(self._columns)  # the others finished that update
        self._tried, self._fresh, self._placed = False, True, True
        self._reached = (self._learning.ref, self._learning.consumed_rows)
        self._first_version = self._learning.version
        self._published = self._first_version - self._publish_every  # due at once
        if not self._ranks.leads:
            self._publisher.rest()
        if not first or streams != self._streams:
            batches = [self._learning.allocate(self._schema, streams) for _ in range(BATCHES)]
            budget_rows = config.budget_rows // config.batch_rows * rows
            self._intake.move(self._learning.ref, batches, budget_rows, 0 if self._lock_step else QUEUED_BATCHES * rows)
        if first:
            self._intake.start()
            self._running = True
        log.info("learning", extra={"kv": {"model": str(self._learning.ref), "rows": self._learning.consumed_rows}})
        self._process.pulse.ready = True

    def _step(self) -> None:
        """What is due, and an update when everybody who steps together can make one.

        Raises:
            Broken: they are not together any more.
        """
        process = self._process
        enough, far = self._has_enough(), self._ranks.leads and self._far_ahead()
        if self._columns is None and not enough and not far:
            self._take(0.0 if self._fresh else TAKE_S if self._ranks.world == 1 else TAKE_TOGETHER_S)
        with process.metrics.timed("wait_group_seconds"):
            agreed = self._ranks.agree(ready=self._columns is not None, held=enough or far)
        self._fresh = False
        # from here on it is sure that everybody has made the update before: what is published will not be forgotten
        if self._ranks.leads:
            self._lead()
        if agreed.update:
            self._learn()
        elif enough:
            process.stop.wait(TAKE_S)  # the manager ends the run, or raises stop.rows
        elif far:
            # nobody can follow: what actors make meanwhile would be too old, and out of credit they wait
            with process.metrics.timed("wait_model_seconds"):
                process.stop.wait(LISTEN_S)

    def _lead(self) -> None:
        """Publish and save what is due."""
        self._publisher.require_life()
        due = 1 if self._rests else self._publish_every  # the last weights are published, whatever their version
        if self._learning.version - self._published >= due and self._publisher.wants():
            self._publish()
        # as ordered now: who led before may have saved what was ordered once
        if (wanted := self._member.wanted) > max(self._ordered, self._saved):
            self._ordered = wanted
            self._save(wanted)

    def _take(self, timeout_s: float) -> None:
        """The next batch, if there is one in time."""
        with self._process.metrics.timed("wait_data_seconds"):
            try:
                self._columns = self._intake.take(timeout_s)
            except LockStepError as fault:
                raise UserFault(str(fault)) from fault
        if self._columns is None:
            self._say_whom_it_waits_for()

    def _learn(self) -> None:
        started, self._tried = time.perf_counter(), True
        updated = self._learning.update(self._columns)
        self._tried, self._fresh = False, True
        self._ranks.made_update()
        self._reached = (self._learning.ref, self._learning.consumed_rows)
        if self._columns is None:
            self._intake.learned(self._learning.ref)
        else:
            self._done_with(self._columns)
            self._starved_since = time.monotonic()
        self._process.metrics.add("update_seconds", time.perf_counter() - started)
        self._count(updated)

    def _done_with(self, columns: Columns) -> None:
        """It was learned from."""
        valid = int(columns.fields["valid"].sum())
        self._process.metrics.add("consumed_rows", valid)
        self._process.metrics.add("unique_rows", valid)  # on-policy: nothing is learned from twice
        self._columns = None
        self._intake.give_back(columns, self._learning.ref)

    def close(self) -> None:
        """Save a last generation, tell the pools about the last weights, and stop."""
        self._ranks.close()
        unsaved = self._learning.consumed_rows > self._saved_rows or 0 < self._saved == self._generations.failed
        if self._running and unsaved and self._ranks.rank == 0:
            log.info("saving the last generation", extra={"kv": {"version": self._learning.version}})
            self._save(max(self._ordered, self._saved, self._member.checkpoint) + 1)
        if self._running and not self._generations.settle(LAST_GENERATION_S):
            log.error("the last generation was not saved within %g s", LAST_GENERATION_S)
        self._generations.close()
        self._publisher.close()
        self._intake.close()

    def _has_enough(self) -> bool:
        """So many rows were learned from that the run is done: every further update would be one too many."""
        limit, rows, rested = self._member.stop_rows, self._learning.consumed_rows, self._rests
        self._rests = 0 < limit <= rows
        self._process.metrics.set(RESTS, float(self._rests))
        if self._rests and not rested:
            log.info("learned from %d rows: no further update", rows)
        elif rested and not self._rests:
            log.info("stop conditions have changed: learning goes on")
            self._starved_since = time.monotonic()
        return self._rests

    def _far_ahead(self) -> bool:
        """The pools lack so many versions that experience would be stale before it is made."""
        reached = self._publisher.newest
        behind = self._learning.version - (reached.version if reached is not None else self._first_version)
        return self._waits_for_pools and behind >= self._most_ahead

    def _publish(self) -> None:
        self._published = self._learning.version
        self._publisher.put(self._learning.ref, self._learning.copied())

    def _save(self, number: int) -> None:
        with self._process.metrics.timed("checkpoint_seconds"):
            state = self._learning.capture()
        self._saved, self._saved_rows = number, self._learning.consumed_rows
        self._generations.save(Job(number, state, self._learning.ref, self._learning.consumed_rows, self._member.term))

    def _commit(self, commit: Commit) -> Said:
        return self._member.call(commit, Said, deadline_s=COMMIT_S)

    def _count(self, updated: Updated) -> None:
        metrics, leads = self._process.metrics, float(self._ranks.leads)
        metrics.add("updates", leads)  # that of all is one update
        metrics.set(ROWS, self._learning.consumed_rows)
        if not updated.finite:
            metrics.add("nonfinite", leads)
            log.warning("an update without a finite gradient was left out", extra={"kv": updated.values})
        for lag, count in zip(*np.unique(updated.lag_versions, return_counts=True), strict=True):
            metrics.observe("lag_versions", float(lag), int(count))
        for name, value in updated.values.items():
            if name == "lr":
                metrics.set(name, value)
            else:
                metrics.average(name if name == "grad_norm" else f"loss.{name}", value)

    def _say_whom_it_waits_for(self) -> None:
        now = time.monotonic()
        if now - self._starved_since < SAY_AGAIN_S or now - self._said < SAY_AGAIN_S:
            return
        self._said = now
        waits = round(now - self._starved_since)
        if self._lock_step is not None:
            unseen, behind = self._lock_step.missing()
            do = f"; {ROWS_OF_ALL}" if unseen else ""
            log.warning("no batch for %d s: lock-step waits for %d unseen streams, %s%s", waits, unseen, behind[:8], do)
        else:
            log.warning("no batch for %d s: %d rows are here", waits, self._intake.waiting_rows)


def most_ahead(max_lag_versions: int, publish_every_updates: int) -> int:
    """Versions that the learner may be ahead of the modelpools: half of the lag, the rest passes on the way back."""
    return max(max_lag_versions // 2, publish_every_updates, 1)


def streams_of(batch_rows: int, segment_steps: int) -> int:
    """Columns of a batch.

    Raises:
        UserFault: they do not come out even.
    """
    streams, rest = divmod(batch_rows, segment_steps)
    if rest:
        raise UserFault(
            f"algorithm.batch_rows {batch_rows} is not a multiple of algorithm.segment_steps {segment_steps}"
        )
    return streams
