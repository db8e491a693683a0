"""PufferLib's PuffeRL: environments in this process, one forward for all, its C++ advantage kernel."""

from __future__ import annotations

import sys
import tempfile
from collections import deque
from typing import Any

import games
import numpy as np
from nets import ActorCritic, one_thread
from tell import tell
from torch import Tensor, nn

CONFIG = {
    "name": "bench", "project": "bench", "seed": 0, "torch_deterministic": False, "cpu_offload": False,
    "device": "cpu", "optimizer": "adam", "anneal_lr": False, "precision": "float32", "total_timesteps": 10**12,
    "learning_rate": 2e-3, "gamma": 0.98, "gae_lambda": 0.9, "update_epochs": 1, "clip_coef": 0.5, "vf_coef": 0.5,
    "vf_clip_coef": 10.0, "max_grad_norm": 0.5, "ent_coef": 0.0, "adam_beta1": 0.9, "adam_beta2": 0.999,
    "adam_eps": 1e-8, "checkpoint_interval": 10**9, "batch_size": "auto", "max_minibatch_size": 32768,
    "compile": False, "compile_mode": "default", "compile_fullgraph": False, "vtrace_rho_clip": 1.0,
    "vtrace_c_clip": 1.0, "prio_alpha": 0.0, "prio_beta0": 1.0, "use_rnn": False,
}  # fmt: skip
TASKS: dict[str, dict[str, int]] = {
    "pong": {"envs": 8, "bptt_horizon": 32, "minibatch_size": 256},
    "cartpole": {"envs": 64, "bptt_horizon": 32, "minibatch_size": 1024},
    "solve": {"envs": 16, "bptt_horizon": 32, "minibatch_size": 256},
    "pong_ppo": {"envs": 8, "bptt_horizon": 128, "minibatch_size": 256, "update_epochs": 4},
    "cartpole_ppo": {"envs": 32, "bptt_horizon": 32, "minibatch_size": 256, "update_epochs": 4},
    "native": {"envs": 4096, "bptt_horizon": 32, "minibatch_size": 32768},
}


class Policy(nn.Module):
    """The network of `nets` behind the interface that PufferLib calls."""

    hidden_size = 64

    def __init__(self, pixels: bool, actions: int) -> None:
        super().__init__()
        self.net = ActorCritic(pixels, actions)

    def forward(self, obs: Tensor, state: Any = None) -> tuple[Tensor, Tensor]:
        logits, value = self.net(obs)
        return logits, value

    forward_eval = forward


def make(task: str, count: int) -> Any:
    import pufferlib.emulation
    import pufferlib.vector

    if task == "native":
        from pufferlib.ocean.cartpole.cartpole import Cartpole

        return pufferlib.vector.make(Cartpole, env_kwargs={"num_envs": count}, backend=pufferlib.vector.PufferEnv)

    def one(**kwargs: Any) -> Any:
        env: Any = games.pong() if task.startswith("pong") else games.cartpole()
        if task == "solve":  # other tasks need no returns, and adding them up costs a third of a pole's step
            env = pufferlib.EpisodeStats(env)
        return pufferlib.emulation.GymnasiumPufferEnv(env, buf=kwargs.get("buf"), seed=kwargs.get("seed", 0))

    return pufferlib.vector.make(one, num_envs=count, backend=pufferlib.vector.Serial)


def main(task: str) -> int:
    if task not in TASKS:
        return 2
    one_thread()
    chosen = dict(TASKS[task])
    env = make(task, chosen.pop("envs"))
    from pufferlib import pufferl

    for silent in ("print_dashboard", "save_checkpoint"):
        setattr(pufferl.PuffeRL, silent, lambda self, *words, **keywords: None)
    policy = Policy(task.startswith("pong"), int(env.single_action_space.n))
    config = CONFIG | chosen | {"data_dir": tempfile.mkdtemp(), "env": task}
    trainer = pufferl.PuffeRL(config, env, policy)
    recent: deque[float] = deque(maxlen=100)
    while True:
        stats = trainer.evaluate()
        for returned in stats.pop("episode_return", []):
            recent.extend(np.ravel(returned).tolist())
        trainer.train()
        tell(trainer.global_step, sum(recent) / 100 if len(recent) == 100 and task == "solve" else None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
