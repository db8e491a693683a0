"""Replay of a run in one process: one shard, filled and drawn from without a wire or a thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Any, TypeVar, cast

import numpy as np

from rlctl.spec import fields
from rlctl.spec.algorithms import Replayed
from rlctl.spec.machine import left_bytes
from rlctl.spec.problems.replay import shortage
from rlctl.spec.schema import Spec
from rlctl_agents.experience.replay.memory import draws_bytes, samples_per_insert, shard_capacity, shard_settings
from rlctl_agents.experience.replay.messages import Draw, Drawn
from rlctl_agents.experience.replay.server import Inserter, SharedShard
from rlctl_agents.experience.replay.shard import Shard
from rlctl_agents.experience.replay.source import Drawer, ReplaySource, Shards
from rlctl_agents.experience.sources import Needs, Receiver
from rlctl_agents.experience.staging import Staging
from rlctl_agents.runtime.metrics import Metrics
from rlctl_agents.runtime.process import UserFault
from rlctl_agents.types.spaces import Spaces
from rlctl_agents.wire.rpc.client import RpcClient

T = TypeVar("T")


class _Inline(Executor):
    """Executor that runs each call at once, in the calling thread."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        done: Future[T] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


class _DirectClient:
    """`RpcClient` of a shard in this process."""

    def __init__(self, shared: SharedShard) -> None:
        self._shared = shared

    def call(
        self, request: Draw, reply: type[Drawn], buffers: Sequence[memoryview] = (), **of: float
    ) -> tuple[Drawn, list[memoryview]]:
        """Draw from the shard directly."""
        return self._shared.draw(request, buffers)

    def close(self) -> None:
        """Do nothing: no connection is open."""


MOST_ROWS = 100_000
"""Rows of a session, or twice `replay.learning_starts`: more than is stepped through by hand, in less memory."""


class DirectReplay:
    """A shard of the whole capacity, and the learner's source that draws from it, for the thread that calls `step`.

    Args:
        needs: its receiver takes the blocks of the actors.

    Raises:
        UserFault: the shard does not fit into the memory that is left.
    """

    def __init__(self, spec: Spec, spaces: Spaces, needs: Needs) -> None:
        config = needs.config
        assert isinstance(config, Replayed), "the built-in replay is for these"
        spec = fields.normal(spec)
        assert spec.replay is not None, "the spec has a replay for an algorithm that learns from one"
        starts = spec.replay.learning_starts
        rows = min(spec.replay.capacity, max(MOST_ROWS, 2 * starts))
        spec = spec.model_copy(update={"replay": spec.replay.model_copy(update={"capacity": rows})})
        settings, capacity = shard_settings(config), shard_capacity(spec, 1)
        size = Shard.bytes_for(needs.schema, settings, capacity)
        if why := shortage(spec, size, left_bytes(), 1, draws_bytes(config, needs.schema)):
            raise UserFault(why)
        shard = Shard(needs.schema, settings, capacity=capacity, seed=spec.seed)
        shared = SharedShard(
            shard, "debug", starts=starts, share=starts,
            ratio=samples_per_insert(spec, config, spaces), metrics=Metrics(),
        )  # fmt: skip
        self._inserter = Inserter(shared, cast(Receiver, needs.receiver), lambda: None)
        here = Shards(lambda: {0: {"rpc": "debug"}}, lambda _: cast(RpcClient, _DirectClient(shared)), beside=_Inline())
        drawer = Drawer(
            here, needs.schema, settings=settings,
            beta=config.priority_beta if config.prioritized else 0.0, rng=np.random.default_rng([spec.seed, 0]),
        )  # fmt: skip
        self.source = ReplaySource(drawer, Staging(needs.device), needs.streams)

    def step(self) -> None:
        """Insert the blocks of actors, up to the limit, and draw a batch, if one is due."""
        self._inserter.step(0.0)
        self.source.step()
