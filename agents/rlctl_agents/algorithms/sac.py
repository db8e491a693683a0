"""SAC: an actor-critic that maximises reward and entropy, with a learned weight between the two.

docs/algorithms/sac.md has the mathematics and every deviation from the paper (Haarnoja et al. 2018, arXiv:1812.05905).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from rlctl.spec import algorithms as specs
from rlctl.spec.schema import Network
from rlctl_agents.algorithms.base import ActInputs, Batch, Loss, Tensors
from rlctl_agents.algorithms.replayed import means, seen
from rlctl_agents.algorithms.twin_critics import TwinCriticsAlgorithm, after
from rlctl_agents.models.critics import SquashedPolicy, normals
from rlctl_agents.ops.td import regression
from rlctl_agents.types.spaces import Spaces


class Temperature(nn.Module):
    """Weight of the entropy, as its logarithm."""

    def __init__(self, value: float, *, learned: bool) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(math.log(value)), requires_grad=learned)


class Sac(TwinCriticsAlgorithm):
    """Soft actor-critic."""

    settings = specs.Sac
    config: specs.Sac
    net: SquashedPolicy

    def make_networks(self, network: Network, spaces: Spaces, seed: int) -> None:
        super().make_networks(network, spaces, seed)
        given, entropy = self.config.temperature, self.config.target_entropy
        self.temperature = Temperature(1.0 if given == "auto" else given, learned=given == "auto")
        self.target_entropy = -float(self.bounds.count) if entropy == "auto" else entropy

    def make_policy(self, network: Network, spaces: Spaces, seed: int) -> SquashedPolicy:
        policy = SquashedPolicy(spaces, network, seed=seed)
        self.bounds = policy.bounds
        return policy

    @property
    def modules(self) -> dict[str, nn.Module]:
        return {**super().modules, "temperature": self.temperature}

    def trained(self) -> list[tuple[list[nn.Parameter], float]]:
        config = self.config
        groups = [(list(self.net.parameters()), config.lr), (list(self.critics.parameters()), self.critic_lr)]
        if config.temperature == "auto":
            groups.append(([self.temperature.log], config.temperature_lr or config.lr))
        return groups

    def decide(self, seen: Tensors, inputs: ActInputs) -> Tensor:
        action: Tensor = self.net(seen, None if inputs.greedy else normals(inputs.noise))[0]
        return action

    def target(self, fields: Tensors) -> Tensor:
        """y = r + discount (min Q'(x', a') - alpha log pi(a'|x')), a' of the policy."""
        x = after(fields)
        action, log_prob = self.net(x, fields["next_noise"])
        critics = self.target_critics
        value = critics(critics.features(x), action).amin(0) - self.temperature.log.exp() * log_prob
        return torch.addcmul(fields["reward"], fields["discount"], value)

    def loss(self, batch: Batch) -> Loss:
        """Squared errors of both critics; alpha log pi - min Q of the policy; the temperature's own."""
        fields, x = batch.fields, seen(batch)
        features = self.critics.features(x)
        q = self.critics(features, fields["units"])
        total, error = regression(q, fields["target"], fields["weight"])

        action, log_prob = self.net(x, fields["noise"])
        alpha = self.temperature.log.detach().exp()
        soft = alpha * log_prob - self.critics(features.detach(), action, frozen=True).amin(0)
        total = total + soft.sum()
        if self.config.temperature == "auto":
            total = total - self.temperature.log * (log_prob.detach().sum() + self.target_entropy * len(soft))
        with torch.no_grad():
            size = error.abs().mean(0)
            shown = means(td_error=size, q=q[0], target=fields["target"], policy_loss=soft, entropy=-log_prob)
            rows = torch.full_like(total, len(size))
        return Loss(total, rows, {**shown, "alpha": alpha}, size if self.config.prioritized else None)
