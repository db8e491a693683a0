"""CleanRL's ppo.py and ppo_atari.py as they are: one process; environments and reports are replaced."""

from __future__ import annotations

import os
import runpy
import sys
import types
from pathlib import Path
from typing import Any

import games
import gymnasium
from nets import one_thread
from tell import tell

STEPS = 10**9
COMMON = {"total-timesteps": STEPS, "update-epochs": 4, "num-minibatches": 4}
TASKS: dict[str, tuple[str, dict[str, int]]] = {
    "pong_ppo": ("ppo_atari.py", {"num-envs": 8, "num-steps": 128}),
    "cartpole_ppo": ("ppo.py", {"num-envs": 32, "num-steps": 32}),
}


class Writer:
    """In place of TensorBoard's. The steps per second are the last that is written after an update."""

    def __init__(self, *arguments: Any) -> None: ...

    def add_text(self, *arguments: Any) -> None: ...

    def add_scalar(self, name: str, value: float, steps: int) -> None:
        if name == "charts/SPS":
            tell(steps)


def main(task: str) -> int:
    if task not in TASKS:
        return 2
    script, settings = TASKS[task]
    one_thread()
    for name, content in {
        "torch.utils.tensorboard": {"SummaryWriter": Writer},
        # wrappers of environments that are never made
        "cleanrl_utils": {},
        "cleanrl_utils.atari_wrappers": dict.fromkeys(
            ("ClipRewardEnv", "EpisodicLifeEnv", "FireResetEnv", "MaxAndSkipEnv", "NoopResetEnv")
        ),
    }.items():
        module = types.ModuleType(name)
        vars(module).update(content)
        sys.modules[name] = module
    vector = gymnasium.vector.SyncVectorEnv
    one = games.pong if task == "pong_ppo" else games.cartpole
    gymnasium.vector.SyncVectorEnv = lambda makers: vector([one] * len(makers))  # type: ignore[assignment, misc]
    words = [f"--{name}={value}" for name, value in (COMMON | settings).items()]
    path = Path(os.environ["SOURCE"]) / "cleanrl" / script
    sys.argv = [str(path), "--no-cuda", *words]
    runpy.run_path(str(path), run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
