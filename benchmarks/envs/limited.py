"""An environment that is cut short in actors alone: `benchmarks.envs.limited:make`."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium


def make(name: str, steps: int) -> gymnasium.Env[Any, Any]:
    """A registered environment, truncated after `steps` steps in actors, and as it is registered in evaluators."""
    return gymnasium.make(name, max_episode_steps=None if "evaluator" in sys.argv else steps)
