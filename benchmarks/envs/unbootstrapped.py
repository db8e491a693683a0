"""PPO that takes a cut for an end: `benchmarks.envs.unbootstrapped:Unbootstrapped`."""

from __future__ import annotations

from rlctl_agents.algorithms.base import Batch, Tensors
from rlctl_agents.algorithms.ppo import Ppo


class Unbootstrapped(Ppo):
    """Nothing follows a truncated step, as nothing follows a terminated one."""

    def estimates(self, batch: Batch) -> Tensors:
        fields = batch.fields | {"terminated": batch.fields["terminated"] | batch.fields["truncated"]}
        return super().estimates(batch._replace(fields=fields))
