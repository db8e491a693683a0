"""IMPALA: an actor-critic for experience of older policies, corrected by V-trace.

docs/algorithms/impala.md has the mathematics and every deviation from the paper (Espeholt et al. 2018,
arXiv:1802.01561).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping

import torch

from rlctl.spec import algorithms as specs
from rlctl.spec.schema import Network
from rlctl_agents.algorithms.actor_critic import (
    ActorCriticAlgorithm,
    explained_variance,
    off_policy_metrics,
    off_policy_targets,
    require_clips,
    rows_apart,
    standardised,
)
from rlctl_agents.algorithms.base import AlgorithmError, Batch, Loss, below, joined, shuffled
from rlctl_agents.models.moments import AllReduce
from rlctl_agents.types.spaces import Spaces

VALUE_BATCHES = 8
"""Batches of the pass that trains the value alone, where value and policy have separate torsos."""
METRICS = (
    "policy_loss", "value_loss", "entropy", "rho", "rho_clipped", "kl", "explained_variance", "target_shift",
    "target_spread",
)  # fmt: skip
"""Metrics of the loss; the last two where returns are normalised."""


class Impala(ActorCriticAlgorithm):
    """V-trace actor-critic for every action space, with or without memory.

    A batch makes one optimizer step of policy and value; a pass over it and copies of older ones may then train the
    value alone. The copies are not saved.
    """

    settings = specs.Impala
    config: specs.Impala

    def __init__(self, config: specs.Algorithm, network: Network, spaces: Spaces, *, seed: int) -> None:
        super().__init__(config, network, spaces, seed=seed)
        require_clips(self.config)
        # not a subclass's own loss, nor advantage_norm, which takes all rows of the batch
        self.additive = type(self).loss is Impala.loss and not self.config.advantage_norm
        own, asked = self.net.value_torso is not None, self.config.value_batches
        ours = type(self).loss is Impala.loss and type(self).minibatches is Impala.minibatches
        most = min(VALUE_BATCHES, self.config.buffer_batches + 1)
        self._batches = (most if own and ours else 0) if asked == "auto" else asked
        if self._batches and not own:
            raise AlgorithmError(
                f"value_batches is for a value that shares no torso with the policy, got {self._batches}: "
                "say auto or 0, or model.share: false"
            )
        self._value_steps = max(1, self._batches * self.config.batch_size // self.config.value_minibatch_size)
        self.steps_per_batch = 1 + (self._value_steps if self._batches else 0)
        self._of_policy = [
            one for name, one in self.net.named_parameters() if not name.startswith(("value.", "value_torso."))
        ]
        self._step = 0  # optimizer steps of this batch so far
        self._newest: Batch | None = None
        self._older: deque[Batch] = deque(maxlen=self.config.buffer_batches if self._batches else 0)  # copies

    def make_optimizer(self) -> torch.optim.Optimizer:
        optimizer = super().make_optimizer()
        if self._batches:
            optimizer.register_step_pre_hook(lambda *_: self._hold_policy())
        return optimizer

    def _hold_policy(self) -> None:
        """Keep the optimizer's moments from moving the policy in steps of the value alone."""
        if self._step > 0:
            for one in self._of_policy:
                one.grad = None

    def prepare(self, batch: Batch | None, all_reduce: AllReduce) -> Batch | None:
        self._newest, self._step, self.batch_metrics = batch, 0, {}
        return batch

    def minibatches(self, batch: Batch, rng: torch.Generator) -> Iterator[Batch]:
        """Yield the batch for policy and value, then rows of it and older ones in random order for the value alone."""
        yield batch
        if self._batches:
            others = torch.randperm(len(self._older), generator=rng)[: self._batches - 1].tolist()
            drawn = joined([batch, *(self._older[one] for one in others)]) if others else batch
            yield from shuffled(self._regression(drawn), 1, self._value_steps, rng)

    @torch.no_grad()
    def _regression(self, batch: Batch) -> Batch:
        """Valid rows for the value's regression: observations as the network sees them, and V-trace's `value_target`
        by the current weights, in units of the head."""
        fields = batch.fields
        params, value = self.net.unroll(below(fields, "obs"), fields["first"], {})
        legal = fields["legal"][:-1] if "legal" in fields else None
        log_prob, _ = self.net.distribution.score(params[:-1], below(fields, "action"), legal)
        log_rho = torch.where(fields["valid"], log_prob - fields["log_prob"], 0.0)
        target, _ = off_policy_targets(self.config, self.tunable, fields, self.rewards(batch), log_rho, value)
        mean = 0.0 if self.net.returns is None else self.net.returns.mean.to(torch.float32)
        made = {"value_target": self.in_units(target - mean), "valid": fields["valid"]}
        return rows_apart(Batch(self.net.seen(below(fields, "obs")) | made, batch.version))

    def after_step(self, means: Mapping[str, float]) -> None:
        """Keep the metrics of the policy's step, which are the ones reported."""
        self._step += 1
        if self._step == 1 and self._batches:
            self.batch_metrics = dict(means)

    def ends_early(self, means: Mapping[str, float]) -> bool:
        """True if the loss of the policy's step was not finite."""
        return self._step == 1 and self._batches > 0 and not math.isfinite(means["total"])

    def after_update(self, updates: int) -> None:
        """Keep a copy of the newest batch for the value's pass."""
        if self._newest is not None and self._older.maxlen:
            fields = {name: one.clone() for name, one in self._newest.fields.items()}
            self._older.append(self._newest._replace(fields=fields, version=self._newest.version.clone()))
        self._newest = None

    def loss(self, batch: Batch) -> Loss:
        """Policy gradient, value regression and entropy, summed over valid rows; of a `_regression` the value alone."""
        if "value_target" in batch.fields:
            return self._value_loss(batch)
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
        # where, not a product: a row that is not valid may hold any number
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

    def _value_loss(self, batch: Batch) -> Loss:
        obs = {name: leaf.flatten(0, 1) for name, leaf in below(batch.fields, "obs").items()}
        value = self.net.value_alone(obs).view(batch.version.shape)
        loss = 0.5 * (value - batch.fields["value_target"]).square().sum()
        # learners that step together wait for a gradient of every parameter
        rest = torch.stack([one.sum() * 0.0 for one in self._of_policy]).sum()
        rows = torch.full_like(self.tunable.gamma, value.numel())
        return Loss(self.tunable.value_coef * loss + rest, rows, dict.fromkeys(METRICS, torch.zeros_like(rows)))
