"""Staging of batches for a GPU: pinned host memory, fixed device memory, copies while another batch is learned from."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from rlctl_agents.algorithms.base import Batch
from rlctl_agents.experience.batching import BatchMemory, allocate_memory
from rlctl_agents.types.experience import Schema


@dataclass
class _There:
    """Device memory of one batch; its tensors keep shape and address, as CUDA graphs need it."""

    batch: Batch
    copied: torch.cuda.Event | None  # recorded after the copy
    read: torch.cuda.Event | None  # recorded when all work that reads the batch was queued
    full: bool = False  # the device holds the contents of the host memory


class Staging:
    """Memory for batches on host and device, and the copies between both. On a CPU the network learns from the batch's
    own memory.

    Args:
        device: device of the network.
        copies: True to copy on a CPU too, as a GPU needs it: the same path, without streams.
    """

    def __init__(self, device: torch.device, *, copies: bool = False) -> None:
        self._device = device
        self._on_gpu = device.type == "cuda"
        self._copies = copies or self._on_gpu
        self._stream = torch.cuda.Stream(device) if self._on_gpu else None  # type: ignore[no-untyped-call]

    def allocate(self, schema: Schema, streams: int) -> BatchMemory:
        """Allocate memory for a batch of `streams` columns, on host and device."""

        def pinned(shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
            return torch.zeros(shape, dtype=getattr(torch, dtype), pin_memory=self._on_gpu).numpy()

        memory = allocate_memory(schema, streams, pinned)
        if self._copies:
            here = batch_of(memory)
            fields = {name: torch.empty_like(one, device=self._device) for name, one in here.fields.items()}
            there = Batch(fields, torch.empty_like(here.version, device=self._device), here.segment_fields)
            copied, read = (torch.cuda.Event() if self._on_gpu else None for _ in range(2))  # type: ignore[no-untyped-call]
            if read is not None:  # queued work may still use the device memory that this was allocated from
                read.record(torch.cuda.current_stream(self._device))
            memory.there = _There(there, copied, read)
        return memory

    def begin(self, memory: BatchMemory) -> None:
        """Begin to copy a full batch to the device. From any thread; does not wait."""
        there = memory.there
        if there is None:
            return
        assert isinstance(there, _There)
        here = batch_of(memory)
        if self._stream is not None and there.read is not None:
            self._stream.wait_event(there.read)
        with torch.cuda.stream(self._stream) if self._stream is not None else nullcontext():
            for name, one in here.fields.items():
                there.batch.fields[name].copy_(one, non_blocking=True)
            there.batch.version.copy_(here.version, non_blocking=True)
            if there.copied is not None:
                there.copied.record(self._stream)
        there.full = True

    def batch(self, memory: BatchMemory) -> Batch:
        """The batch on the network's device; the device waits for the copy, this thread does not.

        The memory may be filled again once the copy is done, and be copied again after `release`.
        """
        there = memory.there
        here = batch_of(memory)
        if there is None:
            return here._replace(delivery=here.books)
        assert isinstance(there, _There)
        if not there.full:
            self.begin(memory)
        there.full = False
        if there.copied is not None:
            torch.cuda.current_stream(self._device).wait_event(there.copied)
        return there.batch._replace(delivery=here.books)

    def release(self, memory: BatchMemory) -> None:
        """Note that all work which reads the batch is queued on this thread's stream: the next copy waits for it."""
        there = memory.there
        if isinstance(there, _There) and there.read is not None:
            there.read.record(torch.cuda.current_stream(self._device))


def batch_of(memory: BatchMemory) -> Batch:
    """Batch of tensors that share a batch's host memory."""
    tensors: dict[str, Tensor] = {name: torch.from_numpy(values) for name, values in memory.fields.items()}
    return Batch(tensors, torch.from_numpy(memory.version), memory.segment_fields)
