"""The gradient of the mean loss over the valid rows of one learner, or of many that step together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rlctl_agents.algorithms.base import Algorithm, Batch, Loss
from rlctl_agents.roles.collective import Collective

METRICS = 32
"""Most metrics of a loss that are averaged over several learners; those of further names are left out."""


class Mean(NamedTuple):
    """What is known once the gradient lies in the parameters."""

    values: Mapping[str, Tensor]  # metrics of the loss, and `total`: means over the valid rows of all learners
    rows: int  # valid rows of all learners, by their own count


Gradient = Callable[[Batch | None, int], Mean]
"""Leaves the gradient in the parameters, whose gradients are None.

Takes the batch of this learner and the valid rows in it; None and 0: it adds nothing.
"""


def alone(algorithm: Algorithm) -> Gradient:
    """Of one learner."""

    def gradient(batch: Batch | None, rows: int) -> Mean:
        assert batch is not None, "one learner has a batch for every update"
        loss = algorithm.loss(batch)
        mean = loss.total / loss.rows.clamp(min=1)
        mean.backward()  # type: ignore[no-untyped-call]
        return Mean({**loss.metrics, "total": mean}, rows)

    return gradient


def together(algorithm: Algorithm, collective: Collective) -> Gradient:
    """Of many learners with equal weights, by DistributedDataParallel: equal on all of them, bit for bit.

    Gradients of sums are averaged while they are made; only then it is known by how many rows of all learners they
    have to be divided, which is the same as dividing the losses before.

    Raises:
        Broken: a member is gone; from here, or from the function that is returned. No weight has changed then.
    """
    objective = _Objective(algorithm)
    # what somebody else's algorithm leaves out of a loss is not for us to know
    ours = type(algorithm).__module__.startswith("rlctl_agents.")
    wrapped = collective.wrapped(objective, find_unused=not ours)
    parameters = [one for one in algorithm.net.parameters() if one.requires_grad]
    names: list[str] = []  # of the metrics, once there was a batch

    def gradient(batch: Batch | None, rows: int) -> Mean:
        collective.backward(wrapped(batch))
        if objective.loss is not None:
            names[:] = sorted(objective.loss.metrics)[:METRICS]
        valid, counted, summed, *metrics = collective.sums([float(rows), *_numbers(objective.loss, names)])
        divisor = max(counted, 1.0)
        torch._foreach_mul_([one.grad for one in parameters if one.grad is not None], collective.world / divisor)
        values = dict(zip(names, metrics, strict=False)) | {"total": summed}
        device = parameters[0].device
        return Mean({name: torch.tensor(value / divisor, device=device) for name, value in values.items()}, int(valid))

    return gradient


class _Objective(nn.Module):
    """The sum of an algorithm's losses as a module, so that it can be wrapped."""

    def __init__(self, algorithm: Algorithm) -> None:
        super().__init__()
        self.net = algorithm.net
        self.loss: Loss | None = None
        """Of the last batch; None: there was none."""
        self._algorithm = algorithm

    def forward(self, batch: Batch | None) -> Tensor:
        if batch is None:
            self.loss = None
            # every parameter takes part, with a gradient of 0
            return torch.stack([one.sum() * 0.0 for one in self.net.parameters() if one.requires_grad]).sum()
        self.loss = self._algorithm.loss(batch)
        return self.loss.total


def _numbers(loss: Loss | None, names: list[str]) -> list[float]:
    """Rows, total and the metrics times rows, with one wait for the device; always as many."""
    if loss is None:
        return [0.0] * (2 + METRICS)
    parts = [
        one.detach().double().reshape(())
        for one in (loss.rows, loss.total, *map(loss.metrics.get, names))
        if one is not None
    ]
    rows, total, *metrics = torch.stack(parts).tolist()
    return [rows, total, *(value * rows for value in metrics), *[0.0] * (METRICS - len(metrics))]
