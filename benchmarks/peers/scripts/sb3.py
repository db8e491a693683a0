"""Stable-Baselines3 PPO: one process, synchronous."""

from __future__ import annotations

import sys
from typing import Any

import games
from nets import one_thread
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from tell import tell

SETTINGS: dict[str, dict[str, Any]] = {
    "pong": {"policy": "CnnPolicy", "n_steps": 128, "batch_size": 256, "n_epochs": 1},
    "cartpole": {"policy": "MlpPolicy", "n_steps": 64, "batch_size": 512, "n_epochs": 1},
    "pong_ppo": {"policy": "CnnPolicy", "n_steps": 128, "batch_size": 256, "n_epochs": 4},
    "cartpole_ppo": {"policy": "MlpPolicy", "n_steps": 32, "batch_size": 256, "n_epochs": 4},
    "halfcheetah_ppo": {"policy": "MlpPolicy", "n_steps": 256, "batch_size": 64, "n_epochs": 10},
    # RL Zoo's tuned settings
    "solve": {"policy": "MlpPolicy", "n_steps": 32, "batch_size": 256, "n_epochs": 20, "gae_lambda": 0.8,
              "gamma": 0.98, "ent_coef": 0.0, "learning_rate": lambda left: left * 1e-3,
              "clip_range": lambda left: left * 0.2},
}  # fmt: skip
SCHEDULE = 100_000
"""Steps over which RL Zoo's learning rate falls to 0."""
ENVS = {"pong": 8, "cartpole": 32, "solve": 8, "pong_ppo": 8, "cartpole_ppo": 32, "halfcheetah_ppo": 8}
GAMES = {"pong": games.pong, "pong_ppo": games.pong, "halfcheetah_ppo": games.halfcheetah}
"""The others are CartPole."""


class Teller(BaseCallback):
    """When a rollout begins, everything before it has been learned from."""

    def _on_rollout_start(self) -> None:
        episodes = [episode["r"] for episode in self.model.ep_info_buffer or ()]
        tell(self.model.num_timesteps, sum(episodes) / len(episodes) if len(episodes) == 100 else None)

    def _on_step(self) -> bool:
        return True


def main(task: str) -> int:
    if task not in SETTINGS:
        return 2
    one_thread()
    env = make_vec_env(GAMES.get(task, games.cartpole), n_envs=ENVS[task])
    model = PPO(env=env, device="cpu", **SETTINGS[task])
    model.learn(total_timesteps=SCHEDULE if task == "solve" else 10**9, callback=Teller())
    print(f"not solved within the {SCHEDULE:,} steps of its schedule", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
