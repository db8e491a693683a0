"""The gradient of the mean loss over the valid rows of one learner, or of many that step together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rlctl_agents.algorithms.base import Algorithm, Batch, Loss
from rlctl_agents.training.collective import Collective
from rlctl_agents.training.micro_batches import backward, joined_priorities

METRICS = 32
"""Most metrics of a loss that are averaged over several learners; those of further names are left out."""
NAMES_BYTES = 1024
"""Most bytes of all their names together."""


class Mean(NamedTuple):
    """Means that belong to a gradient in the parameters."""

    values: Mapping[str, Tensor]  # metrics of the loss, and `total`: means over the valid rows of all learners
    rows: int  # valid rows of all learners, by their own count
    taken: int  # rows of the ledger in their batches
    learned: Tensor  # scalar, valid rows of all learners in this minibatch
    priorities: Tensor | None = None  # [B] of this learner's columns


Gradient = Callable[[Sequence[Batch], int, int], Mean]
"""Function that computes the gradient of a minibatch in the parameters, whose gradients are None before.

Takes the micro-batches of this learner's minibatch, and two counts to be summed over all learners: its agent steps and
its rows of the ledger. Without micro-batches, (), it adds nothing to the gradient.
"""


def alone(loss_of: Callable[[Batch], Loss]) -> Gradient:
    """Gradient of one learner alone.

    Args:
        loss_of: loss of the algorithm, as it is written or compiled.
    """

    def gradient(parts: Sequence[Batch], rows: int, taken: int) -> Mean:
        if not parts:  # a minibatch without columns
            return Mean({"total": torch.zeros(())}, rows, taken, torch.zeros(()))
        loss = backward(loss_of, parts)
        return Mean({**loss.metrics, "total": loss.total}, rows, taken, loss.rows, loss.priorities)

    return gradient


def together(algorithm: Algorithm, collective: Collective) -> Gradient:
    """Gradient of many learners with equal weights, by DistributedDataParallel: equal on all of them, bit for bit.

    Gradients of sums are averaged in the backward pass; only then the number of rows of all learners is known by which
    they have to be divided, which is the same as dividing the losses before. Gradients of micro-batches accumulate on
    their learner, and are averaged with the last one only, so learners need not have equally many.

    Raises:
        GroupBroken: a member is gone; from here, or from the function that is returned. No weight has changed then.
    """
    objective = _Objective(algorithm)
    # a user's own algorithm or torso may leave parameters out of the loss
    wrapped = collective.wrapped(objective, find_unused=not ours(algorithm))
    parameters = [one for one in objective.parameters() if one.requires_grad]
    names: list[str] = []  # of the metrics, once any learner had a batch

    def gradient(parts: Sequence[Batch], rows: int, taken: int) -> Mean:
        losses: list[Loss] = []
        for part in parts[:-1]:
            with wrapped.no_sync():
                wrapped(part).backward()
            losses.append(objective.taken())
        collective.backward(wrapped(parts[-1] if parts else None))
        if parts:
            losses.append(objective.taken())
        if not names:
            names[:] = _agreed(sorted(losses[0].metrics)[:METRICS] if losses else [], collective)
        valid, every, counted, summed, *metrics = collective.sums([float(rows), float(taken), *_numbers(losses, names)])
        divisor = max(counted, 1.0)
        torch._foreach_mul_([one.grad for one in parameters if one.grad is not None], collective.world / divisor)
        values = dict(zip(names, metrics, strict=False)) | {"total": summed}
        device = parameters[0].device
        return Mean(
            {name: torch.tensor(value / divisor, dtype=torch.float64, device=device) for name, value in values.items()},
            int(valid),
            int(every),
            torch.tensor(counted, device=device),
            joined_priorities(losses),
        )

    return gradient


def _agreed(names: list[str], collective: Collective) -> list[str]:
    """Names of the metrics for all learners, those without a batch included, so that all decide alike on their means.

    Args:
        names: of this learner's loss; none without a batch.
    """
    while len(said := "\n".join(names).encode()) > NAMES_BYTES:
        names = names[:-1]
    table = torch.zeros(1 + NAMES_BYTES, dtype=torch.int64)
    table[0] = len(said) > 0
    table[1 : 1 + len(said)] = torch.tensor(list(said), dtype=torch.int64)
    speakers, *summed = collective.all_reduce(table).tolist()
    return bytes(one // speakers for one in summed).rstrip(b"\0").decode().split("\n") if speakers else []


def ours(algorithm: Algorithm) -> bool:
    """True if neither algorithm nor network holds code of the user's own."""
    layers = [layer for module in algorithm.modules.values() for layer in module.modules()]
    made_by = {type(one).__module__ for one in (algorithm, *layers)}
    return all(name.startswith(("rlctl_agents.", "torch.")) for name in made_by)


class _Objective(nn.Module):
    """The sum of an algorithm's losses as a module, so that it can be wrapped."""

    def __init__(self, algorithm: Algorithm) -> None:
        super().__init__()
        self.trained = nn.ModuleDict(algorithm.modules)
        self._algorithm = algorithm
        self._loss: Loss | None = None

    def forward(self, batch: Batch | None) -> Tensor:
        if batch is None:
            # every parameter takes part, with a gradient of 0
            return torch.stack([one.sum() * 0.0 for one in self.parameters() if one.requires_grad]).sum()
        self._loss = self._algorithm.loss(batch)
        return self._loss.total

    def taken(self) -> Loss:
        """Return and release the loss of the last batch, without gradient."""
        loss, self._loss = self._loss, None
        assert loss is not None, "there was a batch"
        return loss._replace(total=loss.total.detach())


def _numbers(losses: Sequence[Loss], names: Sequence[str]) -> list[float]:
    """Sums of rows, of total and of metrics times rows, with one wait for the device; always 2 + METRICS numbers."""
    if not losses:
        return [0.0] * (2 + METRICS)
    # [micro-batches, 2 + names]
    none = losses[0].rows.new_zeros(())  # in place of a metric that a loss of the user's own has in some steps only
    seen = [[loss.rows, loss.total, *(loss.metrics.get(name, none) for name in names)] for loss in losses]
    table = torch.stack([one.detach().double().reshape(()) for row in seen for one in row]).view(len(losses), -1)
    rows, total, *metrics = torch.cat([table[:, :2], table[:, 2:] * table[:, :1]], 1).sum(0).tolist()
    return [rows, total, *metrics, *[0.0] * (METRICS - len(metrics))]
