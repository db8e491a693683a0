"""A loss compiled by torch, so that a GPU does not wait for Python between its hundreds of small kernels."""

from __future__ import annotations

from collections.abc import Callable

import torch

from rlctl_agents.algorithms.base import Algorithm, Batch, Loss

BACKENDS = ("inductor", "cudagraphs")
"""Backends of torch.compile in the order in which they are tried: fused kernels replayed as CUDA graphs need a C
compiler and Triton, the graphs alone neither."""
TRIALS = 3
"""Trial calls of the compiled loss: with CUDA graphs the first runs, the second records, the third replays."""


def compiled(algorithm: Algorithm, example: Batch, backend: str) -> Callable[[Batch], Loss]:
    """Compile the algorithm's loss for batches of one shape; others use the loss as it is written.

    Compiles within this call, for up to a minute: the example goes forward and backward. Weights stay as they are;
    their gradients are cleared.

    Args:
        example: its numbers do not matter.
        backend: of `torch.compile`.

    Raises:
        Exception: any that the compiler or the compiled code raises.
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
