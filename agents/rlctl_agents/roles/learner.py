"""The learner: takes batches of experience, publishes weights, saves generations."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from msgspec import structs

from rlctl.spec import algorithms as specs
from rlctl.spec.layout import Layout
from rlctl_agents import algorithms
from rlctl_agents.acting.bootstrap import make_algorithm, seed_torch
from rlctl_agents.algorithms.base import Algorithm, AlgorithmError, Batch
from rlctl_agents.checkpoint.parts import WAY_OUT, PartError
from rlctl_agents.checkpoint.policy import PolicyFile, describe, pack_policy
from rlctl_agents.checkpoint.state import StateError
from rlctl_agents.experience.batching import LockStepError
from rlctl_agents.experience.sources import QUEUED_BATCHES, BatchSource, Needs, make_source
from rlctl_agents.experience.validation import ValueCheck
from rlctl_agents.policies.initial import NotInitial, begin_from
from rlctl_agents.policies.loaded import DESCRIPTION
from rlctl_agents.runtime.gauges import BASE_ROWS, FAILED_GENERATION, LEARNED, RANK, RESTS, RESUMED, RESUMING, STEPS
from rlctl_agents.runtime.health import UPDATE_S
from rlctl_agents.runtime.manager_session import ManagerSession, Snapshot
from rlctl_agents.runtime.metrics import VERSIONS, Metrics
from rlctl_agents.runtime.process import (
    STOP_S,
    Process,
    Refusals,
    UserFault,
    as_users_fault,
    open_wire,
    refused_connections,
)
from rlctl_agents.training.checkpoint_writer import CheckpointWriter, Job, NothingReadable, resume
from rlctl_agents.training.collective import GroupBroken
from rlctl_agents.training.device import choose_device, compiles, require_device
from rlctl_agents.training.ranks import Ranks
from rlctl_agents.training.trainer import Diverged, Trainer, Updated
from rlctl_agents.types.control import Commit, Experience, Generation, Lease, Reply
from rlctl_agents.types.experience import Schema, schema_difference
from rlctl_agents.weights.publisher import Publisher, require_size
from rlctl_agents.wire.experience import ExperienceReceiver
from rlctl_agents.wire.log_throttle import EVERY_S, LogThrottle
from rlctl_agents.wire.rpc.client import RemoteError
from rlctl_agents.wire.sockets import Wire

TAKE_S = 0.1
"""Longest wait for a batch, between two checks of orders and the stop flag."""
TAKE_TOGETHER_S = 0.02
"""The same between two votes of learners that step together."""
LAST_GENERATION_S = 6.0
"""Longest wait for the last generation, out of the ten seconds of an orderly stop; what `--grace` gives beyond them is
for writing it."""
COMMIT_S = 3.0
AGAIN_S = 0.5
"""Time between two polls whether a generation is committed."""
LISTEN_S = 0.01
"""Time between two checks whether the modelpool has caught up."""
AWAIT_S = 0.5
"""Time between two checks whether the policy that the run begins with is there."""
HELLO_S = 1.0
"""Time between two hellos that say which segments this learner reads."""
COUNTERS = ("consumed_steps", "learned_steps", "updates", "optimizer_steps", "nonfinite", "wait_model_seconds")
"""Counters that are reported from the beginning, as 0."""

log = logging.getLogger(__name__)


def main(process: Process) -> None:
    """Learn until asked to stop.

    Raises:
        UserFault: device, algorithm or network cannot be had as the spec asks.
        Diverged: losses or gradients are not finite any more.
    """
    process.explained, process.pulse.silent_s = (Diverged, PartError), UPDATE_S
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    if process.arguments.volume is None:
        raise UserFault("command line: a learner needs --volume, for its generations")
    require_device(process.spec)
    with ExitStack() as stack:
        wire = open_wire(process.arguments)
        stack.callback(wire.close)
        session = ManagerSession(process, wire)
        lease = join(process, session)
        if lease is None:
            return
        stack.callback(session.close)
        device = choose_device(process.spec, lease.index, lease.learners)
        process.metrics.set(RESUMING, 1.0)
        if lease.learners > 1:
            process.metrics.set(RANK, -1.0)  # the generation that it reads may be older than the others' weights
        session.start(Snapshot)  # reading a large generation takes longer than a lease outlives silence
        layout = Layout(process.arguments.volume)
        if not lease.generations and not await_init(process, layout):
            return
        learner = Learner(process, wire, session, lease, layout, device)
        stack.callback(learner.close)
        process.metrics.set(RESUMING, 0.0)
        session.snapshot = learner.snapshot
        learner.run()
        if session.moved:
            raise RuntimeError(session.moved)


def join(process: Process, session: ManagerSession) -> Lease | None:
    """A lease whose experience fits; None when asked to stop meanwhile.

    After a change of the spec or of the code, actors before the change may still live: the schema of this learner
    counts.

    Raises:
        UserFault: the algorithm cannot be found, or does not fit the spaces.
    """
    wanted = None
    while (lease := session.join(wanted, needs_experience=True)) is not None:
        assert lease.experience is not None
        with as_users_fault(AlgorithmError):
            own = algorithms.schema_of(process.spec, lease.experience.spaces, process.spec.policy_names[0])
        if not (difference := schema_difference(own, lease.experience.schema)):
            return lease
        log.info("reading %s: actors of another spec or release are refused from now on", difference)
        wanted = structs.replace(lease.experience, schema=own)
        process.stop.wait(HELLO_S)
    return None


def await_init(process: Process, layout: Layout) -> bool:
    """Wait for the policy that the run begins with, which `rlctl up` brings; False when asked to stop meanwhile."""
    throttle = LogThrottle()
    while process.spec.init is not None and not (layout.init / DESCRIPTION).is_file():
        if throttle.due("init"):
            log.info("waiting for the policy of init.run %s: `rlctl up` brings it", process.spec.init.run)
        if process.stop.wait(AWAIT_S):
            return False
    return True


@dataclass
class _NextBatch:
    """Next batch to learn from, and the state of its update."""

    batch: Batch | None = None
    tried: bool = False  # an update from it has begun, and has not ended
    fresh: bool = True  # an update was just made, or none ever: vote before waiting for a batch


@dataclass
class _Progress:
    """Flags of the learner's progress."""

    placed: bool = False  # it has begun at its present place in the group
    running: bool = False
    rests: bool = False  # it has learned from as many agent steps as it may
    asks: bool = True  # poll on whether a generation that waits for the replay's parts is committed


class _Starvation:
    """Time without a batch, logged now and then."""

    def __init__(self) -> None:
        self._since, self._throttle = time.monotonic(), LogThrottle()

    def fed(self) -> None:
        """Restart the time: there is a batch, or none is wanted."""
        self._since = time.monotonic()

    def say(self, source: BatchSource) -> None:
        """Log what the source waits for, now and then."""
        hungry_s = time.monotonic() - self._since
        if hungry_s >= EVERY_S and self._throttle.due("no batch"):
            log.warning("no batch for %d s: %s", round(hungry_s), source.waits_for())


@runtime_checkable
class Metered(Protocol):
    """A source with metrics of its own."""

    def measure(self, metrics: Metrics) -> None:
        """Bring its metrics up to date; called by the reporting thread alone."""


class Learner:
    """One policy's learner: wires up the batch source, the trainer, the publisher and the manager's session."""

    def __init__(
        self, process: Process, wire: Wire, session: ManagerSession, lease: Lease, layout: Layout, device: torch.device
    ) -> None:
        assert lease.experience is not None, "joined with needs_experience"
        self._process, self._session = process, session
        spec = process.spec
        policy = spec.policy_names[0]
        config, schema = spec.policy(policy).algorithm, lease.experience.schema
        seed_torch(spec.seed, "learner", lease.index)  # a resumed state replaces it
        algorithm = make_algorithm(spec, policy, lease.experience.spaces, gpu=device.type == "cuda")
        replayed = config.needs_replay  # batches are drawn from a replay: rows or sequences, not segments
        self._streams = (
            config.batch_size // config.unit_rows
            if isinstance(config, specs.Replayed)
            else streams_of(config.batch_size, schema.unroll_length)
        )
        self._trainer = Trainer(
            algorithm, policy=policy, lineage=lease.next_lineage, device=device, lock_step=spec.sync
        )
        require_size(policy, self._trainer.weights_bytes())
        resumed = self._resumed(algorithm, lease, layout)
        # rows that a replay has taken are consumed, whatever becomes of the weights
        self._base = {} if replayed else {BASE_ROWS: float(self._trainer.taken_rows)}
        self._reached = self._trainer.reached  # replaced as a whole: reports read it
        self._receiver = self._make_receiver(wire, lease, lease.experience, config)
        self._source = self._make_source(wire, algorithm, schema, config, device)
        if compiles(spec, device) and lease.learners == 1:
            self._compile(algorithm, config)  # before the first beat, after which silence is a fault
        described = describe(
            self._trainer.ref,
            self._trainer.consumed_steps,
            lease.experience.spaces,
            schema,
            spec.policy(policy).model.model_dump(mode="json"),
            config.model_dump(mode="json"),
        )
        self._publisher = self._make_publisher(wire, algorithm, config, pack_policy(described))
        self._checkpoints = self._make_checkpoints(lease, layout, described, resumed)
        process.metrics.declare("lag_versions", VERSIONS)
        for name in COUNTERS:
            process.metrics.add(name, 0.0)
        self._refusals = Refusals(
            process.metrics, lambda: dict(self._receiver.rejected), lambda: refused_connections(wire)
        )
        one_machine = process.arguments.bind in ("", "127.0.0.1", "::1")
        self._ranks = Ranks(process, session, self._trainer, device, one_machine=one_machine)
        self._next, self._progress, self._starvation = _NextBatch(), _Progress(), _Starvation()

    def snapshot(self) -> Snapshot:
        """Snapshot for a report; called by the reporting thread."""
        self._process.metrics.set("queue_rows", self._source.waiting_rows)
        if isinstance(self._source, Metered):
            self._source.measure(self._process.metrics)
        self._refusals.count()
        self._process.metrics.set(FAILED_GENERATION, self._checkpoints.failed)
        rests = float(self._progress.rests)  # before the weights: one that rests has made its last update
        reached = self._reached
        accounts, place = self._receiver.accounts, self._ranks.gauges
        if not self._ranks.placed:
            return Snapshot(accounts=accounts, gauges=place)
        if self._ranks.world > 1 and not self._progress.placed:  # the weights are the group's, the figures not yet
            return Snapshot(accounts=accounts, gauges={**place, RANK: -1.0})
        base = {} if self._ranks.seeded else self._base
        told = {STEPS: float(reached.consumed), LEARNED: float(reached.learned), RESTS: rests, **base, **place}
        return Snapshot(accounts=accounts, model=reached.ref, gauges=told)

    def run(self) -> None:
        """Learn until the process is asked to stop.

        Raises:
            Diverged: losses or gradients are not finite any more.
        """
        self._publisher.start()
        self._checkpoints.start()
        try:
            while not self._process.stop.is_set():
                self.run_once()
        except Diverged:  # a last generation would take the place of one from which a learner can go on
            self._progress.running = False
            raise

    def run_once(self) -> None:
        """Do what is due, then at most one update."""
        self._process.pulse.beat()
        self._receiver.term, self._receiver.leased_since_s = self._session.term, self._session.leased_since_s
        if not self._ranks.placed and not self._ranks.find_place():
            self._progress.placed = False
            return
        if not self._progress.placed:
            self._take_place()
        try:
            self._step()
        except GroupBroken as error:
            self._progress.placed = False
            self._ranks.broken(error, updating=self._next.tried)

    def close(self) -> None:
        """Save a last generation, and stop."""
        self._ranks.close()
        if self._progress.running:
            if self._checkpoints.unsaved(self._trainer.version) and self._ranks.saves:
                log.info("saving the last generation", extra={"kv": {"version": self._trainer.version}})
                self._save(self._checkpoints.next_number(self._session.checkpoint))
            if not self._checkpoints.settle(LAST_GENERATION_S):
                self._progress.asks = False
                more_s = self._process.arguments.grace - STOP_S
                if self._checkpoints.settle(2.0 * AGAIN_S + more_s):
                    log.info("the last generation is the manager's to commit, once a replay's parts are there")
                else:
                    log.error("the last generation was not saved within %g s", LAST_GENERATION_S + more_s)
        self._checkpoints.close()
        self._publisher.close()
        self._source.close()

    def _resumed(self, algorithm: Algorithm, lease: Lease, layout: Layout) -> Generation | None:
        """Load the newest generation, else the policy that the run begins with; returns that generation."""
        process, spec = self._process, self._process.spec
        # random numbers are those of rank 0: with the same ones, learners would draw the same noise
        restore = self._trainer.take_over if lease.index else self._trainer.restore
        resumed = go_on(layout.checkpoints, lease.generations, restore)
        if resumed is not None:
            process.metrics.set(RESUMED, resumed.number)
        elif spec.init is not None:
            with as_users_fault(NotInitial):
                begun = begin_from(layout.init, algorithm, spec.init)
                log.info("begins with the weights of %s, version %d", spec.init.run, begun.version)
        if resumed is not None or spec.init is not None:
            algorithm.begun()
        process.metrics.set(STEPS, self._trainer.consumed_steps)
        return resumed

    def _make_receiver(
        self, wire: Wire, lease: Lease, experience: Experience, config: specs.Algorithm
    ) -> ExperienceReceiver:
        process = self._process
        return ExperienceReceiver(
            wire,
            lease.bind["experience"],
            run=process.uid,
            boot=process.boot,
            schema=experience.schema,
            budget_rows=config.budget_rows,
            term=lease.term,
            leased_since_s=lease.leased_since_s,
            batch_size=config.batch_size,
            queue_rows=0 if process.spec.sync else QUEUED_BATCHES * config.batch_size,
            check=ValueCheck(experience.spaces, experience.schema),
        )

    def _make_source(
        self, wire: Wire, algorithm: Algorithm, schema: Schema, config: specs.Algorithm, device: torch.device
    ) -> BatchSource:
        spec = self._process.spec
        needs = Needs(
            self._receiver, schema, config, algorithm, lambda: self._trainer.ref, device, self._streams,
            lock_step=spec.sync, seed=spec.seed, shards=lambda: self._session.peers_of("replay"), wire=wire,
            boot=self._process.boot,
        )  # fmt: skip
        with as_users_fault(AlgorithmError):
            return make_source(needs)

    def _make_publisher(self, wire: Wire, algorithm: Algorithm, config: specs.Algorithm, policy: bytes) -> Publisher:
        session, sync = self._session, self._process.spec.sync
        publish_every = 1 if sync else config.publish_every_updates
        return Publisher(
            wire,
            self._process.boot,
            pools=lambda: session.peers_of("modelpool"),
            term=lambda: session.term,
            policy=policy,
            every_version=sync,
            every=publish_every,
            # lock-step waits by its nature, and replayed rows do not grow too old
            most_ahead=most_ahead(config.max_lag_versions, publish_every) if algorithm.on_policy and not sync else None,
        )

    def _make_checkpoints(
        self, lease: Lease, layout: Layout, described: PolicyFile, resumed: Generation | None
    ) -> CheckpointWriter:
        return CheckpointWriter(
            layout.checkpoints,
            self._process.boot,
            described,
            commit=self._commit,
            count=lambda seconds: self._process.metrics.add("checkpoint_seconds", seconds),
            resumed=resumed.number if resumed is not None else 0,
            ordered=max((one.number for one in lease.generations), default=0),
            version=self._trainer.version,
        )

    def _compile(self, algorithm: Algorithm, config: specs.Algorithm) -> None:
        """Compile the loss, or say why not."""
        example = self._source.example()
        if example is None:
            log.info("the loss is not compiled: batches are drawn from a replay, or by code of your own")
        elif isinstance(config, specs.Clipped) and getattr(algorithm.net, "core", None) is None:
            log.info("the loss is not compiled: minibatches have as many rows as are valid, none of them the same")
        else:
            self._trainer.compile(example)

    def _take_place(self) -> None:
        """Begin at a new place: the weights are the group's now, and the share of a batch may have changed."""
        following, first = self._next, not self._progress.running
        streams = self._ranks.share(self._streams)
        if following.tried and following.batch is not None and self._trainer.version == self._reached.ref.version + 1:
            self._done_with(following.batch, following.batch.books.rows)  # the others finished that update
        following.tried, following.fresh = False, True
        self._reached = self._trainer.reached
        self._progress.placed = True
        self._publisher.begin(self._trainer.version, leads=self._ranks.leads)
        self._source.leads = self._ranks.leads
        if not first or streams != self._streams:
            self._source.resize(streams)
        if first:
            self._source.start()
            self._progress.running = True
        log.info("learning", extra={"kv": {"model": str(self._trainer.ref), "steps": self._trainer.consumed_steps}})
        self._process.pulse.ready = True

    def _step(self) -> None:
        """Do what is due, and update when all learners that step together can.

        Raises:
            GroupBroken: the group is over.
        """
        process, following = self._process, self._next
        enough, far = self._has_enough(), self._ranks.leads and self._publisher.far_ahead(self._trainer.version)
        if following.batch is None and not enough and not far:
            self._take(0.0 if following.fresh else TAKE_S if self._ranks.world == 1 else TAKE_TOGETHER_S)
        with process.metrics.timed("wait_group_seconds"):
            agreed = self._ranks.agree(ready=following.batch is not None, held=enough or far)
        following.fresh = False
        # every member has made the update before, for it has voted since: what is published now cannot be lost again
        if self._ranks.leads:
            self._lead()
        if agreed.update:
            self._learn()
        elif enough:
            process.stop.wait(TAKE_S)  # the manager ends the run, or raises stop.agent_steps
        elif far:
            # the pools cannot follow: segments made meanwhile would be too old; without credit the actors wait
            with process.metrics.timed("wait_model_seconds"):
                process.stop.wait(LISTEN_S)

    def _lead(self) -> None:
        """Publish and save what is due."""
        # the last weights are published, whatever their version
        self._publisher.publish(self._trainer.ref, self._trainer.copied, last=self._progress.rests)
        # as ordered now: the rank 0 of an earlier group may have saved an older order
        if self._checkpoints.wants(wanted := self._session.wanted):
            self._save(wanted)

    def _take(self, timeout_s: float) -> None:
        """Take the next batch, if there is one in time."""
        with self._process.metrics.timed("wait_data_seconds"), as_users_fault(LockStepError):
            self._next.batch = self._source.take(timeout_s)
        if self._next.batch is None:
            self._starvation.say(self._source)

    def _learn(self) -> None:
        started, following = time.perf_counter(), self._next
        following.tried, batch = True, following.batch
        updated = self._trainer.update(batch)
        following.tried, following.fresh = False, True
        self._ranks.made_update()
        self._reached = self._trainer.reached
        if batch is None:
            self._source.passed_by()
        else:
            if updated.priorities is not None:
                self._source.update_priorities(batch, updated.priorities)
            self._done_with(batch, updated.rows)
            self._starvation.fed()
        self._process.metrics.add("update_seconds", time.perf_counter() - started)
        self._count(updated)

    def _done_with(self, batch: Batch, steps: int) -> None:
        """Give back a batch that was learned from; `steps` of its agent steps were in no batch before."""
        self._process.metrics.add("consumed_steps", steps)
        self._next.batch = None
        self._source.give_back(batch)

    def _has_enough(self) -> bool:
        """True if as many agent steps were learned from as the run allows: a further update would exceed the limit."""
        limit, steps, rested = self._session.stop_steps, self._trainer.consumed_steps, self._progress.rests
        self._progress.rests = 0 < limit <= steps
        self._process.metrics.set(RESTS, float(self._progress.rests))
        if self._progress.rests and not rested:
            log.info("learned from %d agent steps: no further update", steps)
        elif rested and not self._progress.rests:
            log.info("stop conditions have changed: learning goes on")
            self._starvation.fed()
        return self._progress.rests

    def _save(self, number: int) -> None:
        trainer = self._trainer
        with self._process.metrics.timed("checkpoint_seconds"):
            state = trainer.capture()
            self._checkpoints.save(Job(number, state, trainer.ref, trainer.consumed_steps, self._session.term))

    def _commit(self, commit: Commit) -> Reply:
        """Ask the manager to commit, until it has decided: the parts of a replay take longer. Called by the writer."""
        try:
            said = self._session.call(commit, Reply, deadline_s=COMMIT_S)
            while said.again and self._progress.asks:
                time.sleep(AGAIN_S)
                said = self._session.call(commit, Reply, deadline_s=COMMIT_S)
        except (TimeoutError, RemoteError):
            raise
        except Exception as error:  # no socket is left: the thread that writes lives on, for the next generation
            raise RemoteError(f"the manager cannot be asked: {type(error).__name__}: {error}") from error
        return said

    def _count(self, updated: Updated) -> None:
        metrics, leads = self._process.metrics, float(self._ranks.leads)
        metrics.add("updates", leads)  # one update of all learners counts once
        metrics.add("optimizer_steps", leads * updated.steps)
        metrics.add("learned_steps", leads * updated.learned)
        metrics.set(STEPS, self._trainer.consumed_steps)
        if not updated.finite:
            metrics.add("nonfinite", leads * updated.skipped)
            made = updated.skipped + updated.steps
            log.warning(
                "%d of %d optimizer steps had no finite gradient and were left out", updated.skipped, made,
                extra={"kv": updated.stats},
            )  # fmt: skip
        for lag, count in zip(*np.unique(updated.lag_versions, return_counts=True), strict=True):
            # rows of a replay may be of versions that a learner which was killed has lost
            metrics.observe("lag_versions", max(float(lag), 0.0), int(count))
        for name, value in updated.scheduled.items():
            metrics.set(name, value)
        for name, value in updated.stats.items():
            metrics.average(name if name == "grad_norm" else f"loss.{name}", value)


def go_on(checkpoints: Path, generations: Iterable[Generation], restore: Callable[[bytes], str]) -> Generation | None:
    """Resume from the newest generation that can be read; None: the run has none yet. Arguments as of `resume`.

    Raises:
        UserFault: the state of one does not fit this network, and no other could be read: a restart would end alike.
        RuntimeError: there are some, and all are damaged.
        PartError: the volume refuses to be read, for minutes.
    """
    refused = False

    def checked(state: bytes) -> str:
        nonlocal refused
        try:
            return restore(state)
        except StateError:
            refused = True
            raise

    try:
        return resume(checkpoints, generations, checked)
    except PartError as error:
        raise PartError(f"{error}; {WAY_OUT}") from error
    except NothingReadable as error:
        if refused:
            raise UserFault(f"{error}, or undo what has changed its observations, actions or network") from error
        raise RuntimeError(str(error)) from error


def most_ahead(max_lag_versions: int, publish_every_updates: int) -> int:
    """Versions that the learner may be ahead of the modelpools: half of the lag; segments in flight take the rest."""
    return max(max_lag_versions // 2, publish_every_updates, 1)


def streams_of(batch_size: int, unroll_length: int) -> int:
    """Columns (streams) of a batch.

    Raises:
        UserFault: the batch size is not a multiple of the segment's rows.
    """
    streams, rest = divmod(batch_size, unroll_length)
    if rest:
        raise UserFault(
            f"algorithm.batch_size {batch_size} is not a multiple of algorithm.unroll_length {unroll_length}"
        )
    return streams
