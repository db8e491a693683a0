"""The clipped surrogate: loss of PPO and APPO on a batch with known advantages and targets.

Schulman et al. 2017, arXiv:1707.06347, equation 7.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rlctl.spec import algorithms as specs
from rlctl.spec.schema import Network
from rlctl_agents.algorithms.actor_critic import (
    COEFFICIENTS,
    EQUAL,
    ActorCriticAlgorithm,
    Coefficients,
    rows_apart,
    standardised_by,
    sums,
)
from rlctl_agents.algorithms.base import Batch, Loss, Tensors, below, shuffled
from rlctl_agents.algorithms.closed_form import ClosedForm, Differentiated
from rlctl_agents.models.moments import AllReduce
from rlctl_agents.ops.adam import SmallAdam
from rlctl_agents.types.spaces import Spaces

KL_MARGIN = 1.5
"""Factor of target_kl above which a minibatch's KL ends the steps of a batch: an estimate from few rows is noisy."""


class ClippedCoefficients(Coefficients):
    """Coefficients with the bound of the ratio."""

    clip: Tensor


class Adam(SmallAdam):
    """SmallAdam under torch's class name: learner states record the class name of their optimizer, so those of either
    one load into the other."""


class ClippedAlgorithm(ActorCriticAlgorithm):
    """Actor-critic with several optimizer steps per batch and a loss that rewards no move far from an old policy.

    A subclass adds `estimates`.
    """

    tunables = (*COEFFICIENTS, "clip")
    coefficients = ClippedCoefficients
    settings: ClassVar[type[specs.Clipped]]
    config: specs.Clipped
    tunable: ClippedCoefficients

    shown: ClassVar[tuple[str, ...]] = ()
    """Names of estimates that are only reported, as means; minibatches do not hold them."""

    def __init__(self, config: specs.Algorithm, network: Network, spaces: Spaces, *, seed: int) -> None:
        super().__init__(config, network, spaces, seed=seed)
        self.config = self.config.sized(plain=self.net.plain)
        self.steps_per_batch = self.config.passes * self.config.minibatches
        self._unmasked_fp32 = network.precision != "bf16" and not spaces.legal
        self._closed_form: ClosedForm | None = None  # of the present batch

    def make_optimizer(self) -> torch.optim.Optimizer:
        config, base = self.config, ClippedAlgorithm
        # a class of the user's own may hang hooks on the optimizer, or leave parameters out of the loss
        ours = type(self).make_optimizer is base.make_optimizer and type(self).loss is base.loss
        if config.optimizer != "adam" or not ours or not self._has_closed_form():
            return super().make_optimizer()
        parameters, betas = list(self.net.parameters()), (config.adam_beta1, config.adam_beta2)
        return Adam([{"params": parameters, "lr": config.lr, "betas": betas}], config.optimizer_eps)

    def _has_closed_form(self) -> bool:
        return self._unmasked_fp32 and ClosedForm.fits(self.net)

    @abstractmethod
    def estimates(self, batch: Batch) -> Tensors:
        """Estimates for all minibatches, [T, B] each: `advantage`, `target` (of the value), `old_value`, `old_log_prob`
        and the fields of `shown`."""

    def prepare(self, batch: Batch | None, all_reduce: AllReduce) -> Batch | None:
        """Add estimates by the current weights, the advantages standardised or in units of the value head.

        Values that all minibatches of a batch share are computed here, once: observations as the network
        sees them, targets and old values in units of its head, and `batch_metrics`.
        """
        self._closed_form = ClosedForm(self.net) if self._has_closed_form() else None
        made = {} if batch is None else self.estimates(batch)
        summed = self._summed(made, None if batch is None else batch.fields["valid"], all_reduce)
        if batch is None:
            return None
        if self.config.advantage_norm:
            made["advantage"] = standardised_by(summed, made["advantage"], batch.fields["valid"])
        else:
            made["advantage"] = self.in_units(made["advantage"])
        mean = 0.0 if self.net.returns is None else self.net.returns.mean
        made |= {f"scaled_{name}": self.in_units(made[name] - mean) for name in ("target", "old_value")}
        if self.net.observed is not None:
            seen = self.net.seen(below(batch.fields, "obs"))
            made |= {f"seen.{name}": seen[name] for name in self.net.observed.names}
        return batch._replace(fields=batch.fields | made)

    def _summed(self, made: Tensors, valid: Tensor | None, all_reduce: AllReduce) -> Tensor:
        """Fill `batch_metrics`; the fields of `shown` are removed from the estimates for it.

        Returns:
            [3] float64, `sums` of the advantages of all learners.
        """
        returns, width = self.net.returns, 3 * 3 + len(self.shown)
        if valid is None:
            summed = torch.zeros(width, dtype=torch.float64, device=self.tunable.gamma.device)
        else:
            target = made["target"] if returns is None else made["target"] - returns.mean
            spread = [sums(one, valid) for one in (made["advantage"], target, made["target"] - made["old_value"])]
            means = [torch.where(valid, made.pop(name), 0.0).sum().to(torch.float64) for name in self.shown]
            summed = torch.cat([*spread, *(one.view(1) for one in means)])
        summed = all_reduce(summed)
        (rows, *_, shift, squares, _, error, squared_error), shown = summed[:9].tolist(), summed[9:].tolist()
        rows = max(rows, 1.0)
        variance, left = (
            max(two / rows - (one / rows) ** 2, 0.0) for one, two in ((shift, squares), (error, squared_error))
        )
        mean = shift / rows + (0.0 if returns is None else float(returns.mean))
        self.batch_metrics = {"explained_variance": 1 - left / variance if variance > EQUAL * mean**2 else 0.0}
        self.batch_metrics |= {name: one / rows for name, one in zip(self.shown, shown, strict=True)}
        if returns is not None:
            self.batch_metrics |= {"target_shift": shift / rows, "target_spread": squares / rows}
        return summed[:3]

    def minibatches(self, batch: Batch, rng: torch.Generator) -> Iterable[Batch]:
        """Minibatches of rows in random order; with a memory, of whole segments."""
        whole = batch if self.net.core is not None else rows_apart(batch)
        return shuffled(whole, self.config.passes, self.config.minibatches, rng)

    def loss(self, batch: Batch) -> Loss:
        """Clipped policy gradient, value regression and entropy, summed over the valid rows of a prepared batch."""
        config, tunable, fields = self.config, self.tunable, batch.fields
        valid = None if batch.all_valid else fields["valid"]
        steps = len(batch.version)
        obs = {name: _rows(fields.get(f"seen.{name}", leaf), steps) for name, leaf in below(fields, "obs").items()}
        action = below(fields, "action")
        rows = torch.full_like(tunable.clip, batch.version.numel()) if valid is None else valid.sum().to(torch.float32)
        if torch.compiler.is_compiling() or valid is not None or self._closed_form is None:
            params, value = self.net.unroll_seen(obs, _rows(fields["first"], steps), below(fields, "core"))
            legal = _rows(fields["legal"], steps) if "legal" in fields else None
            log_prob, entropy = self.net.distribution.score(params, action, legal)
            total, summed = Surrogate.apply(log_prob, entropy, value, fields, valid, tunable, config.value_clip)  # type: ignore[no-untyped-call]
        else:
            objective = partial(surrogate, fields=fields, valid=None, tunable=tunable, value_clip=config.value_clip)
            total, summed = self._closed_form.loss(obs, action, objective)
        names = ("policy_loss", "value_loss", "entropy", "kl", "clipped")
        metrics = dict(zip(names, (summed / rows.clamp(min=1)).unbind(), strict=True))
        return Loss(total, rows, metrics)

    def ends_early(self, means: Mapping[str, float]) -> bool:
        limit = self.config.target_kl
        return limit is not None and means.get("kl", 0.0) > KL_MARGIN * limit


def surrogate(
    log_prob: Tensor,
    entropy: Tensor,
    value: Tensor,
    fields: Tensors,
    valid: Tensor | None,
    tunable: ClippedCoefficients,
    value_clip: float | None,
) -> Differentiated:
    """Clipped policy gradient, value regression and entropy, summed over the valid rows.

    Args:
        log_prob, entropy, value: [T, B].
        fields: of a prepared batch.
        valid: [T, B]; None: all rows are valid.

    Returns:
        The sum and its derivatives; as metrics [5] sums: losses of policy and value, entropy, KL by (r - 1) - log r,
        which is unbiased and never negative, and the number of clipped ratios.
    """
    advantage, target, old = fields["advantage"], fields["scaled_target"], fields["scaled_old_value"]
    log_ratio = log_prob - fields["old_log_prob"]
    if valid is not None:
        log_ratio = torch.where(valid, log_ratio, 0.0)
    ratio = log_ratio.exp()
    beyond = ratio - 1
    cost = ratio * -advantage
    bound = ratio.clamp(1 - tunable.clip, 1 + tunable.clip) * -advantage
    error = value - target
    half_square = 0.5 * error.square()
    by_value = error
    if value_clip is not None:
        moved = value - old
        near = moved.clamp(-value_clip, value_clip)
        bounded = 0.5 * (old + near - target).square()
        by_value = torch.where((bounded <= half_square) | (near == moved), error, 0.0)
        half_square = torch.maximum(half_square, bounded)
    by_log_prob = torch.where(cost >= bound, cost, 0.0)
    far = (beyond.abs() > tunable.clip).to(ratio.dtype)
    rows = torch.stack([torch.maximum(cost, bound), half_square, entropy, beyond - log_ratio, far])
    if valid is not None:
        # where, not a product: a row that is not valid may hold any number
        rows, by_log_prob, by_value = (torch.where(valid, one, 0.0) for one in (rows, by_log_prob, by_value))
    summed = rows.flatten(1).sum(1)
    policy, squares, entropies = summed[:3].unbind()
    total = policy + tunable.value_coef * squares - tunable.entropy_coef * entropies
    return Differentiated(total, summed, by_log_prob, -tunable.entropy_coef, tunable.value_coef * by_value)


class Surrogate(torch.autograd.Function):
    """Autograd node of `surrogate`, with its gradient in closed form: on a small network, autograd's own nodes, one for
    each operation, cost as much as the layers."""

    @staticmethod
    def forward(
        ctx: Any,
        log_prob: Tensor,
        entropy: Tensor,
        value: Tensor,
        fields: Tensors,
        valid: Tensor | None,
        tunable: ClippedCoefficients,
        value_clip: float | None,
    ) -> tuple[Tensor, Tensor]:
        found = surrogate(log_prob, entropy, value, fields, valid, tunable, value_clip)
        ctx.save_for_backward(found.by_log_prob, found.by_entropy, found.by_value)
        ctx.valid = valid
        ctx.mark_non_differentiable(found.metrics)
        return found.total, found.metrics

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        by_log_prob, by_entropy, by_value = ctx.saved_tensors
        by_entropy = (grad * by_entropy).expand_as(by_value)
        if ctx.valid is not None:
            by_entropy = torch.where(ctx.valid, by_entropy, 0.0)
        return grad * by_log_prob, by_entropy, grad * by_value, None, None, None, None


def _rows(x: Tensor, steps: int) -> Tensor:
    """The first `steps` rows, without the one after the last."""
    return x if len(x) == steps else x[:steps]
