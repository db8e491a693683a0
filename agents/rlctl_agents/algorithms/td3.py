"""TD3: a deterministic actor-critic with two critics, a delayed policy and smoothed targets.

docs/algorithms/td3.md has the mathematics and every deviation from the paper (Fujimoto et al. 2018, arXiv:1802.09477).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from rlctl.spec import algorithms as specs
from rlctl.spec.schema import Network
from rlctl_agents.algorithms.base import ActInputs, AlgorithmError, Batch, Loss, Tensors
from rlctl_agents.algorithms.replayed import means, seen
from rlctl_agents.algorithms.twin_critics import BoundedActions, after, paired
from rlctl_agents.models.critics import TanhPolicy, normals
from rlctl_agents.models.moments import AllReduce
from rlctl_agents.ops.td import regression
from rlctl_agents.types.spaces import Spaces


class Td3(BoundedActions):
    """Twin delayed deep deterministic policy gradient."""

    settings = specs.Td3
    config: specs.Td3
    net: TanhPolicy

    def make_networks(self, network: Network, spaces: Spaces, seed: int) -> None:
        super().make_networks(network, spaces, seed)
        self.target_policy = copy.deepcopy(self.net).requires_grad_(False)
        self.target_policy.observed = None  # it gets the network's normalised observations
        followers, sources = paired(self.target_policy, self.net)
        self._pairs = (self._pairs[0] + followers, self._pairs[1] + sources)
        self.moving = self.config.policy_every
        if self.steps_per_batch % self.moving:
            raise AlgorithmError(
                f"algorithm.batch_size must be a multiple of minibatch_size x policy_every = "
                f"{self.config.minibatch_size} x {self.moving}, got {self.config.batch_size}"
            )
        self._of_policy = list(self.net.parameters())
        self._policy_moves = self.moving == 1
        self._optimizer: torch.optim.Optimizer | None = None

    def make_policy(self, network: Network, spaces: Spaces, seed: int) -> TanhPolicy:
        policy = TanhPolicy(spaces, network, seed=seed)
        self.bounds = policy.bounds
        return policy

    @property
    def modules(self) -> dict[str, nn.Module]:
        return {**super().modules, "target_policy": self.target_policy}

    def trained(self) -> list[tuple[list[nn.Parameter], float]]:
        return [(self._of_policy, self.config.lr), (list(self.critics.parameters()), self.critic_lr)]

    def make_optimizer(self) -> torch.optim.Optimizer:
        self._optimizer = super().make_optimizer()
        return self._optimizer

    def _hold_policy(self) -> None:
        """Keep the optimizer's moments from moving the policy in steps of the critics alone."""
        self._policy_moves = (self._steps + 1) % self.moving == 0
        if self._optimizer is not None:
            self._optimizer.param_groups[0]["held"] = not self._policy_moves

    def decide(self, seen: Tensors, inputs: ActInputs) -> Tensor:
        action: Tensor = self.net(seen)
        if inputs.greedy:
            return action
        return torch.add(action, normals(inputs.noise), alpha=self.config.exploration_noise).clamp_(-1.0, 1.0)

    def target(self, fields: Tensors) -> Tensor:
        """y = r + discount min Q'(x', a'), a' of the target policy with clipped noise."""
        config, x, critics = self.config, after(fields), self.target_critics
        noise = (fields["next_noise"] * config.target_noise).clamp_(-config.target_noise_clip, config.target_noise_clip)
        action = (self.target_policy(x) + noise).clamp_(-1.0, 1.0)
        return torch.addcmul(fields["reward"], fields["discount"], critics(critics.features(x), action).amin(0))

    def prepare(self, batch: Batch | None, all_reduce: AllReduce) -> Batch | None:
        made = super().prepare(batch, all_reduce)
        self._hold_policy()
        return made

    def after_step(self, means: Mapping[str, float]) -> None:
        super().after_step(means)
        self._hold_policy()

    def loss(self, batch: Batch) -> Loss:
        """Squared errors of both critics; in every `policy_every`-th step also -Q of the policy, by the first one."""
        fields, x = batch.fields, seen(batch)
        features = self.critics.features(x)
        q = self.critics(features, fields["units"])
        total, error = regression(q, fields["target"], fields["weight"])
        if self._policy_moves:
            total = total - self.critics(features.detach(), self.net(x), frozen=True)[0].sum()
        else:
            # learners that step together wait for a gradient of every parameter
            total = total + 0.0 * torch.stack([one.sum() for one in self._of_policy]).sum()
        with torch.no_grad():
            size = error.abs().mean(0)
            shown = means(td_error=size, q=q[0], target=fields["target"])
            rows = torch.full_like(total, len(size))
        return Loss(total, rows, shown, size if self.config.prioritized else None)
