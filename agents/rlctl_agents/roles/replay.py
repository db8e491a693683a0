"""The replay: a shard of the actors' experience, from which learners draw."""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from rlctl.spec.algorithms import Replayed
from rlctl.spec.layout import Layout
from rlctl.spec.machine import left_bytes
from rlctl.spec.problems.replay import shortage
from rlctl.spec.schema import Spec
from rlctl_agents.checkpoint.parts import PartError
from rlctl_agents.experience.replay import memory
from rlctl_agents.experience.replay.messages import Draw
from rlctl_agents.experience.replay.saving import TELL_S, ShardSaver, restore_newest
from rlctl_agents.experience.replay.server import Inserter, SharedShard
from rlctl_agents.experience.replay.shard import Shard
from rlctl_agents.experience.validation import ValueCheck
from rlctl_agents.runtime.gauges import RESUMING, UNREADABLE
from rlctl_agents.runtime.manager_session import ManagerSession, Snapshot
from rlctl_agents.runtime.metrics import Metrics
from rlctl_agents.runtime.process import Process, Refusals, UserFault, open_wire, refused_connections
from rlctl_agents.types.control import Lease, Reply
from rlctl_agents.types.experience import Schema
from rlctl_agents.wire.classes import REPLAY
from rlctl_agents.wire.experience import ExperienceReceiver
from rlctl_agents.wire.log_throttle import LogThrottle
from rlctl_agents.wire.rpc.server import RpcServer
from rlctl_agents.wire.sockets import Wire

SERVE_S = 0.1
QUEUE_BYTES = 1 << 26
"""Bytes of blocks that have come, or may come, before they are inserted."""
LEAST_BUDGET, MOST_BUDGET = 256, 8192
"""Rows that may be on their way, fewer where they come to more than QUEUE_BYTES, and a block of each actor in any case:
it holds the credit for a block while it makes it. Where inserting waits for learners, no more is granted while
LEAST_BUDGET rows wait: what waits was chosen by weights that are old by then."""

SCHEMA_S = 0.5
"""Timeout of the question which experience the run has by now: learners wait meanwhile."""
QUIET_S, LEAVES_S = 0.5, 3.0
"""Time without a draw, and in all, before a shard that was told to stop answers no more."""

log = logging.getLogger(__name__)


def main(process: Process) -> None:
    """Store and draw until asked to stop.

    Raises:
        UserFault: the spec's replay does not fit this machine.
    """
    process.explained = (PartError,)
    policy = process.spec.policy_names[0]
    config = process.spec.policy(policy).algorithm
    assert isinstance(config, Replayed), "the spec has a replay for an algorithm that learns from one"
    with ExitStack() as stack:
        wire = open_wire(process.arguments)
        stack.callback(wire.close)
        session = ManagerSession(process, wire)
        lease = session.join(needs_experience=True)
        if lease is None:
            return
        stack.callback(session.close)
        assert lease.experience is not None, "joined with needs_experience"
        shared, size = make_shard(process, lease, config)
        folder = checkpoint_folder(process)
        if folder is not None:
            restore_part(process, session, lease, shared, folder)
        receiver = make_receiver(process, wire, lease, size)

        def lead() -> None:
            receiver.term, receiver.leased_since_s = session.term, session.leased_since_s

        inserter = Inserter(shared, receiver, lead)
        stack.callback(inserter.close)
        kept = memory.DRAWS_BYTES + size.draws_bytes
        server = RpcServer(wire, lease.bind["rpc"], process.boot, {Draw: shared.draw}, REPLAY, remembers=kept)
        stack.callback(server.close)
        refusals = Refusals(
            process.metrics, lambda: dict(receiver.rejected), lambda: server.rejected, lambda: refused_connections(wire)
        )

        def told() -> Snapshot:
            return Snapshot(accounts=receiver.accounts, gauges=shared.gauges())

        saver = None
        if folder is not None:
            saver = ShardSaver(
                shared, folder, policy=policy, index=lease.index, boot=process.boot,
                tell=lambda part, going: session.call(part, Reply, deadline_s=TELL_S, keep_waiting=going),
                count=lambda seconds, size: count_saved(process.metrics, seconds, size),
            )  # fmt: skip
            stack.callback(saver.close)
            session.snapshot = told
        else:
            session.start(told)
        inserter.start()
        kv = {"capacity": size.capacity, "bytes_of_a_row": size.row_bytes, "bytes": size.total_bytes}
        log.info("storing", extra={"kv": kv | {"shards": lease.shards}})
        process.pulse.ready = True
        watch = SchemaWatch(session, receiver, lease.experience.schema)
        while not process.stop.is_set():
            process.pulse.beat()
            server.serve(SERVE_S)
            inserter.require_life()
            refusals.count()
            watch.require_same()
            if saver is not None:
                saver.obey(session.wanted, session.term)
        if session.moved:
            raise RuntimeError(session.moved)
        answer_last(server)


class ShardSize(NamedTuple):
    """Size of a shard and of its draws, and the ratio of rows drawn to rows inserted."""

    capacity: int  # rows
    row_bytes: int
    total_bytes: int
    draws_bytes: int  # beyond `memory.DRAWS_BYTES`
    ratio: float  # 0: no limit


def make_shard(process: Process, lease: Lease, config: Replayed) -> tuple[SharedShard, ShardSize]:
    """Make the empty shard of a lease.

    Raises:
        UserFault: it does not fit this machine.
    """
    spec, shards, experience = process.spec, lease.shards, lease.experience
    assert spec.replay is not None
    assert experience is not None
    schema, settings, capacity = experience.schema, memory.shard_settings(config), memory.shard_capacity(spec, shards)
    ratio = memory.samples_per_insert(spec, config, experience.spaces)
    needs, draws = Shard.bytes_for(schema, settings, capacity), memory.draws_bytes(config, schema)
    require_memory(spec, needs, left_bytes(), shards, draws)
    shard = Shard(schema, settings, capacity=capacity, seed=spec.seed + lease.index)
    starts = spec.replay.learning_starts
    shared = SharedShard(
        shard, process.boot, starts=starts, share=-(-starts // shards), ratio=ratio, metrics=process.metrics
    )
    return shared, ShardSize(capacity, max(1, needs // capacity), needs, draws, ratio)


def checkpoint_folder(process: Process) -> Path | None:
    """Folder of checkpoints; None: the replay is not saved.

    Raises:
        UserFault: it is to be saved, and the command line names no volume.
    """
    replay, volume = process.spec.replay, process.arguments.volume
    if replay is None or replay.checkpoint != "full":
        return None
    if volume is None:
        raise UserFault("command line: a replay that is saved needs --volume")
    return Layout(volume).checkpoints


def restore_part(process: Process, session: ManagerSession, lease: Lease, shared: SharedShard, folder: Path) -> None:
    """Restore the shard's part of the newest generation, and begin to report.

    Raises:
        PartError: the file system refuses to read one.
    """
    process.metrics.set(RESUMING, 1.0)
    session.start(Snapshot)  # reading takes longer than a lease outlives silence
    found = restore_newest(shared, folder, lease.generations, index=lease.index, shards=lease.shards)
    process.metrics.set(RESUMING, 0.0)
    process.metrics.set(UNREADABLE, float(found.unreadable))


def make_receiver(process: Process, wire: Wire, lease: Lease, size: ShardSize) -> ExperienceReceiver:
    """Make the receiver of the actors' blocks, with a budget of rows within QUEUE_BYTES."""
    experience, most_rows = lease.experience, max(1, QUEUE_BYTES // size.row_bytes)
    assert experience is not None
    budget_rows = min(LEAST_BUDGET if size.ratio else MOST_BUDGET, most_rows)
    return ExperienceReceiver(
        wire, lease.bind["experience"], run=process.uid, boot=process.boot, schema=experience.schema,
        budget_rows=budget_rows, queue_rows=budget_rows if size.ratio else 0, most_rows=most_rows,
        term=lease.term, leased_since_s=lease.leased_since_s, check=ValueCheck(experience.spaces, experience.schema),
    )  # fmt: skip


class SchemaWatch:
    """Watch for a change of the run's experience, which shows in segments of another form."""

    def __init__(self, session: ManagerSession, receiver: ExperienceReceiver, schema: Schema) -> None:
        self._session, self._receiver, self._schema = session, receiver, schema
        self._throttle, self._misfits = LogThrottle(), 0

    def require_same(self) -> None:
        """Ask the manager, if more such segments have come.

        Raises:
            RuntimeError: the run has another experience than this shard.
        """
        rejected = self._receiver.rejected
        if rejected.get("schema", 0) > self._misfits and self._throttle.due("schema"):
            self._misfits = rejected["schema"]
            now = self._session.agreed_experience(SCHEMA_S)
            if now is not None and now.schema != self._schema:
                # the spec has changed, and this shard had joined before the last actor of the old spec was gone
                raise RuntimeError("actors send segments of another form by now: this shard begins anew")


def answer_last(server: RpcServer) -> None:
    """Answer draws until none has come for QUIET_S: within two reports, learners hear that this shard leaves. A
    learner without a reply would stand still until its timeout."""
    began = asked = time.monotonic()
    while (now := time.monotonic()) - asked < QUIET_S and now - began < LEAVES_S:
        if server.serve(SERVE_S):
            asked = now


def count_saved(metrics: Metrics, seconds: float, size: int) -> None:
    """Record a saved part of a generation in the metrics: seconds that it took, and its bytes."""
    metrics.add("checkpoint_seconds", seconds)
    metrics.set("checkpoint_bytes", size)
    metrics.set(UNREADABLE, 0.0)  # the shard's rows are in a readable part again


def require_memory(spec: Spec, needs: int, left: int, shards: int, draws: int = 0) -> None:
    """Check that a shard can be filled: the kernel gives it page by page, as rows come, and would end this process
    hours later.

    Raises:
        UserFault: there is too little memory left.
    """
    if why := shortage(spec, needs, left, shards, draws):
        raise UserFault(why)
