"""APPO: clipped policy gradients on experience of older policies, each batch learned from several times.

docs/algorithms/appo.md has the mathematics and every deviation from the paper (IMPACT, Luo et al. 2020,
arXiv:1912.00167).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from copy import deepcopy

import torch
from torch import nn

from rlctl.spec import algorithms as specs
from rlctl.spec.schema import Network
from rlctl_agents.algorithms.actor_critic import off_policy_rows, off_policy_targets, require_clips
from rlctl_agents.algorithms.base import Batch, Tensors, below, joined
from rlctl_agents.algorithms.clipped import ClippedAlgorithm
from rlctl_agents.models.moments import AllReduce
from rlctl_agents.types.spaces import Spaces


class Appo(ClippedAlgorithm):
    """Asynchronous clipped actor-critic for every action space, with or without memory.

    A version is learned from the newest batch and from copies of older ones; the copies are not saved.
    """

    settings = specs.Appo
    config: specs.Appo
    memory_steps = 25_600  # a batch of 512, with which the settings were chosen, is 2 % of it
    shown = ("rho", "rho_clipped", "kl_actors")
    """Distances of the target network from the actors; `kl` is the distance of the network from the target network."""

    def __init__(self, config: specs.Algorithm, network: Network, spaces: Spaces, *, seed: int) -> None:
        super().__init__(config, network, spaces, seed=seed)
        require_clips(self.config)
        self.additive = type(self).loss is Appo.loss
        self.target = deepcopy(self.net).requires_grad_(False)
        self._newest: Batch | None = None
        self._older: deque[Batch] = deque(maxlen=self.config.buffer_batches - 1)  # copies, newest first

    @property
    def modules(self) -> dict[str, nn.Module]:
        return {**super().modules, "target": self.target}

    def prepare(self, batch: Batch | None, all_reduce: AllReduce) -> Batch | None:
        """Join the batch with older ones, fewer until the buffer is full, and add estimates."""
        self._newest = batch
        if batch is not None and self._older:
            held = [batch, *self._older]
            batch = joined([held[age] for age in self.config.ages if age < len(held)])
        return super().prepare(batch, all_reduce)

    def estimates(self, batch: Batch) -> Tensors:
        """V-trace of the target network's policy, with the current values."""
        config, fields = self.config, batch.fields
        inputs = below(fields, "obs"), fields["first"], below(fields, "core")
        params, value = self.net.unroll(*inputs)
        if config.target_every_updates > 1:  # otherwise it is this network
            params, _ = self.target.unroll(*inputs)
        legal = fields["legal"][:-1] if "legal" in fields else None
        log_prob, _ = self.net.distribution.score(params[:-1], below(fields, "action"), legal)
        log_rho = torch.where(fields["valid"], log_prob - fields["log_prob"], 0.0)
        target, advantage = off_policy_targets(config, self.tunable, fields, self.rewards(batch), log_rho, value)
        # pi / max(target's, actor's / bound) is min(actor's / target's, bound) * pi / actor's
        old = fields["log_prob"] + log_rho.clamp(min=-math.log(config.target_rho_max))
        made = {"advantage": advantage, "target": target, "old_value": value[:-1], "old_log_prob": old}
        return made | off_policy_rows(log_rho, config.rho_max)

    def update_statistics(self, batch: Batch | None, means: Mapping[str, float], all_reduce: AllReduce) -> None:
        """Observations count once, with the batch that they come in."""
        super().update_statistics(self._newest, means, all_reduce)

    def after_update(self, updates: int) -> None:
        """Keep the newest batch, and copy the network to the target network when it is due."""
        if self._newest is not None and self._older.maxlen:
            fields = {name: one.clone() for name, one in self._newest.fields.items()}
            self._older.appendleft(self._newest._replace(fields=fields, version=self._newest.version.clone()))
        self._newest = None
        if updates % self.config.target_every_updates == 0:
            self.target.load_state_dict(self.net.state_dict())
