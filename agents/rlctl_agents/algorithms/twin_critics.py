"""Actor-critics with two critics for actions that are real numbers: networks, targets, exploration; SAC and TD3 add the
rest."""

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
from rlctl_agents.models.q_network import Observing
from rlctl_agents.types.spaces import Spaces


class TwinCriticsAlgorithm(ReplayedAlgorithm):
    """Policy and two critics. Actions are in units of half the width of their bounds, from -1 to 1, but in the records
    of actors."""

    config: specs.Continuous
    bounds: Bounds
    moving: int = 1
    """Optimizer steps from one move of the target networks to the next."""

    def make_networks(self, network: Network, spaces: Spaces, seed: int) -> None:
        self.net = self.make_policy(network, spaces, seed)
        self.critics = TwinCritics(spaces, network, self.bounds.count, seed=seed + 2)
        self.target_critics = copy.deepcopy(self.critics).requires_grad_(False)
        self.noise_width = self.bounds.count
        self._steps = 0  # of the batch
        self._pairs = paired(self.target_critics, self.critics)

    @abstractmethod
    def make_policy(self, network: Network, spaces: Spaces, seed: int) -> Observing:
        """Make the policy's network, and take its `bounds`."""

    @property
    def modules(self) -> dict[str, nn.Module]:
        return {"net": self.net, "critics": self.critics, "target_critics": self.target_critics}

    @property
    def critic_lr(self) -> float:
        return self.config.critic_lr or self.config.lr

    @torch.inference_mode()
    def act(self, inputs: ActInputs) -> Act:
        if not inputs.greedy and inputs.progress < self.config.random_steps:
            return Act(self.bounds.to_action(2 * inputs.noise - 1), {}, {})
        return Act(self.bounds.to_action(self.decide(self.net.seen(inputs.obs), inputs)), {}, {})

    @abstractmethod
    def decide(self, seen: Tensors, inputs: ActInputs) -> Tensor:
        """[K, A] the actions of the policy, in units."""

    def made(self, fields: Tensors, first: Tensors, after: Tensors, reward: Tensor, discount: Tensor) -> Tensors:
        action = {name: leaf[0] for name, leaf in below(fields, "action").items()}
        made = {"reward": reward, "discount": discount, "units": self.bounds.to_units(action)}
        return made | {f"next.{name}": leaf for name, leaf in after.items()}

    def prepare(self, batch: Batch | None, all_reduce: AllReduce) -> Batch | None:
        self._steps = 0
        return super().prepare(batch, all_reduce)

    def minibatches(self, batch: Batch, rng: torch.Generator) -> Iterator[Batch]:
        """Each with the targets of its rows as the networks are by then."""
        size = (len(batch.fields["units"]), self.bounds.count)
        noise = torch.randn(2, *size, generator=rng).to(batch.version.device)
        fields = batch.fields | {"noise": noise[0], "next_noise": noise[1]}
        whole = batch._replace(fields=fields, segment_fields=frozenset(fields))
        for part in self.parts(whole):
            with torch.no_grad():
                target = self.target(part.fields)
            yield part._replace(
                fields=part.fields | {"target": target}, segment_fields=part.segment_fields | {"target"}
            )

    @torch.no_grad()
    def ends_early(self, means: Mapping[str, float]) -> bool:
        """Never; moves the target networks after every `moving` optimizer steps, on a learner without rows too."""
        self._steps += 1
        if self._steps % self.moving == 0:
            torch._foreach_lerp_(*self._pairs, self.config.tau)
        return False

    @abstractmethod
    def target(self, fields: Tensors) -> Tensor:
        """[B] what both critics move to."""


def paired(target: nn.Module, source: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """Parameters of a target network, and what they follow."""
    return [*target.parameters()], [*source.parameters()]


def after(fields: Tensors) -> Tensors:
    """Observations after the steps of each row, by the names of the space."""
    return {name.removeprefix("next."): leaf for name, leaf in below(fields, "next").items()}
