"""A replay in plain arrays, and a training of one process around it: what the shards do, written out."""

from __future__ import annotations

from collections.abc import Iterator

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray

from rlctl.spec.schema import Network
from rlctl_agents.algorithms.base import Act, ActInputs, Algorithm, Batch, Delivery
from rlctl_agents.algorithms.replayed import ReplayedAlgorithm
from rlctl_agents.envs.convert import to_ours
from rlctl_agents.training.trainer import Trainer, Updated
from rlctl_agents.types.experience import Arrays, Schema
from rlctl_agents.types.spaces import Spaces
from tests.algorithms.world import Actor, World

ROW_FIELDS = ("terminated", "truncated", "valid", "reward")


class Memory:
    """Rows of all slots, in the order in which they came; of them windows of n steps are drawn, evenly."""

    def __init__(self, schema: Schema, steps: int, slots: int, n: int, seed: int) -> None:
        self.n, self.steps = n, 0
        self.fields = {one.name: np.zeros((steps, slots, *one.shape), one.dtype) for one in schema.fields}
        self.random = np.random.default_rng(seed)

    def insert(self, segment: Batch) -> None:
        rows = len(segment.version)
        for name, values in self.fields.items():
            values[self.steps : self.steps + rows] = segment.fields[name][:rows].numpy()
        self.steps += rows

    def draw(self, rows: int) -> Batch:
        """As the replay's source gives it."""
        t, slot = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        wrong = np.ones(rows, bool)
        while wrong.any():
            t[wrong] = self.random.integers(0, self.steps - self.n, wrong.sum())
            slot[wrong] = self.random.integers(0, self.fields["valid"].shape[1], wrong.sum())
            wrong = ~self.fields["valid"][t, slot]
        return self.at(t, slot)

    def at(self, t: NDArray[np.int64], slot: NDArray[np.int64]) -> Batch:
        """Windows from these rows."""
        rewards = np.zeros((len(t), self.n), np.float32)
        steps, alive = np.zeros(len(t), np.int64), np.ones(len(t), bool)
        terminated = np.zeros(len(t), bool)
        for j in range(self.n):
            at = {name: self.fields[name][t + j, slot] for name in ROW_FIELDS}
            rewards[:, j] = np.where(alive, at["reward"], 0)
            steps += alive
            terminated |= alive & at["terminated"]
            alive &= ~(at["terminated"] | at["truncated"])
        fields = {"rewards": rewards, "steps": steps, "weight": np.ones(len(t), np.float32)}
        segment_fields = frozenset(fields)
        for name, values in self.fields.items():
            if name.partition(".")[0] in ("obs", "legal"):
                fields[name] = np.stack([values[t, slot], values[t + steps, slot]])
            elif name.partition(".")[0] == "action":
                fields[name] = values[None, t, slot]
        fields |= {"terminated": terminated[None], "valid": np.ones((1, len(t)), bool)}
        version = torch.zeros(1, len(t), dtype=torch.int64)
        return Batch({name: torch.from_numpy(one) for name, one in fields.items()}, version, segment_fields)


class Player(Actor):
    """Acts with what a run's actor is told: what the weights were learned from, and the streams."""

    progress = 0
    greedy = False

    def _decide(self, fields: Arrays, t: int) -> Act:
        obs, first, legal = self._look(fields, t)
        uniform = self.noise.uniform(1e-6, 1 - 1e-6, (self.world.slots, self.algorithm.noise_width))
        noise = torch.from_numpy(uniform.astype(np.float32))
        streams = torch.arange(self.world.slots)
        return self.algorithm.act(ActInputs(obs, first, {}, noise, legal, self.greedy, self.progress, stream=streams))


class Games(World):
    """Copies of an environment of Gymnasium."""

    def __init__(self, name: str, slots: int, seed: int) -> None:
        self.games = [gymnasium.make(name) for _ in range(slots)]
        for index, game in enumerate(self.games):
            game.reset(seed=seed + index)
        assert self.games[0].spec is not None
        self.steps = self.games[0].spec.max_episode_steps or 1000
        self.spaces = Spaces(
            to_ours(self.games[0].observation_space, "obs"), to_ours(self.games[0].action_space, "action")
        )
        self.shown = [np.zeros(0)] * slots
        super().__init__(slots, seed)

    def begin(self, which: NDArray[np.bool_]) -> None:
        for slot in np.flatnonzero(which):
            self.shown[slot] = self.games[slot].reset()[0]

    def observe(self) -> Arrays:
        return {"obs": np.stack(self.shown)}

    def move(self, action: Arrays) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        reward, terminated = np.zeros(self.slots, np.float32), np.zeros(self.slots, bool)
        for slot in np.flatnonzero(~self.ended):
            self.shown[slot], gained, terminated[slot], *_ = self.games[slot].step(action["action"][slot])
            reward[slot] = float(gained)
        return reward, terminated


def train(
    kind: type[ReplayedAlgorithm],
    config: dict[str, object],
    world: World,
    agent_steps: int,
    *,
    model: dict[str, object] | None = None,
    ratio: float | None = None,
    starts: int = 500,
    seed: int = 0,
) -> Iterator[tuple[Player, Updated]]:
    """Learn from so many steps; yields after each update."""
    settings = kind.settings.model_validate(config)
    network = Network.model_validate({**kind.settings.network, **(model or {})})
    torch.manual_seed(seed)
    learner = kind(settings, network, world.spaces, seed=seed)
    trainer = Trainer(learner, policy="main", lineage=1, device=torch.device("cpu"))
    schema = kind.schema(settings, network, world.spaces)
    player = Player(learner, schema, world, seed)
    memory = Memory(schema, 2 * agent_steps // world.slots + schema.unroll_length, world.slots, settings.n_step, seed)
    inserted = sampled = counted = 0
    ratio = ratio or settings.samples_per_insert(images=False)
    while inserted < agent_steps:
        player.progress = trainer.consumed_steps
        segment = player.segment()
        memory.insert(segment)
        inserted += int(segment.fields["valid"].sum())
        while inserted >= starts and sampled < ratio * (inserted - starts):
            batch = memory.draw(settings.batch_size)
            books = Delivery(np.zeros(settings.batch_size, np.int64), inserted - counted, inserted - counted)
            updated = trainer.update(batch._replace(delivery=books))
            sampled, counted = sampled + settings.batch_size, inserted
            yield player, updated


def greedy_return(algorithm: Algorithm, schema: Schema, world: World, episodes: int) -> float:
    """Mean return of whole episodes, the first of each slot counted as often as any other."""
    player = Player(algorithm, schema, world, 0)
    player.greedy = True
    while len(player.returns) < episodes:
        player.segment()
    return float(np.mean([*player.returns][:episodes]))
