"""Sample Factory APPO, asynchronous, two rollout workers."""

from __future__ import annotations

import sys
import tempfile
from collections import deque
from typing import Any

import games
from tell import tell

COMMON = {
    "experiment": "bench", "device": "cpu", "async_rl": True, "serial_mode": False, "batched_sampling": False,
    "use_rnn": False, "recurrence": 1, "num_epochs": 1, "num_batches_per_epoch": 1, "rollout": 32, "batch_size": 512,
    "worker_num_splits": 2, "normalize_input": False, "normalize_returns": False, "save_every_sec": 10**6,
    "train_for_env_steps": 10**10, "summaries_use_frameskip": False, "env_frameskip": 1, "heartbeat_interval": 600,
    "decorrelate_envs_on_one_worker": False, "decorrelate_experience_max_seconds": 0, "num_workers": 2,
    "with_wandb": False,
}  # fmt: skip
TASKS: dict[str, dict[str, Any]] = {
    "pong": {"num_envs_per_worker": 8, "encoder_conv_architecture": "convnet_atari", "encoder_conv_mlp_layers": [512],
             "nonlinearity": "relu", "obs_scale": 255.0},
    "cartpole": {"num_envs_per_worker": 20, "encoder_mlp_layers": [64, 64], "nonlinearity": "tanh",
                 "actor_critic_share_weights": False},
}  # fmt: skip
for name, rollout, envs in (("pong", 128, 4), ("cartpole", 32, 16)):
    TASKS[f"{name}_ppo"] = TASKS[name] | {
        "num_envs_per_worker": envs, "rollout": rollout, "batch_size": 256, "num_batches_per_epoch": 4, "num_epochs": 4,
    }  # fmt: skip
# settings of its own CartPole example
TASKS["solve"] = TASKS["cartpole"] | {"reward_scale": 0.1, "num_epochs": 2, "batch_size": 512}


def make_env(name: str, cfg: Any, env_config: Any, render_mode: Any = None) -> Any:
    return games.pong() if name.startswith("pong") else games.cartpole()


def main(task: str) -> int:
    if task not in TASKS:
        return 2
    from sample_factory.algo.runners.runner import AlgoObserver
    from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
    from sample_factory.envs.env_utils import register_env
    from sample_factory.train import make_runner

    class Teller(AlgoObserver):
        def on_training_step(self, runner: Any, training_iteration_since_resume: int) -> None:
            returns = runner.policy_avg_stats.get("reward", [[]])[0]
            recent = list(returns)[-100:] if isinstance(returns, deque) else []
            tell(sum(runner.env_steps.values()), sum(recent) / 100 if len(recent) == 100 and task == "solve" else None)

    register_env(task, make_env)
    words = [f"--env={task}", f"--train_dir={tempfile.mkdtemp()}"]
    for name, value in (COMMON | TASKS[task]).items():
        words += [f"--{name}", *map(str, value)] if isinstance(value, list) else [f"--{name}={value}"]
    parser, _ = parse_sf_args(words)
    _, runner = make_runner(parse_full_cfg(parser, words))
    runner.register_observer(Teller())
    runner.init()
    runner.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
