"""IMPALA: an actor-critic whose experience may come from older policies, corrected by V-trace.

docs/algorithms/impala.md has the mathematics and every deviation from the paper (Espeholt et al. 2018,
arXiv:1802.01561).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import pydantic
import torch
from torch import Tensor, nn

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
    Tunable,
    below,
    hyperparameters,
    standard_fields,
)
from rlctl_agents.models.inputs import ModelError
from rlctl_agents.models.policy import ActorCritic
from rlctl_agents.ops.vtrace import vtrace
from rlctl_agents.types.experience import Field, Schema
from rlctl_agents.types.spaces import Spaces


class Coefficients(Tunable):
    """Hyperparameters of the loss that may change while it runs, as `lr` may."""

    gamma: Tensor
    lambda_: Tensor
    value_coef: Tensor
    entropy_coef: Tensor


TENSORS = tuple(Coefficients.__annotations__)


class Impala(Algorithm):
    """V-trace actor-critic for every action space, with or without memory."""

    on_policy = True
    settings: ClassVar[type[specs.Impala]] = specs.Impala
    """A class of the user's own that derives from this one may name its own settings here."""

    @classmethod
    def schema(cls, config: specs.Algorithm, network: Network, spaces: Spaces) -> Schema:
        state: tuple[Field, ...] = ()
        if network.core == "lstm":
            state = tuple(Field(name, "float32", (network.width,), "segment") for name in ("core.c", "core.h"))
        return Schema(config.unroll_length, (*standard_fields(spaces), Field("log_prob", "float32", (), "row"), *state))

    def __init__(self, config: specs.Algorithm, network: Network, spaces: Spaces, *, seed: int) -> None:
        self.config = hyperparameters(config, self.settings)
        if self.config.c_max > self.config.rho_max:
            raise AlgorithmError(
                f"algorithm.c_max must not exceed rho_max, got {self.config.c_max} > {self.config.rho_max}"
            )
        try:
            self.net: ActorCritic = ActorCritic(spaces, network, seed=seed)
        except ModelError as error:
            raise AlgorithmError(str(error)) from error
        self.noise_width = self.net.distribution.noise_width
        self.max_grad_norm = self.config.max_grad_norm
        self.tunable = Coefficients(**{name: getattr(self.config, name) for name in TENSORS})
        # neither what another class makes of the loss, nor advantage_norm, which looks at all rows of the batch
        self.additive = type(self).loss is Impala.loss and not self.config.advantage_norm

    @property
    def modules(self) -> dict[str, nn.Module]:
        return {"net": self.net, "tunable": self.tunable}

    def initial_state(self, slots: int) -> Tensors:
        return self.net.initial_state(slots)

    @torch.inference_mode()
    def act(self, inputs: ActInputs) -> Act:
        params, state = self.net.step(inputs.obs, inputs.first, inputs.state)
        distribution = self.net.distribution
        if inputs.greedy:
            action, log_prob = distribution.mode(params, inputs.legal)
        else:
            action, log_prob = distribution.sample(params, inputs.noise, inputs.legal)
        return Act(action, {"log_prob": log_prob}, state)

    def loss(self, batch: Batch) -> Loss:
        """Policy gradient, value regression and entropy, summed over the valid rows."""
        config, tunable, fields = self.config, self.tunable, batch.fields
        valid, behaviour = fields["valid"], fields["log_prob"]
        params, value = self.net.unroll(below(fields, "obs"), fields["first"], below(fields, "core"))
        legal = fields["legal"][:-1] if "legal" in fields else None
        log_prob, entropy = self.net.distribution.score(params[:-1], below(fields, "action"), legal)

        reward = fields["reward"]
        if config.reward_clip is not None:
            reward = reward.clamp(-config.reward_clip, config.reward_clip)
        log_rho = torch.where(valid, log_prob.detach() - behaviour, 0.0)
        target, advantage = vtrace(
            log_rho,
            reward,
            tunable.gamma * torch.logical_not(fields["terminated"]),
            value.detach(),
            valid,
            lambda_=tunable.lambda_,
            rho_max=config.rho_max,
            c_max=config.c_max,
            pg_rho_max=config.pg_rho_max,
        )
        rows = valid.sum().to(torch.float32)
        if config.advantage_norm:
            advantage = standardised(advantage, valid, rows)

        # where, not a product: what stands in a row that is not valid may be anything
        policy_loss = -torch.where(valid, log_prob * advantage, 0.0).sum()
        value_loss = torch.where(valid, 0.5 * (target - value[:-1]).square(), 0.0).sum()
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
            }
        return Loss(total, rows, metrics)

    def make_optimizer(self) -> torch.optim.Optimizer:
        """RMSProp as torch has it, epsilon outside the root: g / (sqrt(mean of g^2) + epsilon); or Adam."""
        config = self.config
        if config.optimizer == "adam":
            return torch.optim.Adam(self.net.parameters(), lr=config.lr, eps=config.optimizer_eps, foreach=True)
        return torch.optim.RMSprop(
            self.net.parameters(), lr=config.lr, alpha=config.rmsprop_decay, eps=config.optimizer_eps, foreach=True
        )

    def set_progress(self, consumed_steps: int, optimizer: torch.optim.Optimizer) -> None:
        """The learning rate follows `lr_schedule`."""
        schedule = self.config.lr_schedule
        for group in optimizer.param_groups:
            left = max(0.0, 1 - consumed_steps / schedule.agent_steps) if schedule else 1.0
            group["lr"] = self.config.lr * left

    def set_hyperparameters(self, values: Mapping[str, float]) -> None:
        """Any of the learning rate and those of `Coefficients`."""
        unknown = sorted(values.keys() - {name.removesuffix("_") for name in (*TENSORS, "lr")})
        if unknown:
            raise AlgorithmError(f"impala cannot change {', '.join(unknown)} while it runs")
        try:
            self.config = type(self.config).model_validate({**self.config.model_dump(), **values})
        except pydantic.ValidationError as error:
            faults = [f"algorithm.{fault['loc'][0]}: {fault['msg']}" for fault in error.errors()]
            raise AlgorithmError("; ".join(faults)) from None
        self.tunable.change(values)


def standardised(x: Tensor, valid: Tensor, rows: Tensor) -> Tensor:
    """Mean 0 and deviation 1 over the valid rows, 0 elsewhere; of one learner's rows, where there are several."""
    mean = x.sum() / rows.clamp(min=1)  # x is 0 on rows that are not valid
    centred = torch.where(valid, x - mean, 0.0)
    deviation = (centred.square().sum() / rows.clamp(min=1)).sqrt()
    return centred / (deviation + 1e-8)


def off_policy_metrics(log_rho: Tensor, valid: Tensor, count: Tensor, rho_max: float) -> Tensors:
    """How far the learner's policy is from the actors': all are means over the valid rows, log_rho 0 elsewhere.

    `kl` estimates KL(actor || learner) by (rho - 1) - log rho, which is unbiased and never negative
    (Schulman 2020, joschu.net/blog/kl-approx.html).
    """
    rho = log_rho.exp()
    return {
        "rho": torch.where(valid, rho, 0.0).sum() / count,
        "rho_clipped": (valid & (rho > rho_max)).sum() / count,
        "kl": (rho - 1 - log_rho).sum() / count,
    }


def explained_variance(value: Tensor, target: Tensor, valid: Tensor, count: Tensor) -> Tensor:
    """1 - Var(target - value) / Var(target) over the valid rows: 1 is perfect, 0 no better than a constant."""

    def variance(x: Tensor) -> Tensor:
        mean = torch.where(valid, x, 0.0).sum() / count
        return torch.where(valid, (x - mean).square(), 0.0).sum() / count

    return 1 - variance(target - value) / variance(target).clamp(min=1e-8)
