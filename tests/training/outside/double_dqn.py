"""Double DQN (arXiv:1509.06461) from outside: annealed epsilon, a target network, a ring in the learner's process."""

import logging
from copy import deepcopy

import numpy as np
import torch
from torch import nn

from rlctl.spec import algorithms as specs
from rlctl_agents.algorithms.base import Act, Algorithm, Batch, Delivery, Loss, hyperparameters, standard_fields
from rlctl_agents.experience.sources import BatchSource, Needs
from rlctl_agents.types.experience import Schema


class Settings(specs.Algorithm):
    lr: float = 5e-4
    epsilon: float = 0.05  # after `anneal` agent steps
    anneal: int = 8_000
    copy_every: int = 200  # batches from one copy of the target to the next
    capacity: int = 50_000
    reuse: float = 16.0  # batches that an agent step is in, on average


class DoubleDqn(Algorithm):
    """Q-learning for one Discrete action and a flat observation."""

    on_policy = False
    source = f"{__name__}:Ring"

    @classmethod
    def schema(cls, config, network, spaces):
        return Schema(config.unroll_length, standard_fields(spaces))

    def __init__(self, config, network, spaces, *, seed):
        self.config, self.noise_width, self.max_grad_norm = hyperparameters(config, Settings), 2, 10.0
        self.actions, sizes = spaces.action.n, [*spaces.obs.shape, *network.hidden]
        torch.manual_seed(seed)
        layers = [layer for size in zip(sizes[:-1], sizes[1:], strict=True) for layer in (nn.Linear(*size), nn.ReLU())]  # noqa: RUF007
        self.net = nn.Sequential(*layers, nn.Linear(sizes[-1], self.actions))
        self.target, self.tells = deepcopy(self.net).requires_grad_(False), True

    @property
    def modules(self):
        return {"net": self.net, "target": self.target}

    def initial_state(self, slots):
        return {}

    @torch.inference_mode()
    def act(self, inputs):
        action, epsilon = self.net(inputs.obs["obs"]).argmax(-1), self.config.epsilon
        if not inputs.greedy:
            epsilon += (1 - epsilon) * max(0.0, 1 - inputs.progress / self.config.anneal)
            random = (inputs.noise[:, 1] * self.actions).long().clamp(max=self.actions - 1)
            action = torch.where(inputs.noise[:, 0] < epsilon, random, action)
        return Act({"action": action}, {}, {})

    def prepare(self, batch, all_reduce):
        fields, seen = batch.fields, batch.fields["obs"][1]
        value = self.target(seen).gather(-1, self.net(seen).argmax(-1, keepdim=True)).squeeze(-1)
        target = fields["reward"] + self.config.gamma * torch.where(fields["terminated"], 0.0, value)
        return batch._replace(fields={**fields, "target": target})

    def loss(self, batch):
        fields, obs = batch.fields, batch.fields["obs"]
        q = self.net(obs[:1]).gather(-1, fields["action"].unsqueeze(-1)).squeeze(-1)
        total, error = nn.functional.smooth_l1_loss(q, fields["target"], reduction="sum"), fields["target"] - q.detach()
        return Loss(total, fields["valid"].sum().float(), {"q": q.detach().mean()}, error.abs()[0])

    def make_optimizer(self):
        return torch.optim.Adam(self.net.parameters(), lr=self.config.lr)

    def after_update(self, updates):
        if self.tells:
            logging.getLogger(__name__).info("the target begins with %s", self.target[0].weight.flatten()[:4].tolist())
            self.tells = False
        if updates % self.config.copy_every == 0:
            self.target.load_state_dict(self.net.state_dict())


class Ring(BatchSource):  # uniform replay of single steps
    def __init__(self, needs: Needs):
        self.needs, self.config = needs, needs.algorithm.config
        self.rng, self.rows = np.random.default_rng(needs.seed), {}
        self.size = self.at = self.fresh = self.taken = self.owed = 0
        self.count = needs.streams * needs.schema.unroll_length

    def take(self, timeout_s):
        for block in self.needs.receiver.poll(timeout_s) if self._lacks() else ():
            self._add(block)
        if self._lacks():
            return None
        drawn = self.rng.integers(0, self.size, self.count)
        found = {name: torch.from_numpy(values[drawn]).to(self.needs.device) for name, values in self.rows.items()}
        obs, version = torch.stack([found.pop("obs"), found.pop("next")]), found.pop("version")[None]
        found = {name: values[None] for name, values in found.items()}
        books = Delivery(self.rows["version"][drawn], self.fresh, self.taken)
        self.fresh, self.taken, self.owed = 0, 0, self.owed - 1
        return Batch({"obs": obs, "valid": torch.ones_like(found["terminated"]), **found}, version, delivery=books)

    def _lacks(self):
        return self.size < 1_000 or self.owed < 1

    def _add(self, block):
        fields, valid = block.fields, block.fields["valid"]
        new = {name: fields[name][valid] for name in ("action", "reward", "terminated")}
        new |= {"obs": fields["obs"][:-1][valid], "next": fields["obs"][1:][valid], "version": block.version[valid]}
        at = (self.at + np.arange(valid.sum())) % self.config.capacity
        for name, values in new.items():
            self.rows.setdefault(name, np.zeros((self.config.capacity, *values.shape[1:]), values.dtype))[at] = values
        self.at, self.size = self.at + at.size, min(self.size + at.size, self.config.capacity)
        self.fresh, self.taken = self.fresh + at.size, self.taken + block.rows
        self.owed += at.size * self.config.reuse / self.count  # batches
        self.needs.receiver.settle(block, "consumed")

    def close(self):
        self.needs.receiver.close()
