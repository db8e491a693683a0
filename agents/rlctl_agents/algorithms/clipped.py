"""The clipped surrogate: what PPO and APPO learn from a batch, once its advantages and targets are known.

Schulman et al. 2017, arXiv:1707.06347, equation 7.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import ClassVar

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
from rlctl_agents.algorithms.base import Batch, Loss, Tensors, below, shuffled
from rlctl_agents.models.moments import AllReduce
from rlctl_agents.types.spaces import Spaces

KL_MARGIN = 1.5
"""The steps of a batch end when the KL of a minibatch is above target_kl times this: an estimate from few rows is
noisy."""


class ClippedCoefficients(Coefficients):
    """With the bound of the ratio."""

    clip: Tensor


class ClippedAlgorithm(ActorCriticAlgorithm):
    """Several optimizer steps on each batch, none of which gains from moving the policy far from an old one.

    A subclass adds `estimates`.
    """

    tunables = (*COEFFICIENTS, "clip")
    coefficients = ClippedCoefficients
    settings: ClassVar[type[specs.Clipped]]
    config: specs.Clipped
    tunable: ClippedCoefficients

    def __init__(self, config: specs.Algorithm, network: Network, spaces: Spaces, *, seed: int) -> None:
        super().__init__(config, network, spaces, seed=seed)
        self.steps_per_batch = self.config.passes * self.config.minibatches

    @abstractmethod
    def estimates(self, batch: Batch) -> Tensors:
        """Fields of all minibatches: `advantage`, `target` (of the value), `old_value` and `old_log_prob`, [T, B]."""

    def prepare(self, batch: Batch | None, all_reduce: AllReduce) -> Batch | None:
        """With estimates by the weights as they are now, and advantages of one scale."""
        if batch is None:
            if self.config.advantage_norm:
                all_reduce(torch.zeros(3, dtype=torch.float64, device=self.tunable.gamma.device))  # no `sums`
            return None
        made, valid = self.estimates(batch), batch.fields["valid"]
        if self.config.advantage_norm:
            made["advantage"] = standardised_by(all_reduce(sums(made["advantage"], valid)), made["advantage"], valid)
        else:
            made["advantage"] = self.in_units(made["advantage"])
        return batch._replace(fields=batch.fields | made)

    def minibatches(self, batch: Batch, rng: torch.Generator) -> Iterable[Batch]:
        """Rows in random order; with a memory, whole segments."""
        whole = batch if self.net.core is not None else rows_apart(batch)
        return shuffled(whole, self.config.passes, self.config.minibatches, rng)

    def loss(self, batch: Batch) -> Loss:
        """Clipped policy gradient, value regression and entropy, summed over the valid rows of a prepared batch."""
        config, tunable, fields = self.config, self.tunable, batch.fields
        valid, advantage = fields["valid"], fields["advantage"]
        steps = len(valid)
        obs = {name: leaf[:steps] for name, leaf in below(fields, "obs").items()}
        params, value = self.net.unroll(obs, fields["first"][:steps], below(fields, "core"))
        legal = fields["legal"][:steps] if "legal" in fields else None
        log_prob, entropy = self.net.distribution.score(params, below(fields, "action"), legal)

        log_ratio = torch.where(valid, log_prob - fields["old_log_prob"], 0.0)
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
                # (r - 1) - log r: unbiased and never negative
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
