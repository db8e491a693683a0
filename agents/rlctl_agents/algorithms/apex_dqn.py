"""Ape-X DQN: many actors with an exploration rate each, prioritized replay, n-step returns.

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
"""Number of stream ids per actor: an id is the lease index times this, plus the slot (`policy_player.stream_ids`)."""
GOLDEN = (5**0.5 - 1) / 2
BITS = 20
"""Bits of a slot's number that are used."""


class ApexDqn(QLearning):
    """Double dueling DQN with prioritized replay and a ladder of exploration rates."""

    settings: ClassVar[type[specs.Ladder]] = specs.ApexDqn
    config: specs.Ladder

    def epsilon(self, inputs: ActInputs) -> Tensor | float:
        """Exploration rate of each stream, a function of its id alone; the lowest one outside of a run."""
        config = self.config
        if inputs.stream is None:
            return float(config.epsilon_base ** (1 + config.epsilon_power))
        base = torch.tensor(config.epsilon_base)
        return torch.pow(base, 1 + config.epsilon_power * places(inputs.stream))


def places(stream: Tensor) -> Tensor:
    """Position of each stream on the exploration ladder, [K] float32 in [0, 1) of stream ids [K] int64: evenly spread
    for any numbers of actors and slots, and independent of which actors are alive.

    The slots of an actor are at the van der Corput points of base 2, shifted modulo 1 by the actor's number times the
    golden ratio.

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
