"""Actor-critics with two critics and a replay: networks and targets; exploration and noise for real-valued actions."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from rlctl.spec import algorithms as specs
from rlctl.spec.schema import Network
from rlctl_agents.algorithms.base import Act, ActInputs, Batch, Tensors, below
from rlctl_agents.algorithms.replayed import ReplayedAlgorithm
from rlctl_agents.models.critics import Bounds, TwinCritics
from rlctl_agents.models.moments import AllReduce
from rlctl_agents.models.q_network import NormalizedTorso
from rlctl_agents.types.spaces import Spaces


class TwinCriticsAlgorithm(ReplayedAlgorithm):
    """Policy and two critics, with target critics that follow them."""

    config: specs.Continuous
    moving: int = 1
    """Optimizer steps between two updates of the target networks."""

    def make_networks(self, network: Network, spaces: Spaces, seed: int) -> None:
        self.net = self.make_policy(network, spaces, seed)
        self.critics = self.make_critics(network, spaces, seed + 2)
        self.target_critics = copy.deepcopy(self.critics).requires_grad_(False)
        self._steps = 0  # of the batch
        self._pairs = paired(self.target_critics, self.critics)

    @abstractmethod
    def make_policy(self, network: Network, spaces: Spaces, seed: int) -> NormalizedTorso:
        """Make the policy's network."""

    @abstractmethod
    def make_critics(self, network: Network, spaces: Spaces, seed: int) -> TwinCritics:
        """Make the critics, after the policy."""

    @property
    def modules(self) -> dict[str, nn.Module]:
        return {"net": self.net, "critics": self.critics, "target_critics": self.target_critics}

    @property
    def critic_lr(self) -> float:
        return self.config.critic_lr or self.config.lr

    def made(self, fields: Tensors, first: Tensors, after: Tensors, reward: Tensor, discount: Tensor) -> Tensors:
        action = {name: leaf[0] for name, leaf in below(fields, "action").items()}
        made = {"reward": reward, "discount": discount, **self.taken(action)}
        if "legal" in fields:
            made |= {"legal": fields["legal"][0], "next_legal": fields["legal"][1]}
        return made | {f"next.{name}": leaf for name, leaf in after.items()}

    @abstractmethod
    def taken(self, action: Tensors) -> Tensors:
        """Fields of the taken actions as the critics need them, from actions [B, ...] in the form of the space."""

    def noise(self, rows: int, rng: torch.Generator) -> Tensors:
        """Random numbers [rows, ...] for targets and losses, on the CPU."""
        return {}

    def prepare(self, batch: Batch | None, all_reduce: AllReduce) -> Batch | None:
        self._steps = 0
        return super().prepare(batch, all_reduce)

    def minibatches(self, batch: Batch, rng: torch.Generator) -> Iterator[Batch]:
        """Minibatches, each with targets by the networks at that time."""
        drawn = self.noise(len(batch.fields["reward"]), rng)
        fields = batch.fields | {name: one.to(batch.version.device) for name, one in drawn.items()}
        whole = batch._replace(fields=fields, segment_fields=frozenset(fields))
        for part in self.parts(whole):
            with torch.no_grad():
                target = self.target(part.fields)
            yield part._replace(
                fields=part.fields | {"target": target}, segment_fields=part.segment_fields | {"target"}
            )

    @torch.no_grad()
    def after_step(self, means: Mapping[str, float]) -> None:
        """Update the target networks after every `moving` optimizer steps."""
        self._steps += 1
        if self._steps % self.moving == 0:
            torch._foreach_lerp_(*self._pairs, self.config.tau)

    @abstractmethod
    def target(self, fields: Tensors) -> Tensor:
        """[B] targets of both critics."""


class BoundedActions(TwinCriticsAlgorithm):
    """Base for real-valued actions: scaled by their bounds to [-1, 1], except in the actions that `act` returns."""

    bounds: Bounds
    """Bounds of the actions; `make_policy` sets them."""

    def make_critics(self, network: Network, spaces: Spaces, seed: int) -> TwinCritics:
        self.noise_width = self.bounds.count
        return TwinCritics(spaces, network, self.bounds.count, seed=seed)

    @torch.inference_mode()
    def act(self, inputs: ActInputs) -> Act:
        if not inputs.greedy and inputs.progress < self.config.random_steps:
            return Act(self.bounds.to_action(2 * inputs.noise - 1), {}, {})
        return Act(self.bounds.to_action(self.decide(self.net.seen(inputs.obs), inputs)), {}, {})

    @abstractmethod
    def decide(self, seen: Tensors, inputs: ActInputs) -> Tensor:
        """Actions [K, A] of the policy, in [-1, 1]."""

    def taken(self, action: Tensors) -> Tensors:
        return {"units": self.bounds.to_units(action)}

    def noise(self, rows: int, rng: torch.Generator) -> Tensors:
        both = torch.randn(2, rows, self.bounds.count, generator=rng)
        return {"noise": both[0], "next_noise": both[1]}


def paired(target: nn.Module, source: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """Parameters of a target network, and the parameters of its source that they follow."""
    return [*target.parameters()], [*source.parameters()]


def after(fields: Tensors) -> Tensors:
    """Observations after the steps of each row, by the names of the space."""
    return {name.removeprefix("next."): leaf for name, leaf in below(fields, "next").items()}
