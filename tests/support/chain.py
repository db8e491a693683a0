"""Actors and learner in one process, joined by the real wire over a private folder; no manager, no modelpool."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlctl.spec.algorithms import ActorCritic as Settings
from rlctl.spec.algorithms import Impala as ImpalaSettings
from rlctl.spec.schema import Network
from rlctl_agents import algorithms, envs
from rlctl_agents.acting.policy import Table
from rlctl_agents.acting.policy_player import NetworkPolicy, stream_ids
from rlctl_agents.acting.random_streams import environment_seeds
from rlctl_agents.acting.rollout import Rollout, SeatedPolicy
from rlctl_agents.algorithms.actor_critic import ActorCriticAlgorithm
from rlctl_agents.algorithms.impala import Impala
from rlctl_agents.envs.base import Env
from rlctl_agents.experience.segment_writer import SegmentWriter
from rlctl_agents.models.weights import digest, pack
from rlctl_agents.runtime.metrics import Metrics
from rlctl_agents.types.experience import ModelRef, Schema
from rlctl_agents.types.spaces import Spaces
from rlctl_agents.weights.client import Follower, Model
from rlctl_agents.wire.experience import ExperienceReceiver, ExperienceSender
from rlctl_agents.wire.sockets import Wire

torch.set_num_threads(1)  # as every role does: threads of several roles at once would fight for the cores

RUN = "0" * 32


class Store:
    """Models in memory: what a pool is to followers. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._models: dict[ModelRef, bytes] = {}
        self.newest: ModelRef | None = None

    def put(self, ref: ModelRef, data: bytes) -> None:
        with self._lock:
            self._models[ref] = data
            self.newest = ref

    def newer(self, policy: str, have: ModelRef | None, wait_s: float | None = None) -> Model | None:
        with self._lock:
            return None if self.newest in (None, have) else self._model(self.newest)

    def exact(self, policy: str, version: int) -> Model | None:
        with self._lock:
            if self.newest is None:
                return None
            ref = ModelRef(policy, self.newest.lineage, version)
            return self._model(ref) if ref in self._models else None

    def notice(self) -> ModelRef | None:
        with self._lock:
            return self.newest

    def _model(self, ref: ModelRef | None) -> Model:
        assert ref is not None
        return Model(ref, digest(self._models[ref]), memoryview(self._models[ref]))


@contextmanager
def private_folder() -> Iterator[Path]:
    """Short and ours alone, as sockets need it."""
    with tempfile.TemporaryDirectory(prefix="rlctl-", dir="/tmp") as folder:
        yield Path(folder)


@contextmanager
def opened_wire() -> Iterator[Wire]:
    wire = Wire()
    try:
        yield wire
    finally:
        wire.close()


def make_env(name: str, count: int, **kwargs: Any) -> Env:
    return envs.make(f"tests.envs.tiny:{name}", envs=count, seeds=[0] * count, kwargs=kwargs)


def settings(**changes: Any) -> ImpalaSettings:
    """IMPALA as published, of one optimizer step a batch."""
    return ImpalaSettings.model_validate({"unroll_length": 5, "value_batches": 0, **changes})


def made(config: Settings, network: Network, spaces: Spaces, *, seed: int) -> ActorCriticAlgorithm:
    """The algorithm that these settings are of."""
    found = algorithms.find(config.name)(config, network, spaces, seed=seed)
    assert isinstance(found, ActorCriticAlgorithm)
    return found


def schema_of(config: Settings, network: Network, spaces: Spaces) -> Schema:
    return Impala.schema(config, network, spaces)


def receiver_at(wire: Wire, folder: Path, schema: Schema, *, budget_rows: int, boot: str = "learner") -> Any:
    return ExperienceReceiver(
        wire, f"ipc://{folder}/experience", run=RUN, boot=boot, schema=schema, budget_rows=budget_rows, term=1
    )


def sender_to(wire: Wire, folder: Path, schema: Schema, boot: str) -> ExperienceSender:
    return ExperienceSender(
        wire, f"ipc://{folder}/experience", run=RUN, boot=boot, schema=schema, term=1, queue_blocks=1
    )


def make_rollout(
    env: Env,
    config: Settings,
    network: Network,
    source: Any,
    sender: Any,
    *,
    index: int = 0,
    seats: Sequence[Sequence[int]] | None = None,
    seed: int = 3,
    keep_going: Callable[[], bool] = lambda: True,
    lock_step: bool = False,
    sleep: Callable[[float], object] = lambda seconds: None,
    metrics: Metrics | None = None,
) -> Rollout:
    """One actor's rollout; the first player learns, further ones do not."""
    spaces = env.spaces
    schema = schema_of(config, network, spaces)
    table = Table.of_seats(spaces, env.envs, seats or [list(range(spaces.seats))])
    seated = []
    for number, slots in enumerate(table.slots):
        algorithm = made(config, network, spaces, seed=100 + number)
        streams = stream_ids(index, slots)
        player = NetworkPolicy(algorithm, streams, seed=seed, rows=config.unroll_length, spaces=spaces)
        follower = Follower(player.load, "main", source)
        assert follower.wait_for_any(keep_going, sleep)
        one = SeatedPolicy(player, follower, streams, lag=config.lock_step_lag)
        if number == 0:
            one.writer, one.sender = SegmentWriter(schema, slots.size), sender
        seated.append(one)
    streams = stream_ids(index, np.arange(env.envs, dtype=np.int64) * spaces.seats)
    return Rollout(
        env,
        environment_seeds(seed, streams),
        table,
        seated,
        metrics=metrics or Metrics(),
        keep_going=keep_going,
        lock_step=lock_step,
        sleep=sleep,
    )


def weights_of(config: Settings, network: Network, spaces: Spaces, seed: int) -> bytes:
    return pack(Impala(config, network, spaces, seed=seed).net.state_dict())
