"""IMPALA: an actor-critic whose experience may come from older policies, corrected by V-trace.

docs/algorithms/impala.md has the mathematics and every deviation from the paper (Espeholt et al. 2018,
arXiv:1802.01561).
"""

from __future__ import annotations

import torch

from rlctl.spec import algorithms as specs
from rlctl.spec.schema import Network
from rlctl_agents.algorithms.actor_critic import (
    ActorCriticAlgorithm,
    explained_variance,
    off_policy_metrics,
    off_policy_targets,
    require_clips,
    standardised,
)
from rlctl_agents.algorithms.base import Batch, Loss, below
from rlctl_agents.types.spaces import Spaces


class Impala(ActorCriticAlgorithm):
    """V-trace actor-critic for every action space, with or without memory."""

    settings = specs.Impala
    config: specs.Impala

    def __init__(self, config: specs.Algorithm, network: Network, spaces: Spaces, *, seed: int) -> None:
        super().__init__(config, network, spaces, seed=seed)
        require_clips(self.config)
        # neither what another class makes of the loss, nor advantage_norm, which looks at all rows of the batch
        self.additive = type(self).loss is Impala.loss and not self.config.advantage_norm

    def loss(self, batch: Batch) -> Loss:
        """Policy gradient, value regression and entropy, summed over the valid rows."""
        config, tunable, fields = self.config, self.tunable, batch.fields
        valid, behaviour = fields["valid"], fields["log_prob"]
        params, value = self.net.unroll(below(fields, "obs"), fields["first"], below(fields, "core"))
        legal = fields["legal"][:-1] if "legal" in fields else None
        log_prob, entropy = self.net.distribution.score(params[:-1], below(fields, "action"), legal)

        log_rho = torch.where(valid, log_prob.detach() - behaviour, 0.0)
        target, advantage = off_policy_targets(config, tunable, fields, self.rewards(batch), log_rho, value.detach())
        rows = valid.sum().to(torch.float32)
        advantage = standardised(advantage, valid, rows) if config.advantage_norm else self.in_units(advantage)
        error = self.in_units(target - value[:-1])
        # where, not a product: what stands in a row that is not valid may be anything
        policy_loss = -torch.where(valid, log_prob * advantage, 0.0).sum()
        value_loss = torch.where(valid, 0.5 * error.square(), 0.0).sum()
        entropy_sum = torch.where(valid, entropy, 0.0).sum()
        total = policy_loss + tunable.value_coef * value_loss - tunable.entropy_coef * entropy_sum
        with torch.no_grad():
            count = rows.clamp(min=1)
            metrics = {
                "policy_loss": policy_loss.detach() / count,
                "value_loss": value_loss.detach() / count,
                "entropy": entropy_sum.detach() / count,
                **off_policy_metrics(log_rho, valid, count, config.rho_max),
                "explained_variance": explained_variance(value[:-1].detach(), target, valid, count),
                **self.target_metrics(target, valid, count),
            }
        return Loss(total, rows, metrics)
