"""The learner: experience in, weights out, generations on the way."""

from __future__ import annotations

import logging
import os
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from rlctl.spec import algorithms as specs
from rlctl.spec.layout import Layout
from rlctl_agents import algorithms
from rlctl_agents.acting.bootstrap import make_algorithm, seed_torch
from rlctl_agents.algorithms.base import Algorithm, AlgorithmError, Batch
from rlctl_agents.checkpoint.policy import describe
from rlctl_agents.experience.batching import LockStepError
from rlctl_agents.experience.sources import QUEUED_BATCHES, BatchSource, Needs, make_source
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
from rlctl_agents.training.checkpoint_writer import Checkpoints, Generations, NothingReadable, resume
from rlctl_agents.training.collective import Broken
from rlctl_agents.training.device import choose_device, compiles, require_device
from rlctl_agents.training.ranks import Ranks
from rlctl_agents.training.trainer import Diverged, Trainer, Updated, rows_of
from rlctl_agents.types.control import Commit, Lease, Said
from rlctl_agents.types.experience import Schema, schema_difference
from rlctl_agents.weights.publisher import Publication, Publisher, require_size
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
COUNTERS = ("consumed_rows", "unique_rows", "updates", "optimizer_steps", "nonfinite", "wait_model_seconds")
"""Told from the beginning."""

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


@dataclass
class _Hand:
    """The batch that is learned from next."""

    batch: Batch | None = None
    tried: bool = False  # to learn from it, when the group broke up
    fresh: bool = True  # an update was just made, or none: look at the others before waiting for a batch


@dataclass
class _Standing:
    """Progress of the role's own life."""

    placed: bool = False  # as often as there is a new place
    running: bool = False
    rests: bool = False  # it has learned from as many rows as it may


class _Hunger:
    """How long there was no batch, and how often that is said."""

    def __init__(self) -> None:
        self._since = self._said = time.monotonic()

    def fed(self) -> None:
        """There is a batch, or none is wanted."""
        self._since = time.monotonic()

    def say(self, source: BatchSource) -> None:
        """Log what the source waits for, now and then."""
        now = time.monotonic()
        if now - self._since < SAY_AGAIN_S or now - self._said < SAY_AGAIN_S:
            return
        self._said = now
        log.warning("no batch for %d s: %s", round(now - self._since), source.waits_for())


class Learner:
    """One policy's learner: wiring of what it learns from, what learns, and whom it tells."""

    def __init__(
        self, process: Process, wire: Wire, member: Member, lease: Lease, folder: Path, device: torch.device
    ) -> None:
        assert lease.experience is not None, "joined with needs_experience"
        self._process, self._member = process, member
        spec = process.spec
        policy = spec.policy_names[0]
        config, schema = spec.policy(policy).algorithm, lease.experience.schema
        seed_torch(spec.seed, "learner", lease.index)  # what is resumed from replaces it
        algorithm = make_algorithm(spec, policy, lease.experience.spaces, gpu=device.type == "cuda")
        self._streams = streams_of(config.batch_size, schema.unroll_length)
        self._trainer = Trainer(
            algorithm, policy=policy, lineage=lease.next_lineage, device=device, lock_step=spec.sync
        )
        require_size(policy, self._trainer.weights_bytes())
        try:
            resumed = resume(folder, lease.generations, self._trainer.restore)
        except NothingReadable as error:
            raise RuntimeError(str(error)) from error
        if resumed is not None:
            process.metrics.set(RESUMED, resumed.number)
        process.metrics.set(ROWS, self._trainer.consumed_rows)
        self._base = {BASE_ROWS: float(self._trainer.taken_rows)}
        self._reached = (self._trainer.ref, self._trainer.consumed_rows)  # replaced as a whole: reports read it
        self._receiver = ExperienceReceiver(
            wire,
            lease.bind["experience"],
            run=process.uid,
            boot=process.boot,
            schema=schema,
            budget_rows=config.budget_rows,
            term=lease.term,
            leased_since_s=lease.leased_since_s,
            batch_size=config.batch_size,
            queue_rows=0 if spec.sync else QUEUED_BATCHES * config.batch_size,
            check=ValueCheck(lease.experience.spaces, schema),
        )
        self._source = self._make_source(algorithm, schema, config, device)
        example = self._source.example() if compiles(spec, device) and lease.learners == 1 else None
        if example is not None:
            self._trainer.compile(example)  # before the first beat, after which a minute of silence is a fault
        publish_every = 1 if spec.sync else config.publish_every_updates
        self._publication = Publication(
            Publisher(
                wire,
                process.boot,
                pools=lambda: member.peers_of("modelpool"),
                term=lambda: member.term,
                every_version=spec.sync,
            ),
            every=publish_every,
            # lock-step waits by its nature, and what is replayed does not grow too old
            most_ahead=most_ahead(config.max_lag_versions, publish_every)
            if algorithm.on_policy and not spec.sync
            else None,
        )
        self._checkpoints = Checkpoints(
            Generations(
                folder,
                process.boot,
                describe(
                    self._trainer.ref,
                    self._trainer.consumed_rows,
                    lease.experience.spaces,
                    schema,
                    spec.policy(policy).model.model_dump(mode="json"),
                    config.model_dump(mode="json"),
                ),
                commit=self._commit,
                count=lambda seconds: process.metrics.add("checkpoint_seconds", seconds),
            ),
            self._trainer,
            saved=resumed.number if resumed is not None else 0,
            ordered=max((one.number for one in lease.generations), default=0),
        )
        process.metrics.declare("lag_versions", VERSIONS)
        for name in COUNTERS:
            process.metrics.add(name, 0.0)
        self._refusals = Refusals(
            process.metrics, lambda: dict(self._receiver.rejected), lambda: refused_connections(wire)
        )
        one_machine = process.arguments.bind in ("", "127.0.0.1", "::1")
        self._ranks = Ranks(process, member, self._trainer, device, one_machine=one_machine)
        self._hand, self._standing, self._hunger = _Hand(), _Standing(), _Hunger()

    def snapshot(self) -> Snapshot:
        """The books, for a report; called by another thread."""
        self._process.metrics.set("queue_rows", self._source.waiting_rows)
        self._refusals.count()
        self._process.metrics.set(FAILED_GENERATION, self._checkpoints.failed)
        model, rows = self._reached
        accounts, place = self._receiver.accounts, self._ranks.gauges
        if not self._ranks.placed:
            return Snapshot(accounts=accounts, gauges=place)
        if self._ranks.world > 1 and not self._standing.placed:  # the weights are the group's, what is told is not yet
            return Snapshot(accounts=accounts, gauges={**place, RANK: -1.0})
        base = {} if self._ranks.seeded else self._base
        return Snapshot(accounts=accounts, model=model, gauges={ROWS: float(rows), **base, **place})

    def run(self) -> None:
        """Learn until the process is asked to stop."""
        self._publication.start()
        self._checkpoints.start()
        while not self._process.stop.is_set():
            self.run_once()

    def run_once(self) -> None:
        """Whatever is due, then at most one update."""
        self._process.pulse.beat()
        self._receiver.term, self._receiver.leased_since_s = self._member.term, self._member.leased_since_s
        if not self._ranks.placed and not self._ranks.find_place():
            self._standing.placed = False
            return
        if not self._standing.placed:
            self._take_place()
        try:
            self._step()
        except Broken as error:
            self._standing.placed = False
            self._ranks.broken(error, updating=self._hand.tried)

    def close(self) -> None:
        """Save a last generation, tell the pools about the last weights, and stop."""
        self._ranks.close()
        if self._standing.running:
            if self._checkpoints.unsaved and self._ranks.rank == 0:
                log.info("saving the last generation", extra={"kv": {"version": self._trainer.version}})
                self._save(self._checkpoints.next_number(self._member.checkpoint))
            if not self._checkpoints.settle(LAST_GENERATION_S):
                log.error("the last generation was not saved within %g s", LAST_GENERATION_S)
        self._checkpoints.close()
        self._publication.close()
        self._source.close()

    def _make_source(
        self, algorithm: Algorithm, schema: Schema, config: specs.Algorithm, device: torch.device
    ) -> BatchSource:
        spec = self._process.spec
        needs = Needs(
            self._receiver, schema, config, algorithm, lambda: self._trainer.ref, device, self._streams,
            lock_step=spec.sync, seed=spec.seed,
        )  # fmt: skip
        try:
            return make_source(needs)
        except AlgorithmError as fault:
            raise UserFault(str(fault)) from fault

    def _take_place(self) -> None:
        """It has another place: its weights are those of the group now, and its part of a batch may be another."""
        hand, first = self._hand, not self._standing.running
        streams = self._ranks.share(self._streams)
        if hand.tried and hand.batch is not None and self._trainer.version == self._reached[0].version + 1:
            self._done_with(hand.batch, rows_of(hand.batch))  # the others finished that update
        hand.tried, hand.fresh = False, True
        self._reached = (self._trainer.ref, self._trainer.consumed_rows)
        self._standing.placed = True
        self._publication.begin(self._trainer.version, leads=self._ranks.leads)
        if not first or streams != self._streams:
            self._source.resize(streams)
        if first:
            self._source.start()
            self._standing.running = True
        log.info("learning", extra={"kv": {"model": str(self._trainer.ref), "rows": self._trainer.consumed_rows}})
        self._process.pulse.ready = True

    def _step(self) -> None:
        """What is due, and an update when everybody who steps together can make one.

        Raises:
            Broken: they are not together any more.
        """
        process, hand = self._process, self._hand
        enough, far = self._has_enough(), self._ranks.leads and self._publication.far_ahead(self._trainer.version)
        if hand.batch is None and not enough and not far:
            self._take(0.0 if hand.fresh else TAKE_S if self._ranks.world == 1 else TAKE_TOGETHER_S)
        with process.metrics.timed("wait_group_seconds"):
            agreed = self._ranks.agree(ready=hand.batch is not None, held=enough or far)
        hand.fresh = False
        # from here on it is sure that everybody has made the update before: what is published will not be forgotten
        if self._ranks.leads:
            self._lead()
        if agreed.update:
            self._learn()
        elif enough:
            process.stop.wait(TAKE_S)  # the manager ends the run, or raises stop.agent_steps
        elif far:
            # nobody can follow: what actors make meanwhile would be too old, and out of credit they wait
            with process.metrics.timed("wait_model_seconds"):
                process.stop.wait(LISTEN_S)

    def _lead(self) -> None:
        """Publish and save what is due."""
        # the last weights are published, whatever their version
        self._publication.publish(self._trainer.ref, self._trainer.copied, last=self._standing.rests)
        # as ordered now: who led before may have saved what was ordered once
        if self._checkpoints.wants(wanted := self._member.wanted):
            self._save(wanted)

    def _take(self, timeout_s: float) -> None:
        """The next batch, if there is one in time."""
        with self._process.metrics.timed("wait_data_seconds"):
            try:
                self._hand.batch = self._source.take(timeout_s)
            except LockStepError as fault:
                raise UserFault(str(fault)) from fault
        if self._hand.batch is None:
            self._hunger.say(self._source)

    def _learn(self) -> None:
        started, hand = time.perf_counter(), self._hand
        hand.tried, batch = True, hand.batch
        updated = self._trainer.update(batch)
        hand.tried, hand.fresh = False, True
        self._ranks.made_update()
        self._reached = (self._trainer.ref, self._trainer.consumed_rows)
        if batch is None:
            self._source.passed_by()
        else:
            if updated.priorities is not None:
                self._source.update_priorities(batch, updated.priorities)
            self._done_with(batch, updated.rows)
            self._hunger.fed()
        self._process.metrics.add("update_seconds", time.perf_counter() - started)
        self._count(updated)

    def _done_with(self, batch: Batch, rows: int) -> None:
        """It was learned from; so many agent steps of it were in no batch before."""
        self._process.metrics.add("consumed_rows", rows)
        self._process.metrics.add("unique_rows", rows)
        self._hand.batch = None
        self._source.give_back(batch)

    def _has_enough(self) -> bool:
        """So many rows were learned from that the run is done: every further update would be one too many."""
        limit, rows, rested = self._member.stop_rows, self._trainer.consumed_rows, self._standing.rests
        self._standing.rests = 0 < limit <= rows
        self._process.metrics.set(RESTS, float(self._standing.rests))
        if self._standing.rests and not rested:
            log.info("learned from %d rows: no further update", rows)
        elif rested and not self._standing.rests:
            log.info("stop conditions have changed: learning goes on")
            self._hunger.fed()
        return self._standing.rests

    def _save(self, number: int) -> None:
        with self._process.metrics.timed("checkpoint_seconds"):
            self._checkpoints.save(number, self._member.term)

    def _commit(self, commit: Commit) -> Said:
        return self._member.call(commit, Said, deadline_s=COMMIT_S)

    def _count(self, updated: Updated) -> None:
        metrics, leads = self._process.metrics, float(self._ranks.leads)
        metrics.add("updates", leads)  # that of all is one update
        metrics.add("optimizer_steps", leads * updated.steps)
        metrics.set(ROWS, self._trainer.consumed_rows)
        if not updated.finite:
            metrics.add("nonfinite", leads * updated.skipped)
            log.warning("an update without a finite gradient was left out", extra={"kv": updated.stats})
        for lag, count in zip(*np.unique(updated.lag_versions, return_counts=True), strict=True):
            metrics.observe("lag_versions", float(lag), int(count))
        for name, value in updated.stats.items():
            if name == "lr":
                metrics.set(name, value)
            else:
                metrics.average(name if name == "grad_norm" else f"loss.{name}", value)


def most_ahead(max_lag_versions: int, publish_every_updates: int) -> int:
    """Versions that the learner may be ahead of the modelpools: half of the lag, the rest passes on the way back."""
    return max(max_lag_versions // 2, publish_every_updates, 1)


def streams_of(batch_size: int, unroll_length: int) -> int:
    """Columns of a batch.

    Raises:
        UserFault: they do not come out even.
    """
    streams, rest = divmod(batch_size, unroll_length)
    if rest:
        raise UserFault(
            f"algorithm.batch_size {batch_size} is not a multiple of algorithm.unroll_length {unroll_length}"
        )
    return streams
