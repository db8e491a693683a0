"""Stable-Baselines3 PPO, DQN and SAC: one process, synchronous."""

from __future__ import annotations

import sys
from typing import Any

import games
from nets import one_thread
from stable_baselines3 import DQN, PPO, SAC
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
STARTS = 1_000
"""Steps in the replay before the first is learned from."""
REPLAYED: dict[str, tuple[type[DQN] | type[SAC], dict[str, Any]]] = {
    "pong_dqn": (DQN, {"policy": "CnnPolicy", "batch_size": 32, "train_freq": 4, "gradient_steps": 1,
                       "buffer_size": 100_000, "target_update_interval": 1_000, "learning_starts": STARTS,
                       "exploration_fraction": 1e-6}),  # of all steps: later each costs a pass through the network
    "halfcheetah_sac": (SAC, {"policy": "MlpPolicy", "batch_size": 256, "train_freq": 1, "gradient_steps": 1,
                              "buffer_size": 1_000_000, "learning_starts": STARTS}),
}  # fmt: skip
SCHEDULE = 100_000
"""Steps over which RL Zoo's learning rate falls to 0."""
ENVS = {"pong": 8, "cartpole": 32, "solve": 8, "pong_ppo": 8, "cartpole_ppo": 32, "halfcheetah_ppo": 8,
        "pong_dqn": 1, "halfcheetah_sac": 1}  # fmt: skip
GAMES = {"pong": games.pong, "pong_ppo": games.pong, "halfcheetah_ppo": games.halfcheetah,
         "pong_dqn": games.pong, "halfcheetah_sac": games.halfcheetah}  # fmt: skip
"""Games by task; the other tasks are CartPole."""


class Teller(BaseCallback):
    """Tells the steps when a rollout begins: all before it have been learned from."""

    def _on_rollout_start(self) -> None:
        episodes = [episode["r"] for episode in self.model.ep_info_buffer or ()]
        if isinstance(self.model, DQN | SAC) and self.model.num_timesteps <= STARTS:
            return
        tell(self.model.num_timesteps, sum(episodes) / len(episodes) if len(episodes) == 100 else None)

    def _on_step(self) -> bool:
        return True


def main(task: str) -> int:
    if task not in ENVS:
        return 2
    one_thread()
    env = make_vec_env(GAMES.get(task, games.cartpole), n_envs=ENVS[task])
    kind, settings = REPLAYED[task] if task in REPLAYED else (PPO, SETTINGS[task])
    model = kind(env=env, device="cpu", **settings)
    model.learn(total_timesteps=SCHEDULE if task == "solve" else 10**9, callback=Teller())
    print(f"not solved within the {SCHEDULE:,} steps of its schedule", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
