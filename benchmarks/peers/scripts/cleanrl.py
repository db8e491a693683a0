"""CleanRL's files of PPO, DQN and SAC as they are: one process; environments and reports are replaced."""

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
PPO = {"update-epochs": 4, "num-minibatches": 4}
REPLAYED = {"learning-starts": 1_000, "num-envs": 1}
TASKS: dict[str, tuple[str, dict[str, float]]] = {
    "pong_ppo": ("ppo_atari.py", {"num-envs": 8, "num-steps": 128, **PPO}),
    "cartpole_ppo": ("ppo.py", {"num-envs": 32, "num-steps": 32, **PPO}),
    # it explores at random for 1,000 steps: later each step costs a pass through the network, as in training
    "pong_dqn": ("dqn_atari.py", {"buffer-size": 100_000, "batch-size": 32, "train-frequency": 4,
                                  "exploration-fraction": 1_000 / STEPS, **REPLAYED}),
    "halfcheetah_sac": ("sac_continuous_action.py", {"buffer-size": 1_000_000, "batch-size": 256, **REPLAYED}),
}  # fmt: skip
GAMES = {"pong_ppo": games.pong, "pong_dqn": games.pong, "halfcheetah_sac": games.halfcheetah}
"""Games by task; the other tasks are CartPole."""


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
    source = Path(os.environ["SOURCE"])
    sys.path.insert(0, str(source))  # its replay buffer
    one_thread()
    for name, content in {
        "torch.utils.tensorboard": {"SummaryWriter": Writer},
        # wrappers of environments that are never made
        "cleanrl_utils.atari_wrappers": dict.fromkeys(
            ("ClipRewardEnv", "EpisodicLifeEnv", "FireResetEnv", "MaxAndSkipEnv", "NoopResetEnv")
        ),
    }.items():
        module = types.ModuleType(name)
        vars(module).update(content)
        sys.modules[name] = module
    vector = gymnasium.vector.SyncVectorEnv
    game = GAMES.get(task, games.cartpole)

    def one() -> gymnasium.Env:  # its files read what this wrapper adds, and put it around theirs
        return gymnasium.wrappers.RecordEpisodeStatistics(game())

    gymnasium.vector.SyncVectorEnv = lambda makers: vector([one] * len(makers))  # type: ignore[assignment, misc]
    words = [f"--{name}={value}" for name, value in {"total-timesteps": STEPS, **settings}.items()]
    path = source / "cleanrl" / script
    sys.argv = [str(path), "--no-cuda", *words]
    runpy.run_path(str(path), run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
