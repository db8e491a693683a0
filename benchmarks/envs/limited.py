"""An environment that is cut short in actors alone: `benchmarks.envs.limited:make`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import gymnasium


class Begun(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that begins each episode with these options of `reset`."""

    def __init__(self, env: gymnasium.Env[Any, Any], options: Mapping[str, Any]) -> None:
        super().__init__(env)
        self._options = dict(options)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return super().reset(seed=seed, options=self._options | (options or {}))


def make(name: str, steps: int, begin: Mapping[str, Any]) -> gymnasium.Env[Any, Any]:
    """A registered environment; in actors truncated after `steps` steps and begun with the options `begin`.

    Evaluators play it as it is registered.
    """
    if "evaluator" in sys.argv:
        return gymnasium.make(name)
    return Begun(gymnasium.make(name, max_episode_steps=steps), begin)
