"""PPO: several epochs of clipped policy gradients on each batch of the newest policy's experience.

docs/algorithms/ppo.md has the mathematics and every deviation from the paper (Schulman et al. 2017, arXiv:1707.06347).
"""

from __future__ import annotations

import torch

from rlctl.spec import algorithms as specs
from rlctl.spec.schema import Network
from rlctl_agents.algorithms.base import Batch, Tensors, below
from rlctl_agents.algorithms.clipped import ClippedAlgorithm
from rlctl_agents.ops.gae import gae
from rlctl_agents.types.spaces import Spaces


class Ppo(ClippedAlgorithm):
    """Clipped actor-critic for every action space, with or without memory."""

    settings = specs.Ppo
    config: specs.Ppo

    def __init__(self, config: specs.Algorithm, network: Network, spaces: Spaces, *, seed: int) -> None:
        super().__init__(config, network, spaces, seed=seed)
        self.additive = type(self).loss is Ppo.loss

    def estimates(self, batch: Batch) -> Tensors:
        """Advantages by GAE, value targets and old values by the current weights, before the batch changes them."""
        fields = batch.fields
        _, value = self.net.unroll(below(fields, "obs"), fields["first"], below(fields, "core"))
        discount = self.tunable.gamma * torch.logical_not(fields["terminated"])
        target, advantage = gae(self.rewards(batch), discount, value, fields["valid"], lambda_=self.tunable.lambda_)
        return {"advantage": advantage, "target": target, "old_value": value[:-1], "old_log_prob": fields["log_prob"]}
