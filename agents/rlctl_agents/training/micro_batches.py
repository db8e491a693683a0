"""Micro-batches: gradient accumulation over parts of a batch that fit the processor's cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rlctl_agents.algorithms.base import Algorithm, Batch, Loss

MICRO_BATCH_ROWS = 8192
"""Most rows of a micro-batch. An mlp of 128 learns from a row in 2.3 us of CPU with 8,192 rows, in 3.7 with 65,536."""
MICRO_BATCH_BYTES = 6 << 20
"""Most bytes of a micro-batch. The Nature CNN (fp32, AVX2 alone) learns from a row of Pong in 0.96 ms with 160 rows, in
1.0 with 80, in 1.07 with 640."""


def micro_batches(algorithm: Algorithm, batch: Batch, most_rows: int) -> list[Batch]:
    """Split a batch into micro-batches of whole segments, as views: at most `most_rows` rows each (at least one
    segment); all but the last of equal size, and the last as near to it as possible.

    Args:
        algorithm: without an `additive` loss the batch is not split.
        most_rows: of one micro-batch.
    """
    steps, streams = batch.version.shape
    each = max(1, most_rows // steps)
    if streams <= each or not algorithm.additive:
        return [batch]
    each = math.ceil(streams / math.ceil(streams / each))
    return [batch.narrow(first, min(each, streams - first)) for first in range(0, streams, each)]


def cached_rows(batch: Batch) -> int:
    """Rows of a micro-batch that stays in the processor's cache together with a network's activations."""
    row = sum(one.nbytes for one in batch.fields.values()) / max(1, batch.version.numel())
    return max(1, min(MICRO_BATCH_ROWS, int(MICRO_BATCH_BYTES / max(row, 1.0))))


def backward(loss_of: Callable[[Batch], Loss], parts: Sequence[Batch]) -> Loss:
    """Add the gradient of the mean loss over the valid rows of all micro-batches to the weights' gradients.

    Args:
        loss_of: loss of an algorithm.
        parts: micro-batches of one batch.

    Returns:
        The mean loss in place of the sum, without gradient; metrics are means over the micro-batches, weighted by their
        valid rows, also of those that are no means over rows (`explained_variance`).
    """
    if len(parts) == 1:
        loss = loss_of(parts[0])
        mean = loss.total / loss.rows.clamp(min=1)
        mean.backward()  # type: ignore[no-untyped-call]
        return loss._replace(total=mean.detach())
    rows = torch.stack([part.fields["valid"].sum() for part in parts]).sum().to(torch.float32).clamp(min=1)
    done: list[Loss] = []
    for part in parts:
        loss = loss_of(part)
        mean = loss.total / rows
        mean.backward()  # type: ignore[no-untyped-call]
        done.append(loss._replace(total=mean.detach()))
    share = torch.stack([loss.rows for loss in done]).double() / rows
    metrics = {name: (share * torch.stack([loss.metrics[name] for loss in done])).sum() for name in done[0].metrics}
    total = torch.stack([loss.total for loss in done]).sum()
    return Loss(total, torch.stack([loss.rows for loss in done]).sum(), metrics, joined_priorities(done))


def joined_priorities(losses: Sequence[Loss]) -> Tensor | None:
    """Priorities of a batch's columns from its micro-batches; None: the algorithm gives none."""
    found = [loss.priorities for loss in losses if loss.priorities is not None]
    return torch.cat(found) if found else None
