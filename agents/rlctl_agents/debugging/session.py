"""All roles of a run as objects of one process and one thread, in the order of lock-step.

The parts are the roles' own (`acting.rollout`, `experience`, `training.trainer`); `debugging.direct` and a loop take
the place of wire, modelpool and manager. The caller requests an update, and the actors that it needs act.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import torch

from rlctl.spec.algorithms import Replayed
from rlctl.spec.schema import Spec
from rlctl_agents import algorithms
from rlctl_agents.acting.bootstrap import make_algorithm, make_env, seed_torch
from rlctl_agents.acting.episodes import EpisodeResults
from rlctl_agents.acting.policy import Table
from rlctl_agents.acting.policy_player import NetworkPolicy, stream_ids
from rlctl_agents.acting.random_streams import environment_seeds
from rlctl_agents.acting.rollout import Rollout, SeatedPolicy
from rlctl_agents.algorithms.base import AlgorithmError, Batch
from rlctl_agents.debugging.direct import DirectReceiver, DirectSender, DirectWeights
from rlctl_agents.debugging.replay import DirectReplay
from rlctl_agents.experience.batching import ROWS_OF_ALL
from rlctl_agents.experience.on_policy import OnPolicySource
from rlctl_agents.experience.segment_writer import SegmentWriter
from rlctl_agents.experience.sources import BatchSource, Needs, make_source
from rlctl_agents.models.weights import digest, unpack_into
from rlctl_agents.policies.evaluate import ENVS, played
from rlctl_agents.policies.initial import NotInitial, begin_from_stored
from rlctl_agents.runtime.metrics import Metrics
from rlctl_agents.runtime.process import UserFault, as_users_fault
from rlctl_agents.training.trainer import Trainer, Updated
from rlctl_agents.types.experience import ModelRef
from rlctl_agents.types.spaces import Spaces
from rlctl_agents.weights.client import Follower, Model, Pool
from rlctl_agents.wire.experience import ExperienceSender

CPU = torch.device("cpu")
FRAMES = 20
"""Python frames per nesting: from an actor's step, through the update that it waits for, to the next actor's step."""
ONE = "rlctl debug has one"


class OwnTorch:
    """Torch's random numbers and compute threads as one role has them in a process of its own.

    Args:
        cpu: cores of the role.
    """

    def __init__(self, cpu: float) -> None:  # the state is that of a new process as long as nothing has drawn
        self._state, self._threads = torch.get_rng_state(), max(1, int(cpu))

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Use them inside the block; blocks of several roles may be nested."""
        before, threads = torch.get_rng_state(), torch.get_num_threads()
        torch.set_rng_state(self._state)
        torch.set_num_threads(self._threads)
        try:
            yield
        finally:
            self._state = torch.get_rng_state()
            torch.set_rng_state(before)
            torch.set_num_threads(threads)


class AdaptedSpec(NamedTuple):
    """A spec adapted to one process."""

    spec: Spec
    spaces: Spaces
    notes: list[str]  # changes made for that, in words


class DebugActor:
    """One actor: its environments, policy, rollout and sender.

    Args:
        weights: holds the first version already.
    """

    def __init__(self, spec: Spec, index: int, receiver: DirectReceiver, weights: DirectWeights) -> None:
        self.index, self.torch, self.metrics = index, OwnTorch(spec.roles.actor.cpu), Metrics()
        name = spec.policy_names[0]
        with self.torch():
            self.env = make_env(spec, spec.roles.actor.envs)
            seed_torch(spec.seed, "actor", index)
            spaces, schema = self.env.spaces, algorithms.schema_of(spec, self.env.spaces, name)
            table = Table.of_seats(spaces, self.env.envs, [list(range(spaces.seats))])
            streams = stream_ids(index, table.slots[0])
            algorithm = make_algorithm(spec, name, spaces)
            self.policy = NetworkPolicy(algorithm, streams, seed=spec.seed, rows=schema.unroll_length, spaces=spaces)
            self.sender = DirectSender(receiver, f"actor/{index}")
            self.follower = Follower(self.policy.load, name, cast(Pool, weights))
            self.follower.wait_for_any(_always, _never)
            self.writer = SegmentWriter(schema, streams.size)
            seated = SeatedPolicy(
                self.policy, self.follower, streams, self.writer, cast(ExperienceSender, self.sender),
                lag=getattr(algorithm, "settings", spec.policy(name).algorithm).lock_step_lag,
            )  # fmt: skip
            self.rollout = Rollout(
                self.env,
                environment_seeds(spec.seed, stream_ids(index, np.arange(self.env.envs) * spaces.seats)),
                table,
                [seated],
                metrics=self.metrics,
                keep_going=_always,
                lock_step=spec.sync,
                sleep=_never,
            )

    def act(self, blocks: int) -> None:
        """Step until the actor has sent `blocks` blocks of segments since its start."""
        with self.torch():
            while self.sender.blocks < blocks:
                self.rollout.step()


class DebugSession:
    """Actors, learner and evaluator of a spec, in one thread.

    Args:
        arranged: the adapted spec, and the spaces of its environment.
        base: folder of the spec file, used if it has `init`.

    Raises:
        UserFault: an environment, network or algorithm cannot be made as the spec asks, or `init` cannot be loaded.
    """

    current: DebugSession | None = None
    """The newest session, for use at a breakpoint: `from rlctl_agents.debugging.session import DebugSession`."""

    def __init__(self, arranged: AdaptedSpec, base: Path = Path()) -> None:
        DebugSession.current = self
        spec, spaces, _ = arranged
        self.spec, self.name = spec, spec.policy_names[0]
        config = spec.policy(self.name).algorithm
        self._learner, self._evaluator = OwnTorch(spec.roles.learner.cpu), OwnTorch(spec.roles.evaluator.cpu)
        self.updates = 0
        self.updated: Updated | None = None
        """Outcome of the newest update."""
        self.actors: list[DebugActor] = []
        with self._learner(), as_users_fault(AlgorithmError, NotInitial):
            schema = algorithms.schema_of(spec, spaces, self.name)
            seed_torch(spec.seed, "learner", 0)
            self.algorithm = make_algorithm(spec, self.name, spaces)
            if spec.init is not None:
                begin_from_stored(base, self.algorithm, spec.init)
                self.algorithm.begun()
            self.trainer = Trainer(self.algorithm, policy=self.name, lineage=1, device=CPU, lock_step=spec.sync)
            self.receiver = DirectReceiver(spaces, schema)
            replayed = config.needs_replay
            needs = Needs(
                self.receiver, schema, config, self.algorithm, lambda: self.trainer.ref, CPU,
                config.batch_size // (config.unit_rows if isinstance(config, Replayed) else schema.unroll_length),
                lock_step=spec.sync, seed=spec.seed,
            )  # fmt: skip
            self.source: BatchSource
            self._step: Callable[[], object] = lambda: None
            if replayed:
                replay = DirectReplay(spec, spaces, needs)
                self.source, self._step = replay.source, replay.step
            else:
                self.source = source = make_source(needs)
                if isinstance(source, OnPolicySource):  # its thread is not started: it is stepped here
                    self._step = partial(source.step, 0.0)
                else:
                    source.start()
        self.weights = DirectWeights(self.update)
        self._publish()
        sys.setrecursionlimit(max(sys.getrecursionlimit(), 1000 + FRAMES * spec.roles.actor.replicas))
        for index in range(spec.roles.actor.replicas):
            self.actors.append(DebugActor(spec, index, self.receiver, self.weights))

    def update(self) -> Updated:
        """Learn from the next batch; actors act until there is one.

        An actor of an algorithm that learns from the newest version alone (PPO) requests that version within its step:
        the update is made there, and other actors that have to act before it act there too.

        Raises:
            LockStepBroken: `sync` is set, and seats of the environment act in turn.
            Diverged: losses or gradients are not finite any more.
            Exception: any that the user's own code raises.
        """
        before = self.updates
        while self.updates == before:
            with self._learner():
                self._step()
                batch = self.source.take(0.0)
            if batch is not None:
                self._learn(batch)
                continue
            if self.receiver.elsewhere:
                raise UserFault(
                    f"the source of batches, {self.algorithm.source}, receives in a thread of its own: {ONE}"
                )
            blocks = min(actor.sender.blocks for actor in self.actors) + 1
            for actor in self.actors:
                actor.act(blocks)
        assert self.updated is not None, "one was made"
        return self.updated

    def evaluate(self, episodes: int) -> EpisodeResults:
        """Play whole episodes with the newest weights, in separate environments."""
        spec, model = self.spec, self.weights.newest
        with self._evaluator():
            env = make_env(spec, min(spec.evaluation.envs or ENVS, episodes), training=False)
            try:
                algorithm = make_algorithm(spec, self.name, env.spaces)
                progress = unpack_into(algorithm.net, model.data, sha256=model.sha256)
                greedy = spec.evaluation.mode == "greedy"
                seed = evaluation_seed(spec.seed, model.ref)
                return played(env, algorithm, episodes, seed=seed, greedy=greedy, progress=progress)
            finally:
                env.close()

    def episodes(self) -> tuple[int, float | None]:
        """Whole episodes of all actors, and the mean return of the newest ones; None: none has ended."""
        seen = [actor.metrics.values() for actor in self.actors]
        returns = [one.gauges["train_return"] for one in seen if "train_return" in one.gauges]
        count = sum(int(one.counters.get("episodes", 0)) for one in seen)
        return count, sum(returns) / len(returns) if returns else None

    def close(self) -> None:
        """Close environments and source."""
        self.source.close()
        for actor in self.actors:
            actor.env.close()

    def _learn(self, batch: Batch) -> None:
        with self._learner():
            updated = self.trainer.update(batch)
            if updated.priorities is not None:
                self.source.update_priorities(batch, updated.priorities)
            self.source.give_back(batch)
        self.updates, self.updated = self.updates + 1, updated
        self._publish()

    def _publish(self) -> None:
        data = self.trainer.weights()
        self.weights.put(Model(self.trainer.ref, digest(data), data))


def arranged(spec: Spec, *, in_turn: bool = False) -> AdaptedSpec:
    """Adapt a spec to one process; makes an environment to learn its spaces.

    The result computes in fp32, in lock-step; if the spec is not, there are as many environments as make a batch of one
    segment each. Not in lock-step are an algorithm with a source of its own, which decides when it learns from which
    rows, and an environment with seats that act in turn: each actor in turn makes segments with the newest weights.

    Args:
        in_turn: True if seats of the environment act in turn.

    Raises:
        UserFault: the spec has no actors, its batch size fits no lock-step, or its parts cannot be made.
    """
    name, actor, learner = spec.policy_names[0], spec.roles.actor, spec.roles.learner
    policy = spec.policy(name)
    config = policy.algorithm
    if not actor.replicas:
        raise UserFault("roles.actor.replicas is 0: no process would act")
    with as_users_fault(AlgorithmError):
        source = algorithms.class_of(config).source
    with OwnTorch(actor.cpu)():
        env = make_env(spec, 1)
        env.close()
    seats, notes = env.spaces.seats, []
    if learner.replicas > 1:
        notes.append(f"roles.learner.replicas: one learner learns from whole batches, instead of {learner.replicas}")
    if learner.gpu:
        notes.append("roles.learner.gpu: the learner computes on the CPU, so its numbers are others")
    if policy.model.precision == "bf16":
        notes.append("model.precision: the network computes in fp32, so its numbers are others")
    sync = not in_turn and source == "on_policy"
    if not sync:
        kind = "a replay" if config.needs_replay else source
        why = "seats of the environment act in turn" if in_turn else f"batches come from {kind}"
        notes.append(f"not in lock-step: {why}; each actor in turn makes segments with the newest weights")
    else:
        streams = config.batch_size // config.unroll_length
        if actor.replicas * actor.envs * seats != streams:
            if spec.sync or streams % seats:
                raise UserFault(f"algorithm.batch_size is {config.batch_size}: {ROWS_OF_ALL}, or a multiple of seats")
            actors = actor.replicas if streams % (actor.replicas * seats) == 0 else 1
            envs = streams // (actors * seats)
            notes.append(
                f"roles.actor: {actors} x {envs} environments instead of {actor.replicas} x {actor.envs}: "
                f"in lock-step a batch of {config.batch_size} is a segment of {config.unroll_length} from each"
            )
            actor = actor.model_copy(update={"replicas": actors, "envs": envs})
    learner = learner.model_copy(update={"replicas": 1, "gpu": 0})
    roles = spec.roles.model_copy(update={"actor": actor, "learner": learner})
    fp32 = policy.model.model_copy(update={"precision": "fp32"})
    policies = {**(spec.policies or {}), name: policy.model_copy(update={"model": fp32, "like": None})}
    network = {"model": fp32} if spec.policies is None else {"policies": policies}
    return AdaptedSpec(spec.model_copy(update={"sync": sync, "roles": roles, **network}), env.spaces, notes)


def _always() -> bool:
    return True


def _never(seconds: float) -> None:
    raise AssertionError("nothing waits in one thread")


def evaluation_seed(run_seed: int, ref: ModelRef) -> int:
    """Seed of an evaluation, derived from its model's version: those of the actors begin at the run's own."""
    digest = hashlib.sha256(f"rlctl debug evaluation {run_seed} {ref.version}".encode()).digest()
    return int.from_bytes(digest[:4], "little") >> 1
