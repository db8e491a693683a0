"""RLlib's IMPALA on its new API stack: one runner, a local learner."""

from __future__ import annotations

import os
import sys
from typing import Any

import games
from tell import tell

os.environ["RAY_DEDUP_LOGS"] = "0"
ENVS = {"pong": 8, "cartpole": 16}


def main(task: str) -> int:
    if task not in ENVS:
        return 2
    import ray
    from ray.rllib.algorithms.impala import IMPALAConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.tune.registry import register_env

    make: Any = games.pong if task == "pong" else games.cartpole
    register_env(task, lambda config: Channels(make()) if task == "pong" else make())
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    pixels = {
        "conv_filters": [[32, 8, 4], [64, 4, 2], [64, 3, 1]], "conv_activation": "relu", "head_fcnet_hiddens": [512],
        "head_fcnet_activation": "relu", "vf_share_layers": True,
    }  # fmt: skip
    vector = {"fcnet_hiddens": [64, 64], "fcnet_activation": "tanh", "vf_share_layers": False}
    algorithm = (
        IMPALAConfig()
        .environment(task)
        .env_runners(num_env_runners=1, num_envs_per_env_runner=ENVS[task], rollout_fragment_length=32)
        .learners(num_learners=0)
        .training(train_batch_size_per_learner=512)
        .rl_module(model_config=DefaultModelConfig(**(pixels if task == "pong" else vector)))
        .reporting(min_time_s_per_iteration=1)
        .build_algo()
    )
    steps = 0.0
    while True:
        result = algorithm.train()
        learned = result.get("learners", {}).get("__all_modules__", {})
        steps = float(
            learned.get("num_env_steps_trained_lifetime", result.get("num_env_steps_sampled_lifetime", steps))
        )
        tell(steps)


def _channels() -> Any:
    import gymnasium
    import numpy as np

    class Last(gymnasium.ObservationWrapper):
        """Frames behind the picture, as its convolutions want them, from 0 to 1."""

        def __init__(self, env: Any) -> None:
            super().__init__(env)
            self.observation_space = gymnasium.spaces.Box(0, 1, (84, 84, 4), np.float32)

        def observation(self, observation: Any) -> Any:
            return np.moveaxis(np.asarray(observation), 0, -1).astype(np.float32) / 255

    return Last


Channels = _channels()

if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
