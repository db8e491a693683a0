"""Ape-X DQN: many actors that explore at rates of their own, priorities, returns over several steps.

docs/algorithms/apex_dqn.md has the mathematics and every deviation from the paper (Horgan et al. 2018,
arXiv:1803.00933).
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from rlctl.spec import algorithms as specs
from rlctl_agents.algorithms.base import ActInputs
from rlctl_agents.algorithms.q_learning import QLearning

STREAMS_PER_LEASE = 1_000_000
"""A stream's id is that of its actor's lease times this, and the slot's number (`acting.policy_player.stream_ids`)."""
GOLDEN = (5**0.5 - 1) / 2
BITS = 20
"""Bits of a slot's number."""


class ApexDqn(QLearning):
    """Double dueling DQN with prioritized replay and a ladder of exploration rates."""

    settings: ClassVar[type[specs.Ladder]] = specs.ApexDqn
    config: specs.Ladder

    def epsilon(self, inputs: ActInputs) -> Tensor | float:
        """Exploration rate of each stream, a function of its number alone; the lowest one outside of a run."""
        config = self.config
        if inputs.stream is None:
            return float(config.epsilon_base ** (1 + config.epsilon_power))
        base = torch.tensor(config.epsilon_base)
        return torch.pow(base, 1 + config.epsilon_power * places(inputs.stream))


def places(stream: Tensor) -> Tensor:
    """[K] float32 in [0, 1) of streams [K] int64: spread evenly however many actors with however many slots there are,
    and the same whichever actors come or go.

    The slots of an actor are at the van der Corput points of base 2, moved round by the actor's number times the golden
    ratio.

    Example:
        Slots 0 to 3 of actor 0 are at 0, 1/2, 1/4 and 3/4.

    Source: van der Corput 1935; the additive recurrence of Kronecker 1884 for the actors.
    """
    slot = stream % STREAMS_PER_LEASE
    actor = torch.div(stream, STREAMS_PER_LEASE, rounding_mode="floor")
    at = actor.to(torch.float64) * GOLDEN
    for bit in range(BITS):
        at += ((slot >> bit) & 1) * 2.0 ** -(bit + 1)
    return (at % 1.0).to(torch.float32)
