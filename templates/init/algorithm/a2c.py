"""An algorithm of your own: A2C, a policy gradient with a learned baseline (Mnih et al. 2016, arXiv:1602.01783)."""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from rlctl.spec import algorithms as specs
from rlctl.spec.schema import Network
from rlctl_agents.algorithms.base import (
    Act,
    ActInputs,
    Algorithm,
    AlgorithmError,
    Batch,
    Loss,
    Tensors,
    below,
    hyperparameters,
    standard_fields,
)
from rlctl_agents.models.policy import ActorCritic
from rlctl_agents.ops.gae import gae
from rlctl_agents.types.experience import Schema
from rlctl_agents.types.spaces import Spaces


class Settings(specs.Algorithm):
    """Hyperparameters below `algorithm.params`. Those of every algorithm, such as unroll_length and gamma, stand beside
    it: rlctl reads them too."""

    lr: Annotated[float, Field(gt=0)] = 7e-4
    value_coef: Annotated[float, Field(ge=0)] = 0.5
    entropy_coef: Annotated[float, Field(ge=0)] = 0.01


class A2c(Algorithm):
    """Actor-critic without memory, for every action space that rlctl has a distribution for."""

    on_policy = True  # experience is thrown away once it was learned from, and actors wait rather than drop any
    max_grad_norm = 0.5
    net: ActorCritic
    """The published part: actors get its weights."""

    @classmethod
    def schema(cls, config: specs.Algorithm, network: Network, spaces: Spaces) -> Schema:
        """Observation, action, reward and ends: what an actor records of each step, and sends."""
        return Schema(config.unroll_length, standard_fields(spaces))

    def __init__(self, config: specs.Algorithm, network: Network, spaces: Spaces, *, seed: int) -> None:
        if network.core != "none":
            raise AlgorithmError(f"this actor-critic has no memory: model.core must be none, got {network.core}")
        self.config = hyperparameters(config, Settings)
        self.net = ActorCritic(spaces, network, seed=seed)
        self.noise_width = self.net.distribution.noise_width

    def initial_state(self, slots: int) -> Tensors:
        return {}

    @torch.inference_mode()
    def act(self, inputs: ActInputs) -> Act:
        params, _ = self.net.step(inputs.obs, inputs.first, {})
        if inputs.greedy:
            action, _ = self.net.distribution.mode(params, inputs.legal)
        else:  # all randomness comes from the noise, so that a seed repeats a run
            action, _ = self.net.distribution.sample(params, inputs.noise, inputs.legal)
        return Act(action, record={}, state={})

    def loss(self, batch: Batch) -> Loss:
        """A batch is B segments of T rows. Observations have a row more, T + 1, from which values bootstrap.

        The row after an episode's end holds its final observation and is not valid. Sums are over the valid rows: the
        learner divides by their number, over all learners.
        """
        fields, valid = batch.fields, batch.fields["valid"]
        params, value = self.net.unroll(below(fields, "obs"), fields["first"], {})
        legal = fields["legal"][:-1] if "legal" in fields else None
        log_prob, entropy = self.net.distribution.score(params[:-1], below(fields, "action"), legal)

        discount = self.config.gamma * torch.logical_not(fields["terminated"])  # a truncated episode bootstraps
        clip = self.config.reward_clip
        reward = fields["reward"] if clip is None else fields["reward"].clamp(-clip, clip)
        target, advantage = gae(reward, discount, value.detach(), valid)

        def total(x: Tensor) -> Tensor:
            return torch.where(valid, x, 0.0).sum()  # where, not a product: invalid rows may hold anything, NaN too

        policy_loss, entropy = -total(log_prob * advantage), total(entropy)
        value_loss = total((target - value[:-1]).square()) / 2
        rows = valid.sum().float()
        metrics = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}
        return Loss(
            policy_loss + self.config.value_coef * value_loss - self.config.entropy_coef * entropy,
            rows,
            {name: one.detach() / rows for name, one in metrics.items()},  # curves
        )

    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.RMSprop(self.net.parameters(), lr=self.config.lr, eps=1e-5)
