"""The replay: a shard of the actors' experience, from which learners draw."""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack

from rlctl.spec.algorithms import Replayed
from rlctl.spec.layout import Layout
from rlctl.spec.machine import left_bytes
from rlctl.spec.problems.replay import shortage
from rlctl.spec.schema import Spec
from rlctl_agents.checkpoint.parts import PartError
from rlctl_agents.experience.replay.memory import (
    DRAWS_BYTES,
    draws_bytes,
    samples_per_insert,
    shard_capacity,
    shard_settings,
)
from rlctl_agents.experience.replay.messages import Draw
from rlctl_agents.experience.replay.saving import TELL_S, ShardSaver, restore_newest
from rlctl_agents.experience.replay.server import Inserter, SharedShard
from rlctl_agents.experience.replay.shard import Shard
from rlctl_agents.experience.validation import ValueCheck
from rlctl_agents.runtime.manager_session import ManagerSession, Snapshot
from rlctl_agents.runtime.metrics import Metrics
from rlctl_agents.runtime.process import (
    RESUMING,
    UNREADABLE,
    Process,
    Refusals,
    UserFault,
    open_wire,
    refused_connections,
)
from rlctl_agents.types.control import Reply
from rlctl_agents.wire.classes import REPLAY
from rlctl_agents.wire.experience import ExperienceReceiver
from rlctl_agents.wire.log_throttle import LogThrottle
from rlctl_agents.wire.rpc.server import RpcServer

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
    spec = process.spec
    process.explained = (PartError,)
    policy = spec.policy_names[0]
    config = spec.policy(policy).algorithm
    assert isinstance(config, Replayed), "the spec has a replay for an algorithm that learns from one"
    assert spec.replay is not None
    with ExitStack() as stack:
        wire = open_wire(process.arguments)
        stack.callback(wire.close)
        session = ManagerSession(process, wire)
        lease = session.join(needs_experience=True)
        if lease is None:
            return
        stack.callback(session.close)
        assert lease.experience is not None, "joined with needs_experience"
        schema, spaces = lease.experience.schema, lease.experience.spaces
        shards = lease.shards
        capacity, settings = shard_capacity(spec, shards), shard_settings(config)
        ratio = samples_per_insert(spec, config, spaces)
        needs = Shard.bytes_for(schema, settings, capacity)
        draws = draws_bytes(config, schema)
        require_memory(spec, needs, left_bytes(), shards, draws)
        shard = Shard(schema, settings, capacity=capacity, seed=spec.seed + lease.index)
        shared = SharedShard(
            shard,
            process.boot,
            starts=spec.replay.learning_starts,
            share=-(-spec.replay.learning_starts // shards),
            ratio=ratio,
            metrics=process.metrics,
        )
        folder = None
        if spec.replay.checkpoint == "full":
            if process.arguments.volume is None:
                raise UserFault("command line: a replay that is saved needs --volume")
            folder = Layout(process.arguments.volume).checkpoints
        if folder is not None:
            process.metrics.set(RESUMING, 1.0)
            session.start(Snapshot)  # reading takes longer than a lease outlives silence
            found = restore_newest(shared, folder, lease.generations, index=lease.index, shards=shards)
            process.metrics.set(RESUMING, 0.0)
            process.metrics.set(UNREADABLE, float(found.unreadable))
        row_bytes = max(1, needs // capacity)
        most_rows = max(1, QUEUE_BYTES // row_bytes)
        budget_rows = min(LEAST_BUDGET if ratio else MOST_BUDGET, most_rows)
        receiver = ExperienceReceiver(
            wire,
            lease.bind["experience"],
            run=process.uid,
            boot=process.boot,
            schema=schema,
            budget_rows=budget_rows,
            queue_rows=budget_rows if ratio else 0,
            most_rows=most_rows,
            term=lease.term,
            leased_since_s=lease.leased_since_s,
            check=ValueCheck(spaces, schema),
        )

        def lead() -> None:
            receiver.term, receiver.leased_since_s = session.term, session.leased_since_s

        inserter = Inserter(shared, receiver, lead)
        stack.callback(inserter.close)
        server = RpcServer(
            wire, lease.bind["rpc"], process.boot, {Draw: shared.draw}, REPLAY, remembers=DRAWS_BYTES + draws
        )
        stack.callback(server.close)
        refusals = Refusals(
            process.metrics,
            lambda: dict(receiver.rejected),
            lambda: server.rejected,
            lambda: refused_connections(wire),
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
        log.info(
            "storing",
            extra={"kv": {"capacity": capacity, "bytes_of_a_row": row_bytes, "bytes": needs, "shards": shards}},
        )
        process.pulse.ready = True
        throttle, misfits = LogThrottle(), 0
        while not process.stop.is_set():
            process.pulse.beat()
            server.serve(SERVE_S)
            inserter.require_life()
            refusals.count()
            if receiver.rejected.get("schema", 0) > misfits and throttle.due("schema"):
                misfits = receiver.rejected["schema"]
                if (now := session.agreed_experience(SCHEMA_S)) is not None and now.schema != schema:
                    # the spec has changed, and this shard had joined before the last actor of the old spec was gone
                    raise RuntimeError("actors send segments of another form by now: this shard begins anew")
            if saver is not None:
                saver.obey(session.wanted, session.term)
        if session.moved:
            raise RuntimeError(session.moved)
        answer_last(server)


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
