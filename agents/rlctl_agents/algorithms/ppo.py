"""PPO: several epochs of clipped policy gradients on each batch, which the newest policy alone has gathered.

docs/algorithms/ppo.md has the mathematics and every deviation from the paper (Schulman et al. 2017, arXiv:1707.06347).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from rlctl.spec import algorithms as specs
from rlctl.spec.schema import Network
from rlctl_agents.algorithms.actor_critic import (
    COEFFICIENTS,
    ActorCriticAlgorithm,
    Coefficients,
    explained_variance,
    standardised_by,
    sums,
)
from rlctl_agents.algorithms.base import Batch, Loss, below, shuffled
from rlctl_agents.models.moments import AllReduce
from rlctl_agents.ops.gae import gae
from rlctl_agents.types.spaces import Spaces

KL_MARGIN = 1.5
"""Epochs end when the KL of a minibatch is above target_kl times this: an estimate from few rows is noisy."""


class Clipped(Coefficients):
    """With the bound of the ratio."""

    clip: Tensor


class Ppo(ActorCriticAlgorithm):
    """Clipped actor-critic for every action space, with or without memory."""

    settings = specs.Ppo
    tunables = (*COEFFICIENTS, "clip")
    coefficients = Clipped
    config: specs.Ppo
    tunable: Clipped

    def __init__(self, config: specs.Algorithm, network: Network, spaces: Spaces, *, seed: int) -> None:
        super().__init__(config, network, spaces, seed=seed)
        self.additive = type(self).loss is Ppo.loss
        self.steps_per_batch = self.config.epochs * self.config.minibatches

    def prepare(self, batch: Batch | None, all_reduce: AllReduce) -> Batch | None:
        """Values, advantages and their targets by the weights that gathered the batch."""
        if batch is None:
            if self.config.advantage_norm:
                all_reduce(torch.zeros(3, dtype=torch.float64, device=self.tunable.gamma.device))  # no `sums`
            return None
        fields, valid = batch.fields, batch.fields["valid"]
        _, value = self.net.unroll(below(fields, "obs"), fields["first"], below(fields, "core"))
        discount = self.tunable.gamma * torch.logical_not(fields["terminated"])
        target, advantage = gae(self.rewards(batch), discount, value, valid, lambda_=self.tunable.lambda_)
        if self.config.advantage_norm:
            advantage = standardised_by(all_reduce(sums(advantage, valid)), advantage, valid)
        else:
            advantage = self.in_units(advantage)
        made = {"advantage": advantage, "target": target, "old_value": value[:-1]}
        return batch._replace(fields=fields | made)

    def minibatches(self, batch: Batch, rng: torch.Generator) -> Iterable[Batch]:
        """Rows in random order; with a memory, whole segments."""
        return shuffled(
            batch if self.net.core is not None else rows_apart(batch), self.config.epochs, self.config.minibatches, rng
        )

    def loss(self, batch: Batch) -> Loss:
        """Clipped policy gradient, value regression and entropy, summed over the valid rows."""
        config, tunable, fields = self.config, self.tunable, batch.fields
        valid, advantage = fields["valid"], fields["advantage"]
        steps = len(valid)
        obs = {name: leaf[:steps] for name, leaf in below(fields, "obs").items()}
        params, value = self.net.unroll(obs, fields["first"][:steps], below(fields, "core"))
        legal = fields["legal"][:steps] if "legal" in fields else None
        log_prob, entropy = self.net.distribution.score(params, below(fields, "action"), legal)

        log_ratio = torch.where(valid, log_prob - fields["log_prob"], 0.0)
        ratio = log_ratio.exp()
        clipped = torch.clamp(ratio, 1 - tunable.clip, 1 + tunable.clip)
        # where, not a product: what stands in a row that is not valid may be anything
        gain = torch.where(valid, torch.minimum(ratio * advantage, clipped * advantage), 0.0)

        target, old = fields["target"], fields["old_value"]
        error = self.in_units(target - value).square()
        if config.value_clip is not None:
            moved = self.in_units(value - old).clamp(-config.value_clip, config.value_clip)
            error = torch.maximum(error, (self.in_units(target - old) - moved).square())
        value_loss = torch.where(valid, 0.5 * error, 0.0).sum()
        entropy_sum = torch.where(valid, entropy, 0.0).sum()
        total = -gain.sum() + tunable.value_coef * value_loss - tunable.entropy_coef * entropy_sum
        rows = valid.sum().to(torch.float32)
        with torch.no_grad():
            count = rows.clamp(min=1)
            metrics = {
                "policy_loss": -gain.sum() / count,
                "value_loss": value_loss.detach() / count,
                "entropy": entropy_sum.detach() / count,
                # (r - 1) - log r: unbiased and never negative, as in IMPALA
                "kl": (ratio - 1 - log_ratio).sum() / count,
                "clipped": (valid & ((ratio - 1).abs() > tunable.clip)).sum() / count,
                "explained_variance": explained_variance(old, target, valid, count),
                **self.target_metrics(target, valid, count),
            }
        return Loss(total, rows, metrics)

    def ends_early(self, means: Mapping[str, float]) -> bool:
        limit = self.config.target_kl
        return limit is not None and means.get("kl", 0.0) > KL_MARGIN * limit


def rows_apart(batch: Batch) -> Batch:
    """The valid rows of a batch side by side as segments of one row: [1, rows, ...] each, without a row after the last.

    A network without memory may learn from any of them together.
    """
    valid = batch.fields["valid"]
    steps = len(valid)
    fields = {
        name: value[:steps][valid].unsqueeze(0)
        for name, value in batch.fields.items()
        if name not in batch.segment_fields
    }
    return Batch(fields, batch.version[valid].unsqueeze(0))
