"""SAC: an actor-critic that maximises reward and entropy, with a learned weight between the two.

docs/algorithms/sac.md has the mathematics and every deviation from the papers (Haarnoja et al. 2018, arXiv:1812.05905,
for continuous actions; Christodoulou 2019, arXiv:1910.07207, for discrete ones).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from rlctl.spec import algorithms as specs
from rlctl.spec.schema import Network
from rlctl_agents.algorithms.base import Act, ActInputs, AlgorithmError, Batch, Loss, Tensors
from rlctl_agents.algorithms.replayed import means, seen
from rlctl_agents.algorithms.twin_critics import BoundedActions, TwinCriticsAlgorithm, after
from rlctl_agents.models.critics import ChoicePolicy, SquashedPolicy, TwinCritics, normals
from rlctl_agents.models.q_network import Choices
from rlctl_agents.ops.td import regression
from rlctl_agents.types.spaces import Box, Spaces, leaves

LIKELY = 0.5
"""Default target entropy, as a share of the entropy of a uniform choice."""


class Temperature(nn.Module):
    """Weight of the entropy, as its logarithm."""

    def __init__(self, value: float, *, learned: bool) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(math.log(value)), requires_grad=learned)


class SoftActorCritic(TwinCriticsAlgorithm):
    """Base of both kinds of soft actor-critic: the temperature, and the trained parameters."""

    settings = specs.Sac
    config: specs.Sac
    likely_entropy: float
    """Target entropy in nats with `target_entropy: auto`; set by `make_policy`."""

    def make_networks(self, network: Network, spaces: Spaces, seed: int) -> None:
        super().make_networks(network, spaces, seed)
        given, entropy = self.config.temperature, self.config.target_entropy
        self.temperature = Temperature(1.0 if given == "auto" else given, learned=given == "auto")
        self.target_entropy = self.likely_entropy if entropy == "auto" else entropy

    @property
    def modules(self) -> dict[str, nn.Module]:
        return {**super().modules, "temperature": self.temperature}

    def trained(self) -> list[tuple[list[nn.Parameter], float]]:
        config = self.config
        groups = [(list(self.net.parameters()), config.lr), (list(self.critics.parameters()), self.critic_lr)]
        if config.temperature == "auto":
            groups.append(([self.temperature.log], config.temperature_lr or config.lr))
        return groups

    def soft_loss(self, critics: Tensor, error: Tensor, soft: Tensor, entropy: Tensor, batch: Batch, q: Tensor) -> Loss:
        """Sum of the losses of critics, policy and temperature.

        Args:
            critics: scalar, loss of both critics.
            error: [2, B] errors of their values.
            soft: [B] loss of the policy.
            entropy: [B] nats of the policy, or an estimate.
            q: [B] values of one critic, to be reported.
        """
        total = critics + soft.sum()
        if self.config.temperature == "auto":
            each = batch.fields.get("target_entropy")
            wanted = self.target_entropy * len(soft) if each is None else each.sum()
            total = total + self.temperature.log * (entropy.detach().sum() - wanted)
        with torch.no_grad():
            size = error.abs().mean(0)
            shown = means(td_error=size, q=q, target=batch.fields["target"], policy_loss=soft, entropy=entropy)
            rows = torch.full_like(total, len(size))
        metrics = {**shown, "alpha": self.temperature.log.detach().exp()}
        return Loss(total, rows, metrics, size if self.config.prioritized else None)


class Sac(SoftActorCritic, BoundedActions):
    """Soft actor-critic for continuous actions; for discrete ones the constructor returns a `DiscreteSac`."""

    net: SquashedPolicy

    def __new__(cls, config: specs.Algorithm, network: Network, spaces: Spaces, *, seed: int) -> Any:
        if not any(isinstance(leaf, Box) for _, leaf in leaves(spaces.action, "action")):
            if cls is not Sac:
                raise AlgorithmError(f"{cls.__name__}: for actions without a Box derive it from DiscreteSac")
            return DiscreteSac(config, network, spaces, seed=seed)
        return super().__new__(cls)

    def make_policy(self, network: Network, spaces: Spaces, seed: int) -> SquashedPolicy:
        policy = SquashedPolicy(spaces, network, seed=seed)
        self.bounds = policy.bounds
        self.likely_entropy = -float(self.bounds.count)
        return policy

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
        return self.soft_loss(total, error, soft, -log_prob, batch, q[0])


class DiscreteSac(SoftActorCritic):
    """Soft actor-critic for Discrete and MultiDiscrete actions, with exact expectations in place of samples.

    The choices of an action are independent given the observation, and its value is the sum of theirs, so that both
    expectations are sums over the options.
    """

    net: ChoicePolicy

    def make_policy(self, network: Network, spaces: Spaces, seed: int) -> ChoicePolicy:
        policy = ChoicePolicy(spaces, network, seed=seed)
        self.likely_entropy = LIKELY * sum(math.log(size) for size in policy.sizes)
        return policy

    def make_critics(self, network: Network, spaces: Spaces, seed: int) -> TwinCritics:
        self.choices = Choices(spaces.action)
        self.noise_width = self.net.distribution.noise_width
        return TwinCritics(spaces, network, 0, options=sum(self.net.sizes), seed=seed)

    @property
    def modules(self) -> dict[str, nn.Module]:
        return {**super().modules, "choices": self.choices}

    @torch.inference_mode()
    def act(self, inputs: ActInputs) -> Act:
        if not inputs.greedy and inputs.progress < self.config.random_steps:
            return Act(self.choices.split(self.choices.random(inputs.noise, inputs.legal)), {}, {})
        logits, distribution = self.net(self.net.seen(inputs.obs)), self.net.distribution
        if inputs.greedy:
            return Act(distribution.mode(logits, inputs.legal)[0], {}, {})
        return Act(distribution.sample(logits, inputs.noise, inputs.legal)[0], {}, {})

    def made(self, fields: Tensors, first: Tensors, after: Tensors, reward: Tensor, discount: Tensor) -> Tensors:
        """The base class's fields and, with masks, the target entropy of each row by its legal options."""
        made = super().made(fields, first, after, reward, discount)
        if "legal" in made and self.config.target_entropy == "auto":
            legal = [part.sum(1).clamp(min=1) for part in made["legal"].split_with_sizes(self.net.sizes, 1)]
            made["target_entropy"] = LIKELY * torch.stack(legal, 1).log().sum(1)
        return made

    def taken(self, action: Tensors) -> Tensors:
        return {"column": self.choices.columns(action)}

    def target(self, fields: Tensors) -> Tensor:
        """y = r + discount sum over a' of pi(a'|x') (min Q'(x', a') - alpha log pi(a'|x'))."""
        x, critics = after(fields), self.target_critics
        log_p = self.net.log_probs(x, fields.get("next_legal"))
        value = critics(critics.features(x)).amin(0) - self.temperature.log.exp() * log_p
        return torch.addcmul(fields["reward"], fields["discount"], (log_p.exp() * value).sum(1))

    def loss(self, batch: Batch) -> Loss:
        """Squared errors of both critics; sum over a of pi(a) (alpha log pi(a) - min Q(a)); the temperature's own."""
        fields, x = batch.fields, seen(batch)
        table = self.critics(self.critics.features(x))
        q = table.gather(2, fields["column"].expand(2, -1, -1)).sum(2)
        total, error = regression(q, fields["target"], fields["weight"])
        log_p = self.net.log_probs(x, fields.get("legal"))
        p, alpha = log_p.exp(), self.temperature.log.detach().exp()
        soft = (p * (alpha * log_p - table.detach().amin(0))).sum(1)
        return self.soft_loss(total, error, soft, -(p * log_p).sum(1), batch, q[0])
