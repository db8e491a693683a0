"""TorchBeast's MonoBeast: IMPALA on one machine, pure Python; its environments are replaced, for its own need gym."""

from __future__ import annotations

import os
import sys
import tempfile
import types
from typing import Any

import games
from tell import tell

sys.modules["torchbeast.atari_wrappers"] = types.ModuleType("torchbeast.atari_wrappers")
sys.path.insert(0, os.environ["SOURCE"])


class Old:
    """A Gymnasium environment with gym's old four-tuples."""

    def __init__(self) -> None:
        self._env = games.pong()
        self.observation_space, self.action_space = self._env.observation_space, self._env.action_space

    def reset(self) -> Any:
        return self._env.reset()[0]

    def step(self, action: int) -> Any:
        obs, reward, terminated, truncated, info = self._env.step(action)
        return obs, reward, terminated or truncated, info

    def close(self) -> None:
        self._env.close()

    def seed(self, seed: int) -> None:
        self._env.reset(seed=seed)


def main(task: str) -> int:
    if task != "pong":
        return 2
    import torchbeast

    torchbeast.atari_wrappers = sys.modules["torchbeast.atari_wrappers"]
    from torchbeast import monobeast

    steps = 0
    learn = monobeast.learn

    def counted(flags: Any, *arguments: Any, **keywords: Any) -> Any:
        nonlocal steps
        stats = learn(flags, *arguments, **keywords)
        steps += flags.unroll_length * flags.batch_size
        tell(steps)
        return stats

    monobeast.learn = counted
    monobeast.create_env = lambda flags: Old()
    flags = monobeast.parser.parse_args(
        ["--num_actors=2", "--unroll_length=20", "--batch_size=16", "--num_learner_threads=1", "--disable_cuda",
         "--disable_checkpoint", "--total_steps=1000000000", f"--savedir={tempfile.mkdtemp()}"]
    )  # fmt: skip
    monobeast.train(flags)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
