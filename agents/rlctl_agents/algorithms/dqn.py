"""DQN: Q-learning with uniform replay and an annealed exploration rate.

docs/algorithms/dqn.md has the mathematics and every deviation from the paper (Mnih et al. 2015,
doi:10.1038/nature14236).
"""

from __future__ import annotations

from rlctl.spec import algorithms as specs
from rlctl_agents.algorithms.base import ActInputs
from rlctl_agents.algorithms.q_learning import QLearning


class Dqn(QLearning):
    """Deep Q-network; optionally double, dueling, n-step and prioritized."""

    settings = specs.Dqn
    config: specs.Dqn

    def epsilon(self, inputs: ActInputs) -> float:
        """Exploration rate, annealed linearly in the agent steps that the weights were learned from."""
        config = self.config
        done = min(1.0, inputs.progress / config.epsilon_steps)
        return config.epsilon_initial + done * (config.epsilon_final - config.epsilon_initial)
