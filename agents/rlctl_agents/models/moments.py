"""Running moments as buffers of a network: they are published with the weights and change between batches only."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from rlctl_agents.models.inputs import coded, wide
from rlctl_agents.types.spaces import Box, Space, leaves

LARGEST = 10.0
"""Bound of normalised observations, which are clipped to [-LARGEST, LARGEST]."""
LARGEST_BYTE = 255.0
"""Initial standard deviation of codes in bytes, so that they are at most 1 until their moments are known."""
SMALLEST_VARIANCE = 1e-8
SMALLEST_DEVIATION = 1e-3
MEMORY_STEPS = 100_000
"""Agent steps over which the moments of returns are averaged, unless the algorithm sets others: returns grow while it
learns."""

AllReduce = Callable[[Tensor], Tensor]
"""Sum of a tensor over all learners that step together, equal on all of them."""


class RunningMoments(nn.Module):
    """Mean and standard deviation of vectors over all rows so far, initially 0 and `deviation`.

    Merged by the parallel form of Chan, Golub and LeVeque 1979.
    """

    count: Tensor  # [] float64
    mean: Tensor  # [width] float64
    variance: Tensor  # [width] float64

    def __init__(self, width: int, deviation: float = 1.0) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(width, dtype=torch.float64))
        self.register_buffer("variance", torch.full((width,), deviation**2, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise [N, ...] to mean 0 and standard deviation 1 in each entry, clipped; the same shape, float32."""
        scale = (self.variance + SMALLEST_VARIANCE).rsqrt()
        flat = (x.unsqueeze(-1).flatten(1) - self.mean.to(torch.float32)) * scale.to(torch.float32)
        return flat.clamp(-LARGEST, LARGEST).view(x.shape)

    @torch.no_grad()
    def merge(self, sums: Tensor) -> None:
        """Add rows.

        Args:
            sums: [1 + 2 width] float64: their number, sums of x - mean, sums of (x - mean)^2, over all learners.
        """
        added = sums[0]
        if added == 0:
            return
        shift, squares = sums[1:].chunk(2)
        offset = shift / added  # mean of the new rows minus the current mean
        variance = (squares / added - offset.square()).clamp(min=0.0)
        count = self.count + added
        share = added / count
        spread = self.variance * (1 - share) + variance * share + offset.square() * share * (1 - share)
        self.variance.copy_(spread)
        self.mean.add_(offset * share)
        self.count.copy_(count)

    def sums(self, x: Tensor | None) -> Tensor:
        """Sums of rows [N, width] for `merge`, [1 + 2 width] float64; zeros for none."""
        if x is None or len(x) == 0:
            return torch.zeros(1 + 2 * len(self.mean), dtype=torch.float64, device=self.mean.device)
        from_mean = x.unsqueeze(-1).flatten(1).to(torch.float64) - self.mean
        count = torch.full((1,), float(len(x)), dtype=torch.float64, device=x.device)
        return torch.cat([count, from_mean.sum(0), from_mean.square().sum(0)])


class ObservationMoments(nn.Module):
    """Moments of each entry of every leaf of the observation that holds numbers without a scale; others pass as is.

    Args:
        space: observation space.
        codes: True to include integers that may be further than 1 from 0, except bytes, and each channel of small
            grids of codes (`inputs.coded`). They become float32.
    """

    def __init__(self, space: Space, *, codes: bool = False) -> None:
        super().__init__()
        self.names: list[str] = []
        self._channels: list[int | None] = []  # axis in a batch; None: each entry has moments of its own
        self.moments = nn.ModuleList()
        for name, leaf in leaves(space, "obs"):
            axis = coded(leaf) if codes else None
            if isinstance(leaf, Box) and (axis is not None or _numbers(leaf, whole=codes)):
                self.names.append(name)
                self._channels.append(None if axis is None else axis + 1)
                if axis is None:
                    self.moments.append(RunningMoments(math.prod(leaf.shape)))
                else:
                    self.moments.append(RunningMoments(leaf.shape[axis], LARGEST_BYTE))

    def forward(self, obs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Normalise the leaves in `names`, [N, ...] each; other leaves are returned as they are."""
        normalised = {}
        for name, one, axis in zip(self.names, self.moments, self._channels, strict=True):
            x = obs[name]
            if axis is None:
                normalised[name] = one(x)
            else:
                cells = x.movedim(axis, -1)
                normalised[name] = one(cells.reshape(-1, cells.shape[-1])).view(cells.shape).movedim(-1, axis)
        return {**obs, **normalised}

    @torch.no_grad()
    def update(self, obs: dict[str, Tensor] | None, valid: Tensor | None, all_reduce: AllReduce) -> None:
        """Add the valid rows of a batch.

        Args:
            obs: [T or T+1, B, ...]; None if this learner has none.
            valid: [T, B] bool.
            all_reduce: called once per leaf in `names`, with or without rows.
        """
        for name, one, axis in zip(self.names, self.moments, self._channels, strict=True):
            assert isinstance(one, RunningMoments)
            rows = None if obs is None or valid is None else obs[name][: len(valid)][valid]
            if rows is not None and axis is not None:
                rows = rows.movedim(axis, -1).reshape(-1, rows.shape[axis])
            one.merge(all_reduce(one.sums(rows)))


class ReturnMoments(nn.Module):
    """Moments of the value targets, in whose units the value head computes.

    The head is rewritten whenever the moments change, so that the values stay as they were: PopArt (van Hasselt et al.
    2016, arXiv:1602.07714).
    """

    mean: Tensor  # [] float64
    variance: Tensor  # [] float64; 1 before the first batch
    batches: Tensor  # [] float64

    def __init__(self) -> None:
        super().__init__()
        for name, value in (("mean", 0.0), ("variance", 1.0), ("batches", 0.0)):
            self.register_buffer(name, torch.full((), value, dtype=torch.float64))

    @property
    def deviation(self) -> Tensor:
        """Standard deviation, [] float32, bounded from below: rewards that never differ have no scale."""
        return self.variance.clamp(min=SMALLEST_DEVIATION**2).sqrt().to(torch.float32)

    def raw(self, normalised: Tensor) -> Tensor:
        """Convert outputs of the head to values."""
        return normalised * self.deviation + self.mean.to(torch.float32)

    @torch.no_grad()
    def reset(self, head: nn.Linear) -> None:
        """Reset to mean 0 and standard deviation 1. With a standard deviation of at most 1 the head is rewritten, so
        that values stay as they were; with a larger one it is not: values become its normalised outputs.

        Args:
            head: as in `update`.
        """
        if self.deviation <= 1:
            head.weight.mul_(self.deviation.to(head.weight.dtype))
            head.bias.copy_(head.bias.to(torch.float64) * self.deviation.to(torch.float64) + self.mean)
        for name, value in (("mean", 0.0), ("variance", 1.0), ("batches", 0.0)):
            getattr(self, name).fill_(value)

    @torch.no_grad()
    def update(
        self, shift: float, spread: float, head: nn.Linear, *, batch_size: int, memory_steps: int = MEMORY_STEPS
    ) -> None:
        """Move towards the moments of the newest targets, and rewrite the head.

        The n-th batch has weight 1/n, but at least batch_size / memory_steps.

        Args:
            shift, spread: means of target - mean and of its square, over the valid rows of all learners.
            head: [features] -> 1, in units of the moments as they are.
            batch_size: agent steps of a batch, over all learners.
            memory_steps: agent steps over which the moments are averaged.
        """
        mean, deviation = self.mean.clone(), self.deviation.to(torch.float64)
        self.batches.add_(1)
        share = torch.clamp(1 / self.batches, min=min(1.0, batch_size / memory_steps))
        self.mean.add_(shift * share)
        # second moment around the old mean, moved to the new one
        around = self.variance * (1 - share) * (self.batches > 1) + spread * share
        self.variance.copy_(around - (shift * share).square())
        now = self.deviation.to(torch.float64)
        head.weight.mul_((deviation / now).to(head.weight.dtype))
        head.bias.copy_((head.bias.to(torch.float64) * deviation + mean - self.mean) / now)


def _numbers(leaf: Box, *, whole: bool) -> bool:
    """True if entries need moments: real numbers and, if `whole`, integers beyond 1; bytes and bits have a scale."""
    integers = leaf.dtype.startswith(("int", "uint")) and leaf.dtype != "uint8" and wide(leaf)
    return leaf.dtype.startswith("float") or (whole and integers)
