"""Q-learning with a target network: acting, targets and loss, to which DQN and Ape-X add exploration."""

from __future__ import annotations

import copy
from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from rlctl.spec import algorithms as specs
from rlctl.spec.schema import Network
from rlctl_agents.algorithms.base import Act, ActInputs, Batch, Loss, Tensors, below
from rlctl_agents.algorithms.replayed import ReplayedAlgorithm, means, seen
from rlctl_agents.models.q_network import Choices, QNetwork
from rlctl_agents.ops.td import regression
from rlctl_agents.types.experience import Field
from rlctl_agents.types.spaces import Spaces


class QLearning(ReplayedAlgorithm):
    """Q-learning for Discrete and MultiDiscrete actions, also combined. A subclass adds the exploration rate."""

    config: specs.QLearning
    network: ClassVar[type[QNetwork]] = QNetwork
    net: QNetwork

    @classmethod
    def recorded(cls, config: specs.Replayed) -> tuple[Field, ...]:
        """Fields for initial priorities: the values of the taken and of the best action."""
        return (Field("q", "float32", (), "row"), Field("q_max", "float32", (), "row")) if config.prioritized else ()

    def make_networks(self, network: Network, spaces: Spaces, seed: int) -> None:
        self.net = self.network(spaces, network, dueling=self.config.dueling, seed=seed)
        self.target = copy.deepcopy(self.net).requires_grad_(False)
        self.target.observed = None  # it gets the network's normalised observations
        self.choices = Choices(spaces.action)
        self.noise_width = 1 + self.choices.count
        self._weights: tuple[list[Tensor], list[Tensor]] = ([*self.target.parameters()], [*self.net.parameters()])

    @property
    def modules(self) -> dict[str, nn.Module]:
        return {"net": self.net, "target": self.target, "choices": self.choices}

    def trained(self) -> list[tuple[list[nn.Parameter], float]]:
        return [(list(self.net.parameters()), self.config.lr)]

    @abstractmethod
    def epsilon(self, inputs: ActInputs) -> Tensor | float:
        """Probability of a random action: [K], or one for all slots."""

    @torch.inference_mode()
    def act(self, inputs: ActInputs) -> Act:
        q, record, state = self.values(inputs)
        best, q_max = self.choices.best(q, inputs.legal)
        chosen = best
        if not inputs.greedy:
            coin, uniform = inputs.noise[:, :1], inputs.noise[:, 1:]
            epsilon = self.epsilon(inputs)
            explores = coin < (epsilon if isinstance(epsilon, float) else epsilon.unsqueeze(1))
            chosen = torch.where(explores, self.choices.random(uniform, inputs.legal), best)
        if self.config.prioritized:
            record |= {"q": self.choices.of(q, chosen), "q_max": q_max}
        return Act(self.choices.split(chosen), record, state)

    def values(self, inputs: ActInputs) -> tuple[Tensor, Tensors, Tensors]:
        """Action values [K, options] of the slots that act, further fields to record, and their memory afterwards."""
        return self.net(self.net.seen(inputs.obs)), {}, {}

    def made(self, fields: Tensors, first: Tensors, after: Tensors, reward: Tensor, discount: Tensor) -> Tensors:
        """`column` of the chosen actions, and `target`, which does not change within a batch: `double` selects actions
        by the network as it is when the batch begins."""
        legal = fields["legal"][1] if "legal" in fields else None
        q = self.target(after)
        if self.config.double:
            q_next = self.choices.of(q, self.choices.best(self.net(after), legal)[0])
        else:
            q_next = self.choices.best(q, legal)[1]
        action = {name: leaf[0] for name, leaf in below(fields, "action").items()}
        return {"target": torch.addcmul(reward, discount, q_next), "column": self.choices.columns(action)}

    def loss(self, batch: Batch) -> Loss:
        """Weighted squared error of the values of the taken actions, or Huber's with `huber`."""
        fields = batch.fields
        q, target = self.net(seen(batch)), fields["target"]
        total, error = regression(q, target, fields["weight"], self.config.huber, fields["column"])
        with torch.no_grad():
            size = error.abs()
            shown = means(td_error=size, q=target + error, target=target)
            rows = torch.full_like(total, len(size))
        return Loss(total, rows, shown, size if self.config.prioritized else None)

    def after_update(self, updates: int) -> None:
        """Update the target network every `target_every_updates` batches."""
        if updates % self.config.target_every_updates:
            return
        target, net = self._weights
        if self.config.tau == 1.0:
            torch._foreach_copy_(target, net)
        else:
            torch._foreach_lerp_(target, net, self.config.tau)
