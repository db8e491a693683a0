"""A loss compiled by torch, so that a GPU does not wait for Python between its hundreds of small kernels."""

from __future__ import annotations

from collections.abc import Callable

import torch

from rlctl_agents.algorithms.base import Algorithm, Batch, Loss

BACKENDS = ("inductor", "cudagraphs")
"""Tried in this order: fused kernels replayed as CUDA graphs need a C compiler and Triton, the graphs alone neither."""
TRIALS = 3
"""Calls of the compiled loss on trial: with CUDA graphs the first runs, the second records, the third replays."""


def compiled(algorithm: Algorithm, example: Batch, backend: str) -> Callable[[Batch], Loss]:
    """The algorithm's loss, compiled for batches of one shape; others take the loss as it is written.

    The compiler works here and now, up to a minute: the example goes forward and backward. Weights stay as they are,
    their gradients are gone.

    Args:
        example: its numbers do not matter.
        backend: of `torch.compile`.

    Raises:
        Exception: whatever a compiler, or what it made, may raise.
    """
    if backend == "inductor":
        loss = torch.compile(algorithm.loss, dynamic=False, mode="reduce-overhead")
    else:
        loss = torch.compile(algorithm.loss, dynamic=False, backend=backend)
    shape, graphs = example.version.shape, backend in BACKENDS

    def of(batch: Batch) -> Loss:
        if batch.version.shape != shape:
            return algorithm.loss(batch)
        if graphs:
            # the results of the last call are not used any more
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        return loss(batch)

    try:
        for _ in range(TRIALS):
            of(example).total.backward()  # type: ignore[no-untyped-call]
            _clear(algorithm)
    finally:
        _clear(algorithm)
    return of


def _clear(algorithm: Algorithm) -> None:
    for module in algorithm.modules.values():
        module.zero_grad(set_to_none=True)
