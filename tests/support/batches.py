"""Batches on the CPU in memory that a test has filled."""

from __future__ import annotations

import torch

from rlctl_agents.algorithms.base import Batch
from rlctl_agents.experience.batching import BatchMemory
from rlctl_agents.experience.staging import Staging
from rlctl_agents.types.experience import Schema

STAGING = Staging(torch.device("cpu"))


def memory(schema: Schema, streams: int) -> BatchMemory:
    """Zeros."""
    return STAGING.allocate(schema, streams)


def batch(filled: BatchMemory) -> Batch:
    """Tensors on that memory, as a source hands them over."""
    return STAGING.batch(filled)
