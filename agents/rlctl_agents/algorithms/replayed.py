"""Algorithms that learn from a replay: preparation of drawn rows, optimizer and moments."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import pydantic
import torch
from torch import Tensor, nn

from rlctl.spec import algorithms as specs
from rlctl.spec.base import MUTABLE
from rlctl.spec.schema import Network
from rlctl_agents.algorithms.base import (
    Algorithm,
    AlgorithmError,
    Batch,
    Tensors,
    below,
    hyperparameters,
    standard_fields,
)
from rlctl_agents.models.inputs import ModelError
from rlctl_agents.models.moments import AllReduce
from rlctl_agents.models.q_network import NormalizedTorso
from rlctl_agents.ops.adam import SmallAdam
from rlctl_agents.ops.n_step import n_step
from rlctl_agents.types.experience import Field, Schema
from rlctl_agents.types.spaces import Spaces, has_images


class ReplayedAlgorithm(Algorithm):
    """Algorithm that learns from rows drawn from a replay. A subclass makes its networks and adds acting and the loss.

    A batch of the replay holds B rows, each the first of a window of up to n steps: `obs.*` and `legal` [2, B, ...] of
    its beginning and of the row after its k steps, `action.*` [1, B, ...], `rewards` [B, n], `steps` [B] k,
    `terminated` [1, B], `weight` [B] the importance weights.
    """

    on_policy = False
    source = "rlctl_agents.experience.replay.source:replay"
    settings: ClassVar[type[specs.Replayed]]
    """Class of the hyperparameters."""
    net: NormalizedTorso

    @classmethod
    def schema(cls, config: specs.Algorithm, network: Network, spaces: Spaces) -> Schema:
        fields = (*standard_fields(spaces), *cls.recorded(hyperparameters(config, cls.settings)))
        return Schema(config.unroll_length, fields)

    @classmethod
    def recorded(cls, config: specs.Replayed) -> tuple[Field, ...]:
        """Further fields of the schema, which `act` records."""
        return ()

    def __init__(self, config: specs.Algorithm, network: Network, spaces: Spaces, *, seed: int) -> None:
        self.config: specs.Replayed = hyperparameters(config, self.settings)
        self.max_grad_norm = self.config.max_grad_norm or math.inf
        self.steps_per_batch = self.config.minibatches
        if self.config.batch_size % self.config.minibatch_size:
            raise AlgorithmError(
                f"algorithm.batch_size must be a multiple of minibatch_size {self.config.minibatch_size}, got "
                f"{self.config.batch_size}"
            )
        try:
            self.make_networks(network, spaces, seed)
        except ModelError as error:
            raise AlgorithmError(str(error)) from error
        self._drawn: Tensors = {}  # observations of the newest batch
        # micro-batches pay for images; with others every step would only measure whether they do
        self.additive = has_images(spaces.obs) and type(self).loss.__module__.startswith(f"{__package__}.")

    @abstractmethod
    def make_networks(self, network: Network, spaces: Spaces, seed: int) -> None:
        """Make `net` and the other trained modules.

        Raises:
            ModelError: network and spaces do not fit.
        """

    @abstractmethod
    def trained(self) -> list[tuple[list[nn.Parameter], float]]:
        """Trained parameters in groups, each with its learning rate by the current hyperparameters."""

    def initial_state(self, slots: int) -> Tensors:
        return {}

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Adam, with a learning rate for each group."""
        groups: list[dict[str, Any]] = [{"params": parameters, "lr": lr} for parameters, lr in self.trained()]
        return SmallAdam(groups, eps=self.config.optimizer_eps)

    def set_progress(self, consumed_steps: int, optimizer: torch.optim.Optimizer) -> None:
        """Apply the schedule of the learning rates: all of them change in proportion to `lr`."""
        schedule, lr = self.config.lr_schedule, self.config.lr
        factor = 1.0 if schedule is None else schedule.at(consumed_steps, lr) / lr
        for group, (_, rate) in zip(optimizer.param_groups, self.trained(), strict=True):
            group["lr"] = rate * factor
        self.scheduled = {"lr": lr * factor}

    def set_hyperparameters(self, values: Mapping[str, float]) -> None:
        """Change hyperparameters that the spec marks as mutable; a schedule starts from the new value."""
        known = {name for name, field in self.settings.model_fields.items() if MUTABLE in field.metadata}
        if unknown := sorted(values.keys() - known):
            raise AlgorithmError(f"{self.config.name} cannot change {', '.join(unknown)} while it runs")
        try:
            self.config = type(self.config).model_validate({**self.config.model_dump(), **values})
        except pydantic.ValidationError as error:
            faults = [f"algorithm.{fault['loc'][0]}: {fault['msg']}" for fault in error.errors()]
            raise AlgorithmError("; ".join(faults)) from None

    def prepare(self, batch: Batch | None, all_reduce: AllReduce) -> Batch | None:
        """Prepared rows, every field [B, ...]: `seen.*`, the observations at the beginning as the network sees them,
        `weight`, `valid`, and the fields of `made`."""
        self._drawn = {}
        if batch is None:
            return None
        fields, config = batch.fields, self.config
        self._drawn = below(fields, "obs")
        reward = fields["rewards"] if config.reward_scale == 1.0 else fields["rewards"] * config.reward_scale
        if config.reward_clip is not None:
            reward = reward.clamp(-config.reward_clip, config.reward_clip)
        returns = n_step(reward, fields["steps"], fields["terminated"][0], config.gamma)
        rows = batch.version.shape[1]
        both = self.net.seen({name: leaf.flatten(0, 1) for name, leaf in self._drawn.items()})
        first = {name: leaf[:rows] for name, leaf in both.items()}
        after = {name: leaf[rows:] for name, leaf in both.items()}
        made = self.made(fields, first, after, returns.reward, returns.discount)
        made |= {f"seen.{name}": leaf for name, leaf in first.items()}
        made |= {"weight": fields["weight"], "valid": fields["valid"][0]}
        columns = torch.arange(rows)
        return Batch(made, batch.version, frozenset(made), columns, None, all_valid=True)

    @abstractmethod
    def made(self, fields: Tensors, first: Tensors, after: Tensors, reward: Tensor, discount: Tensor) -> Tensors:
        """Fields of a prepared batch that the loss needs besides observations and weights, [B, ...] each: targets and
        the like.

        Args:
            fields: of the batch as it was drawn.
            first, after: observations as the network sees them, at the beginning and after the k steps.
            reward, discount: [B] as in `NStep`.
        """

    def parts(self, batch: Batch) -> list[Batch]:
        """Split a prepared batch into its minibatches, in the order of the draw, which was random."""
        each, more = divmod(batch.version.shape[1], self.steps_per_batch)
        return batch.split([each + (at < more) for at in range(self.steps_per_batch)])

    def minibatches(self, batch: Batch, rng: torch.Generator) -> Iterator[Batch]:
        yield from self.parts(batch)

    def update_statistics(self, batch: Batch | None, means: Mapping[str, float], all_reduce: AllReduce) -> None:
        """Add the drawn rows to the moments of observations, each as often as it was drawn."""
        if self.net.observed is not None:
            valid = None if batch is None else batch.fields["valid"].unsqueeze(0)
            self.net.observed.update(self._drawn or None, valid, all_reduce)


def seen(batch: Batch) -> Tensors:
    """Observations of a prepared batch at the beginning of its rows, by the names of the space."""
    return {name[5:]: leaf for name, leaf in batch.fields.items() if name.startswith("seen.")}


def means(**rows: Tensor) -> Tensors:
    """Means of rows, [B] each, by name, in one operation."""
    return dict(zip(rows, torch.stack([*rows.values()]).mean(1).unbind(), strict=True))
