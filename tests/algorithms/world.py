"""A whole training in one process: tiny environments, the row conventions of the wire, weights as old as one likes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from rlctl_agents.algorithms.base import Act, ActInputs, Algorithm, Batch, Tensors
from rlctl_agents.experience.batching import segment_fields
from rlctl_agents.types.experience import Arrays, Schema
from rlctl_agents.types.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Spaces, choices, leaf_array, leaves


class World(ABC):
    """`slots` environments side by side. An episode's end is given with its last reward; the row after it is shown the
    final observation and begins the next episode, whatever the action."""

    spaces: Spaces
    steps: int  # an episode is cut short here

    def __init__(self, slots: int, seed: int) -> None:
        self.slots = slots
        self.random = np.random.default_rng(seed)
        self.age = np.zeros(slots, np.int64)
        self.first = np.ones(slots, bool)
        self.ended = np.zeros(slots, bool)
        self.begin(np.ones(slots, bool))

    @abstractmethod
    def begin(self, which: NDArray[np.bool_]) -> None:
        """New episodes for those slots."""

    @abstractmethod
    def observe(self) -> Arrays: ...

    @abstractmethod
    def move(self, action: Arrays) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Reward, terminated; for slots that have ended both are ignored."""

    def legal(self) -> NDArray[np.bool_] | None:
        return None

    def step(self, action: Arrays) -> Arrays:
        """Reward, terminated, truncated and valid of this row."""
        valid = ~self.ended
        reward, terminated = self.move(action)
        self.age += valid
        truncated = valid & (self.age >= self.steps) & ~terminated
        row = {
            "reward": np.where(valid, reward, 0).astype(np.float32),
            "terminated": valid & terminated,
            "truncated": truncated,
            "valid": valid,
        }
        self.first = self.ended
        self.age[self.first] = 0
        if self.first.any():
            self.begin(self.first)
        self.ended = row["terminated"] | truncated
        return row


class Actor:
    """Plays a world, whatever the weights, in segments as the schema says."""

    def __init__(self, algorithm: Algorithm, schema: Schema, world: World, seed: int) -> None:
        self.algorithm, self.schema, self.world = algorithm, schema, world
        self.state = algorithm.initial_state(world.slots)
        self.noise = np.random.default_rng(seed)
        self.returns: deque[float] = deque(maxlen=200)  # of finished episodes
        self.sums = np.zeros(world.slots)

    def segment(self) -> Batch:
        """The next T rows of every slot."""
        fields = {
            field.name: np.zeros(self.schema.array_shape(field, self.world.slots), field.dtype)
            for field in self.schema.fields
        }
        for name, value in self.state.items():
            fields[name][...] = value.numpy()
        for t in range(self.schema.unroll_length):
            act = self._decide(fields, t)
            for name, value in {**act.action, **act.record}.items():
                fields[name][t] = value.numpy()
            self.state = act.state
            row = self.world.step({name: value.numpy() for name, value in act.action.items()})
            for name, column in row.items():
                fields[name][t] = column
            self.sums += row["reward"].astype(np.float64)
            self.returns.extend(self.sums[self.world.ended])
            self.sums[self.world.ended] = 0
        self._look(fields, self.schema.unroll_length)
        return Batch(
            {name: torch.from_numpy(value) for name, value in fields.items()},
            torch.zeros(self.schema.unroll_length, self.world.slots, dtype=torch.int64),
            segment_fields(self.schema),
        )

    def _look(self, fields: Arrays, t: int) -> tuple[Tensors, torch.Tensor, torch.Tensor | None]:
        obs, legal = self.world.observe(), self.world.legal()
        for name, leaf in obs.items():
            fields[name][t] = leaf
        fields["first"][t] = self.world.first
        if legal is not None:
            fields["legal"][t] = legal
        return (
            {name: torch.from_numpy(leaf) for name, leaf in obs.items()},
            torch.from_numpy(self.world.first),
            None if legal is None else torch.from_numpy(legal),
        )

    def _decide(self, fields: Arrays, t: int) -> Act:
        obs, first, legal = self._look(fields, t)
        uniform = self.noise.uniform(1e-6, 1 - 1e-6, (self.world.slots, self.algorithm.noise_width))
        noise = torch.from_numpy(uniform.astype(np.float32))
        return self.algorithm.act(ActInputs(obs, first, self.state, noise, legal))


def train(actor: Actor, learner: Algorithm, updates: int, lag: int = 0) -> Iterator[Tensors]:
    """Segments of the actor, by weights that are `lag` updates old, into the learner; yields the metrics."""
    optimizer = learner.make_optimizer()
    past: deque[Tensors] = deque(maxlen=lag + 1)
    rows = 0
    for _ in range(updates):
        past.append({name: value.clone() for name, value in learner.net.state_dict().items()})
        actor.algorithm.net.load_state_dict(past[0])
        learner.set_progress(rows, optimizer)
        loss = learner.loss(actor.segment())
        optimizer.zero_grad()
        torch.autograd.backward(loss.total / loss.rows)
        torch.nn.utils.clip_grad_norm_(learner.net.parameters(), learner.max_grad_norm)
        optimizer.step()
        rows += int(loss.rows)
        yield loss.metrics


class Anything(World):
    """Observations, masks, rewards and ends at random, in any space: for what must hold whatever happens."""

    steps = 7

    def __init__(self, slots: int, seed: int, spaces: Spaces) -> None:
        self.spaces = spaces
        super().__init__(slots, seed)

    def begin(self, which: NDArray[np.bool_]) -> None:
        pass

    def observe(self) -> Arrays:
        obs: Arrays = {}
        for name, leaf in leaves(self.spaces.obs, "obs"):
            dtype, shape = leaf_array(leaf)
            size = (self.slots, *shape)
            match leaf:
                case Box(dtype="uint8"):
                    obs[name] = self.random.integers(0, 256, size, np.uint8)
                case Box():
                    obs[name] = self.random.normal(size=size).astype(dtype)
                case Discrete():
                    obs[name] = self.random.integers(0, leaf.n, size)
                case MultiDiscrete():
                    obs[name] = self.random.integers(0, leaf.n, size)
                case MultiBinary():
                    obs[name] = self.random.integers(0, 2, size, np.int8)
        return obs

    def legal(self) -> NDArray[np.bool_] | None:
        if not self.spaces.legal:
            return None
        parts = [self.random.random((self.slots, size)) < 0.5 for size in choices(self.spaces.action)]
        for part in parts:
            part[:, 1] |= ~part.any(1)
        mask = np.concatenate(parts, axis=1)
        mask[self.ended] = False  # nobody acts there
        return mask

    def move(self, action: Arrays) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        return self.random.normal(size=self.slots).astype(np.float32), self.random.random(self.slots) < 0.1
