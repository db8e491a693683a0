"""IMPALA without its correction: `benchmarks.envs.uncorrected:Uncorrected`. The difference is V-trace's worth."""

from __future__ import annotations

import torch

from rlctl_agents.algorithms.base import Batch, Loss, below
from rlctl_agents.algorithms.impala import Impala


class Uncorrected(Impala):
    """Learns from every row as if the present policy had chosen it: all importance weights are 1."""

    def loss(self, batch: Batch) -> Loss:
        fields = dict(batch.fields)
        with torch.no_grad():
            params, _ = self.net.unroll(below(fields, "obs"), fields["first"], below(fields, "core"))
            score, _ = self.net.distribution.score(params[:-1], below(fields, "action"), None)
        fields["log_prob"] = score
        return super().loss(Batch(fields, batch.version))
