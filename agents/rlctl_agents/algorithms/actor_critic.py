"""Actor-critics: network, acting, optimizer and running moments, to which IMPALA, PPO and APPO add their losses."""

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
    Tensors,
    Tunable,
    below,
    hyperparameters,
    standard_fields,
)
from rlctl_agents.models.inputs import ModelError, continuous
from rlctl_agents.models.moments import MEMORY_STEPS, AllReduce
from rlctl_agents.models.policy import CORES, ActorCritic
from rlctl_agents.ops.vtrace import VTrace, vtrace
from rlctl_agents.types.experience import Field, Schema
from rlctl_agents.types.spaces import Spaces

EQUAL = 1e-12
"""Variance of value targets, in units of their squared mean, up to which float32 does not tell them apart."""


class Coefficients(Tunable):
    """Hyperparameters of the loss that may change during a run, as `lr` may."""

    gamma: Tensor
    lambda_: Tensor
    value_coef: Tensor
    entropy_coef: Tensor


COEFFICIENTS = tuple(Coefficients.__annotations__)


class ActorCriticAlgorithm(Algorithm):
    """An actor-critic for every action space, with or without memory. A subclass adds the loss."""

    on_policy = True
    settings: ClassVar[type[specs.ActorCritic]]
    """Class of the hyperparameters; an algorithm with a name of its own may set its own."""
    tunables: ClassVar[tuple[str, ...]] = COEFFICIENTS
    """Names of the hyperparameters that `coefficients` holds."""
    coefficients: ClassVar[type[Coefficients]] = Coefficients
    memory_steps: ClassVar[int] = MEMORY_STEPS
    """Agent steps over which the moments of returns are averaged."""

    @classmethod
    def schema(cls, config: specs.Algorithm, network: Network, spaces: Spaces) -> Schema:
        names = sorted(CORES[network.core].state) if network.core != "none" else []
        state = [Field(name, "float32", (network.width,), "segment") for name in names]
        return Schema(config.unroll_length, (*standard_fields(spaces), Field("log_prob", "float32", (), "row"), *state))

    def __init__(self, config: specs.Algorithm, network: Network, spaces: Spaces, *, seed: int) -> None:
        self.config: specs.ActorCritic = hyperparameters(config, self.settings).settled(continuous(spaces.action))
        try:
            self.net: ActorCritic = ActorCritic(spaces, network, seed=seed)
        except ModelError as error:
            raise AlgorithmError(str(error)) from error
        self.noise_width = self.net.distribution.noise_width
        self.max_grad_norm = self.config.max_grad_norm
        # clipped rewards have a known scale. Actors, which do not know the clip, hold the moments all the same
        self.moves_returns = network.normalize.returns is True or self.config.reward_clip is None
        self.tunable = self.coefficients(**{name: getattr(self.config, name) for name in self.tunables})

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

    def rewards(self, batch: Batch) -> Tensor:
        """Rewards [T, B] as they are learned from: scaled, then clipped."""
        reward = batch.fields["reward"] * self.config.reward_scale
        clip = self.config.reward_clip
        return reward if clip is None else reward.clamp(-clip, clip)

    def make_optimizer(self) -> torch.optim.Optimizer:
        """The configured optimizer: torch's RMSProp, with epsilon outside the root: g / (sqrt(mean of g^2) + epsilon);
        Adam; or AdamW, which does not decay vectors (biases, log standard deviations)."""
        config, parameters = self.config, list(self.net.parameters())
        lr, eps, betas = config.lr, config.optimizer_eps, (config.adam_beta1, config.adam_beta2)
        match config.optimizer:
            case "rmsprop":
                return torch.optim.RMSprop(parameters, lr=lr, alpha=config.rmsprop_decay, eps=eps, foreach=True)
            case "adam":
                return torch.optim.Adam(parameters, lr=lr, betas=betas, eps=eps, fused=True)
        groups = [
            {"params": [one for one in parameters if one.ndim >= 2], "weight_decay": config.weight_decay},
            {"params": [one for one in parameters if one.ndim < 2], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps, fused=True)

    def set_progress(self, consumed_steps: int, optimizer: torch.optim.Optimizer) -> None:
        """Apply the schedules; each starts from the current value of its hyperparameter."""
        config = self.config
        now = {name: float(getattr(config, name)) for name in config.schedules}
        now |= {name: one.at(consumed_steps, now[name]) for name, one in config.schedules.items() if one is not None}
        self.tunable.change(now)
        for group in optimizer.param_groups:
            group["lr"] = now["lr"]
        self.scheduled = now

    def set_hyperparameters(self, values: Mapping[str, float]) -> None:
        """Change the learning rate or `tunables`; a schedule starts from the new value."""
        unknown = sorted(values.keys() - {name.removesuffix("_") for name in (*self.tunables, "lr")})
        if unknown:
            raise AlgorithmError(f"{self.config.name} cannot change {', '.join(unknown)} while it runs")
        try:
            self.config = type(self.config).model_validate({**self.config.model_dump(), **values})
        except pydantic.ValidationError as error:
            faults = [f"algorithm.{fault['loc'][0]}: {fault['msg']}" for fault in error.errors()]
            raise AlgorithmError("; ".join(faults)) from None
        self.tunable.change(values)

    def begun(self) -> None:
        """Reset the return scale (PopArt) when this run no longer updates it, as after `reward_clip` was set."""
        if self.net.returns is not None and not self.moves_returns and self.net.returns.batches > 0:
            self.net.returns.reset(self.net.value)

    def in_units(self, x: Tensor) -> Tensor:
        """Scale values, errors or advantages to units of the value head."""
        return x if self.net.returns is None else x / self.net.returns.deviation

    def target_metrics(self, target: Tensor, valid: Tensor, count: Tensor) -> Tensors:
        """Moments of the value targets around their running mean; {} where returns are not normalised.

        Args:
            target: [T, B].
            valid: [T, B] bool.
            count: [] number of valid rows, at least 1.

        Returns:
            `target_shift` and `target_spread`, [] each: of the distance to that mean, and of its square.
        """
        if self.net.returns is None:
            return {}
        error = torch.where(valid, target - self.net.returns.mean, 0.0)
        return {"target_shift": error.sum() / count, "target_spread": error.square().sum() / count}

    def update_statistics(self, batch: Batch | None, means: Mapping[str, float], all_reduce: AllReduce) -> None:
        fields = {} if batch is None else batch.fields
        if self.net.observed is not None:
            self.net.observed.update(below(fields, "obs") if fields else None, fields.get("valid"), all_reduce)
        if self.net.returns is not None and self.moves_returns and "target_shift" in means:
            shift, spread = means["target_shift"], means["target_spread"]
            self.net.returns.update(
                shift, spread, self.net.value, batch_size=self.config.batch_size, memory_steps=self.memory_steps
            )


def rows_apart(batch: Batch) -> Batch:
    """The valid rows of a batch side by side as segments of one row: [1, rows, ...] each, without a row after the last.

    For networks without memory, which may learn from any rows together.
    """
    valid = batch.fields["valid"]
    steps = len(valid)
    fields = {
        name: value[:steps][valid].unsqueeze(0)
        for name, value in batch.fields.items()
        if name not in batch.segment_fields
    }
    return Batch(fields, batch.version[valid].unsqueeze(0), all_valid=True)


def off_policy_targets(
    config: specs.OffPolicy, tunable: Coefficients, fields: Tensors, reward: Tensor, log_rho: Tensor, value: Tensor
) -> VTrace:
    """V-trace with the clips and factors of the hyperparameters.

    Args:
        reward: [T, B] after scaling and clipping.
        log_rho: [T, B] log-probability under the learner's policy minus that under the actor's.
        value: [T+1, B] without gradient.
    """
    return vtrace(
        log_rho,
        reward,
        tunable.gamma * torch.logical_not(fields["terminated"]),
        value,
        fields["valid"],
        lambda_=tunable.lambda_,
        rho_max=config.rho_max,
        c_max=config.c_max,
        pg_rho_max=config.pg_rho_max,
        gae=config.advantage == "gae",
    )


def require_clips(config: specs.OffPolicy) -> None:
    """Check V-trace's clips against the paper's assumption.

    Raises:
        AlgorithmError: c_max exceeds rho_max.
    """
    if config.c_max > config.rho_max:
        raise AlgorithmError(f"algorithm.c_max must not exceed rho_max, got {config.c_max} > {config.rho_max}")


def standardised(x: Tensor, valid: Tensor, rows: Tensor) -> Tensor:
    """Standardise to mean 0 and standard deviation 1 over this learner's valid rows.

    Args:
        x: [T, B], 0 on rows that are not valid.
        valid: [T, B] bool.
        rows: [] number of valid rows.

    Returns:
        [T, B], 0 on rows that are not valid.
    """
    mean = x.sum() / rows.clamp(min=1)  # x is 0 on rows that are not valid
    centred = torch.where(valid, x - mean, 0.0)
    deviation = (centred.square().sum() / rows.clamp(min=1)).sqrt()
    return centred / (deviation + 1e-8)


def sums(x: Tensor, valid: Tensor) -> Tensor:
    """Number, sum and sum of squares of the valid rows of x, both [T, B]: [3] float64."""
    rows = torch.where(valid, x, 0.0).to(torch.float64)
    return torch.stack([valid.sum().to(torch.float64), rows.sum(), rows.square().sum()])


def standardised_by(summed: Tensor, x: Tensor, valid: Tensor) -> Tensor:
    """Standardise to mean 0 and standard deviation 1 over valid rows, which may be of several learners.

    Args:
        summed: [3] `sums` of these rows.
        x, valid: [T, B] each.

    Returns:
        [T, B] of the dtype of x, 0 on rows that are not valid.
    """
    count, total, squares = summed
    mean = total / count.clamp(min=1)
    deviation = (squares / count.clamp(min=1) - mean.square()).clamp(min=0.0).sqrt()
    return torch.where(valid, ((x - mean) / (deviation + 1e-8)).to(x.dtype), 0.0)


def off_policy_metrics(log_rho: Tensor, valid: Tensor, count: Tensor, rho_max: float) -> Tensors:
    """Distances of the learner's policy from the actors': `rho`, `rho_clipped` and `kl`, means over the valid rows.

    Args:
        log_rho: [T, B] log-probability under the learner's policy minus that under the actor's, 0 on rows not valid.
        valid: [T, B] bool.
        count: [] number of valid rows, at least 1.
        rho_max: ratio above which a row counts as clipped.

    Returns:
        [] each.

    `kl` estimates KL(actor || learner) by (rho - 1) - log rho, which is unbiased and never negative
    (Schulman 2020, joschu.net/blog/kl-approx.html).
    """
    rows = off_policy_rows(log_rho, rho_max)
    means = {name: torch.where(valid, one, 0.0).sum() / count for name, one in rows.items()}
    means["kl"] = means.pop("kl_actors")
    return means


def off_policy_rows(log_rho: Tensor, rho_max: float) -> Tensors:
    """Per-row values of `off_policy_metrics`, [T, B] each; its `kl` is `kl_actors` here."""
    rho = log_rho.exp()
    return {"rho": rho, "rho_clipped": (rho > rho_max).to(rho.dtype), "kl_actors": rho - 1 - log_rho}


def explained_variance(value: Tensor, target: Tensor, valid: Tensor, count: Tensor) -> Tensor:
    """1 - Var(target - value) / Var(target) over the valid rows: 1 is perfect, 0 no better than a constant, or that all
    targets are equal.

    Args:
        value, target, valid: [T, B] each.
        count: [] number of valid rows, at least 1.

    Returns:
        [].
    """

    def moments(x: Tensor) -> tuple[Tensor, Tensor]:
        mean = torch.where(valid, x, 0.0).sum() / count
        return mean, torch.where(valid, (x - mean).square(), 0.0).sum() / count

    (_, left), (mean, variance) = moments(target - value), moments(target)
    return torch.where(variance > EQUAL * mean.square(), 1 - left / variance, 0.0)
