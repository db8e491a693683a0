"""The actor: steps environments, acts with the newest weights, sends segments to the learner."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rlctl.spec import algorithms as specs
from rlctl_agents.acting.bootstrap import make_algorithm, work
from rlctl_agents.acting.policy import Table
from rlctl_agents.acting.policy_player import NetworkPolicy, stream_ids
from rlctl_agents.acting.random_streams import environment_seeds
from rlctl_agents.acting.rollout import LockStepBroken, Rollout, SeatedPolicy
from rlctl_agents.algorithms.base import ActInputs
from rlctl_agents.envs.base import Env, EnvError, EnvRefused
from rlctl_agents.experience.segment_writer import SegmentWriter
from rlctl_agents.repro.recording import EpisodeRecorder
from rlctl_agents.repro.sending import told_crash
from rlctl_agents.runtime.manager_session import ManagerSession, Snapshot, SnapshotRequest, origin
from rlctl_agents.runtime.process import Process, UserFault, as_users_fault
from rlctl_agents.types.control import Channels, Match, Peers
from rlctl_agents.types.experience import Ledger, ModelRef
from rlctl_agents.weights.client import Follower, Model, Pool
from rlctl_agents.wire.experience import ExperienceSender
from rlctl_agents.wire.sockets import Wire

SNAPSHOT_S = 0.5
"""Time that a report waits for the loop; with a slower environment it repeats the counts before."""
FLUSH_S = 0.3
FLUSH_OFF_HOST_S = 3.0
"""Longest flush to each receiver on other machines, out of the ten seconds of an orderly stop."""
PEERS_S = 0.2

log = logging.getLogger(__name__)


def main(process: Process) -> None:
    """Act until asked to stop; raises what `work` does."""
    work(process, process.spec.roles.actor.envs, Actor)


class Actor:
    """One vector of environments, its players, and their connections to learners and modelpools."""

    def __init__(self, process: Process, wire: Wire, session: ManagerSession, env: Env) -> None:
        self._process = process
        self._wire = wire
        self._session = session
        self.env: Env = EpisodeRecorder(env, process.spec.env.model_dump(), training=True)
        self._peers: Peers = {}
        self._pool_at: Channels = {}
        self._pools: list[Pool] = []
        self._seated: list[SeatedPolicy] = []
        self._senders: list[ExperienceSender] = []
        self._rollout: Rollout | None = None
        self._asked = SnapshotRequest(Snapshot())
        self._closed: Snapshot | None = None  # the snapshot at the end
        self._sha256 = ""  # of the newest weights

    def snapshot(self) -> Snapshot:
        """Snapshot between two steps, for a report; called by the reporting thread."""
        return self._closed or self._asked.ask(SNAPSHOT_S)

    def run(self) -> None:
        """Act until the process is asked to stop."""
        match = self._session.match
        if match is None:
            raise RuntimeError("the manager leased an index but no match to play")
        if not self._wait_for_peers():
            return
        index, spec = self._session.lease.index, self._process.spec
        # an actor that starts again must not play the same games again; lock-step has no second start
        seed = spec.seed if spec.sync else spec.seed ^ int(self._process.boot, 16)
        table = self._take_seats(match, index, seed)
        log.info("waiting for the first weights")
        with self._process.metrics.timed("wait_model_seconds"):
            for one in self._seated:
                follower = one.follower
                if follower is not None and not follower.wait_for_any(self._turn, self._process.stop.wait):
                    return
        self._rollout = rollout = Rollout(
            self.env,
            environment_seeds(seed, stream_ids(index, np.arange(self.env.envs) * self.env.spaces.seats)),
            table,
            self._seated,
            metrics=self._process.metrics,
            keep_going=self._turn,
            lock_step=spec.sync,
            sleep=self._process.stop.wait,
        )
        refs = [one.follower.ref for one in self._seated if one.follower is not None]
        log.info("acting", extra={"kv": {"models": [str(ref) for ref in refs], "envs": self.env.envs, "seed": seed}})
        self._process.pulse.ready = True
        try:
            with as_users_fault(LockStepBroken, EnvRefused):
                while not self._process.stop.is_set():
                    rollout.step()
        except EnvError as error:
            acted = next((one.ref for one in self._seated if one.follower is not None), None)
            raise told_crash(error, self.env, self._process, self._session, acted, self._sha256) from error

    def close(self) -> None:
        """Send the blocks for which there is credit, and stop."""
        flush_s = FLUSH_OFF_HOST_S if self._process.arguments.off_host else FLUSH_S
        for sender in self._senders:
            sender.flush(flush_s)
            sender.close()
        self._closed = self._books()
        for pool in self._pools:
            pool.close()

    def _take_seats(self, match: Match, index: int, seed: int) -> Table:
        """Make a player for each model of the match."""
        seats: dict[ModelRef, list[int]] = {}
        for seat, ref in sorted(match.seats.items()):
            seats.setdefault(ref, []).append(seat)
        spaces, spec = self.env.spaces, self._process.spec
        table = Table.of_seats(spaces, self.env.envs, list(seats.values()))
        for (ref, taken), slots in zip(seats.items(), table.slots, strict=True):
            algorithm = make_algorithm(spec, ref.policy, spaces)
            policy = spec.policy(ref.policy)
            schema = type(algorithm).schema(policy.algorithm, policy.model, spaces)
            streams = stream_ids(index, slots)
            pool, pinned = self._pool(ref.policy), ref.version if ref.version >= 0 else None
            player = NetworkPolicy(algorithm, streams, seed=seed, rows=schema.unroll_length, spaces=spaces)
            one = SeatedPolicy(
                player,
                Follower(partial(self._load, player), ref.policy, pool, pinned=pinned),
                streams,
                lag=getattr(algorithm, "settings", policy.algorithm).lock_step_lag,  # own algorithm: of its base class
            )
            if isinstance(policy.algorithm, specs.Ladder):
                self._process.metrics.set("epsilon", mean_epsilon(algorithm, streams))
            if set(taken) <= set(match.learn):
                waits = algorithm.on_policy or policy.algorithm.needs_replay  # replay shards grant credit by a limit
                sender = ExperienceSender(
                    self._wire,
                    self._assigned(self._receiver)["experience"],
                    run=self._process.uid,
                    boot=self._process.boot,
                    schema=schema,
                    term=self._session.term,
                    ticket=self._session.ticket,
                    on_policy=waits,
                    # one block waits at most, and no other is begun meanwhile: a waiting block grows old
                    queue_blocks=1 if waits else 8,
                    build=origin(self._process).build,
                )
                self._senders.append(sender)
                fit = sender.max_rows // schema.unroll_length
                if slots.size > fit:
                    raise UserFault(
                        f"segments of {slots.size} slots at once are too large to be sent, at most {fit} fit: "
                        "lower roles.actor.envs or algorithm.unroll_length"
                    )
                one.writer, one.sender = SegmentWriter(schema, slots.size), sender
            self._seated.append(one)
        return table

    def _load(self, player: NetworkPolicy, model: Model) -> None:
        player.load(model)
        self._sha256 = model.sha256

    def _turn(self) -> bool:
        """Take the manager's newest orders and answer the reporting thread; called between steps and while waiting."""
        self._process.pulse.beat()
        for sender in self._senders:
            sender.term, sender.ticket = self._session.term, self._session.ticket
        if self._session.peers is not self._peers and self._reachable():
            self._redirect()
        self._asked.answer(self._books)
        return not self._process.stop.is_set()

    def _books(self) -> Snapshot:
        sent: dict[str, Ledger] = {}
        pending = 0
        for sender in self._senders:
            sent |= sender.ledgers
            pending += sender.pending
        followed = [one.follower for one in self._seated if one.follower is not None]
        model = followed[0].ref if followed else None
        figures = self._rollout.figures.moments() if self._rollout is not None else []
        return Snapshot(sent=sent, pending=pending, model=model, figures=figures)

    def _wait_for_peers(self) -> bool:
        while self._turn() and not self._reachable():
            self._process.stop.wait(PEERS_S)
        self._peers = self._session.peers
        return not self._process.stop.is_set()

    def _reachable(self) -> bool:
        return bool(self._session.peers_of(self._receiver) and self._session.peers_of("modelpool"))

    @property
    def _receiver(self) -> str:
        """Role that takes the rows of this actor: a replay, where the run has one, else the learners."""
        return "replay" if self._session.peers_of("replay") else "learner"

    def _assigned(self, role: str) -> Channels:
        """Channels of the peer of a role that this actor uses; it has waited until there is one."""
        channels = self._session.assigned(role)
        assert channels is not None
        return channels

    def _pool(self, policy: str) -> Pool:
        self._pool_at = self._assigned("modelpool")
        stop = self._process.stop
        pool = Pool(self._wire, self._pool_at, policy, self._process.boot, lambda: not stop.is_set())
        self._pools.append(pool)
        return pool

    def _redirect(self) -> None:
        """Switch to the peers that the manager names now."""
        self._peers = self._session.peers
        if not self._seated:
            return
        for sender in self._senders:
            sender.redirect(self._assigned(self._receiver)["experience"])
        if self._assigned("modelpool") != self._pool_at:
            log.info("another modelpool: %s", self._assigned("modelpool")["rpc"])
            old, self._pools = self._pools, []
            for one in self._seated:
                if one.follower is not None:
                    one.follower.source = self._pool(one.follower.policy)
            for pool in old:
                pool.close()


def mean_epsilon(algorithm: Any, streams: NDArray[np.int64]) -> float:
    """Mean exploration rate of streams [K] with rates of their own: actors are judged beside those with the same."""
    none = torch.empty(0)
    return float(algorithm.epsilon(ActInputs({}, none, {}, none, stream=torch.from_numpy(streams))).mean())
