"""Trainers to be measured, with their tasks and settings."""

from __future__ import annotations

from typing import Any, NamedTuple


class Peer(NamedTuple):
    """Another trainer."""

    name: str  # of its requirements file
    label: str
    script: str
    tasks: tuple[str, ...]
    quick: bool  # installs in a minute or two: part of the short form
    settings: str
    """In the tasks of `IMPALA`."""
    in_algorithms: str = ""
    """In those of `ALGORITHMS`; "": the same."""


PEERS = (
    Peer("pufferlib", "PufferLib 3.0.0", "puffer",
         ("pong", "cartpole", "native", "solve", "pong_ppo", "cartpole_ppo"), True,
         "one process; 8, 64, 4,096 or 16 environments, 32 steps, minibatch 256, 1,024, 32,768 or 256, one epoch",
         "one process; 8 environments x 128 steps or 32 x 32, minibatches of 256, four epochs"),
    Peer("sample_factory", "Sample Factory 2.1.1", "appo",
         ("pong", "cartpole", "solve", "pong_ppo", "cartpole_ppo"), True,
         "APPO, asynchronous, 2 workers x 8 or 20, 32 steps, batch 512, one epoch; solve with two, as its example",
         "APPO, asynchronous, 2 workers x 4 or 16 environments, 128 or 32 steps, 4 batches of 256, four epochs"),
    Peer("sb3", "SB3 2.9.2", "sb3",
         ("pong", "cartpole", "solve", "pong_ppo", "cartpole_ppo", "halfcheetah_ppo", "pong_dqn", "halfcheetah_sac"),
         True,
         "PPO, one process; 8 or 32 environments, 128 or 64 steps, minibatch 256 or 512, one epoch; solve as RL Zoo",
         "one process; PPO 8 environments x 128 steps or 32 x 32, minibatches of 256, four epochs; HalfCheetah 8 x "
         "256, minibatches of 64, ten epochs; DQN and SAC with one environment"),
    Peer("cleanrl", "CleanRL fe8d8a0", "cleanrl", ("pong_ppo", "cartpole_ppo", "pong_dqn", "halfcheetah_sac"), True,
         "one process, as in its files; wrappers of environments as all have them"),
    Peer("monobeast", "MonoBeast 0af07b0", "monobeast", ("pong",), False,
         "IMPALA, 2 actors, 20 steps, batch 16, one learner thread"),
    Peer("torchrl", "torchrl 0.14.1", "torchrl_impala", ("pong", "cartpole"), False,
         "V-trace and A2C loss, 2 asynchronous collectors x 4 or 16, 32 steps"),
    Peer("rllib", "RLlib 2.60.0 IMPALA", "rllib", ("pong", "cartpole"), False,
         "new API stack, 1 runner x 8 or 16, 32 steps, batch 512, local learner"),
)  # fmt: skip

LEARNER_ONLY = {"evaluator": {"replicas": 0}}
"""Throughput is measured without evaluation, which no peer does either."""

AS_STORED = {
    "lambda": 1,
    "optimizer": "rmsprop",
    "lr": 6e-4,
    "max_grad_norm": 40,
    "max_lag_versions": 8,
    "entropy_coef": 0.01,
    "value_batches": 0,
}
"""Settings of the stored figures, where the defaults have others."""
NO_MOMENTS = {"normalize": {"observations": False, "returns": False}}
"""No running moments, as no peer has them in these tasks."""

OURS: dict[str, dict[str, Any]] = {
    "pong": {
        "env": {"id": "ALE/Pong-v5", "preset": "atari"},
        "algorithm": {"name": "impala", "unroll_length": 20, "batch_size": 640, "reward_clip": 1,
                      "publish_every_updates": 2, **AS_STORED},
        "model": {"torso": "nature_cnn", "width": 512},
        "roles": {"actor": {"replicas": 1, "envs": 32}, **LEARNER_ONLY},
    },
    "cartpole": {
        "env": {"id": "CartPole-v1"},
        "algorithm": {"name": "impala", "unroll_length": 32, "batch_size": 8192, **AS_STORED},
        "model": {"hidden": [64, 64], "activation": "tanh", **NO_MOMENTS},
        "roles": {"actor": {"replicas": 1, "envs": 256}, **LEARNER_ONLY},
    },
    "native": {
        "env": {"id": "benchmarks.envs.cartpole:Carts"},
        "algorithm": {"name": "impala", "unroll_length": 32, "batch_size": 131072, **AS_STORED},
        "model": {"hidden": [64, 64], "activation": "tanh", **NO_MOMENTS},
        "roles": {"actor": {"replicas": 1, "envs": 4096}, **LEARNER_ONLY},
    },
}  # fmt: skip
"""Every row is learned from once. The evaluator is off, all other roles count."""

CLIPPED: dict[str, dict[str, Any]] = {
    "pong_ppo": {
        "env": {"id": "ALE/Pong-v5", "preset": "atari"},
        "algorithm": {"name": "ppo", "unroll_length": 128, "batch_size": 1024, "minibatch_size": 256, "epochs": 4,
                      "target_kl": None, "reward_clip": 1},
        "model": {"torso": "nature_cnn", "width": 512, "precision": "fp32"},
        "roles": {"actor": {"replicas": 1, "envs": 8}, **LEARNER_ONLY},
    },
    "cartpole_ppo": {
        "env": {"id": "CartPole-v1"},
        "algorithm": {"name": "ppo", "unroll_length": 32, "batch_size": 1024, "minibatch_size": 256, "epochs": 4,
                      "target_kl": None},
        "model": {"hidden": [64, 64], "activation": "tanh", **NO_MOMENTS},
        "roles": {"actor": {"replicas": 1, "envs": 32}, **LEARNER_ONLY},
    },
    "halfcheetah_ppo": {
        "env": {"id": "HalfCheetah-v5"},
        "algorithm": {"name": "ppo", "unroll_length": 256, "batch_size": 2048, "minibatch_size": 64, "epochs": 10,
                      "target_kl": None},
        "model": {"hidden": [64, 64], "activation": "tanh"},
        "roles": {"actor": {"replicas": 1, "envs": 8}, **LEARNER_ONLY},
    },
}  # fmt: skip
"""Every row is learned from `epochs` times: no epoch ends early, by `target_kl`. Peers have as many environments,
steps, minibatches and epochs."""

REPLAYED: dict[str, dict[str, Any]] = {
    "pong_dqn": {
        "env": {"id": "ALE/Pong-v5", "preset": "atari"},
        "algorithm": {
            "name": "dqn",
            "batch_size": 256,
            "minibatch_size": 32,
            "reward_clip": 1,
            "n_step": 1,
            "double": False,
        },
        "model": {"torso": "nature_cnn", "width": 512, "precision": "fp32"},
        "replay": {"capacity": 100_000, "learning_starts": 1_000, "samples_per_insert": 8},
        "roles": {"actor": {"replicas": 1, "envs": 8}, **LEARNER_ONLY},
    },
    "halfcheetah_sac": {
        "env": {"id": "HalfCheetah-v5"},
        "algorithm": {"name": "sac", "batch_size": 2048, "minibatch_size": 256},
        "model": {"hidden": [256, 256], "activation": "relu"},
        "replay": {"capacity": 1_000_000, "learning_starts": 1_000, "samples_per_insert": 256},
        "roles": {"actor": {"replicas": 1, "envs": 1}, **LEARNER_ONLY},
    },
}
"""Tasks with a replay, of rlctl and peers with equal minibatches and samples per step: DQN 32 for 4 steps, SAC 256 for
one."""

_POLES = {"env": {"id": "benchmarks.envs.plain:cartpole"}}


_AS_DEFAULT = {"model": {"precision": "auto"}}
"""bf16 where the processor has it."""


def _appo(task: str) -> dict[str, Any]:
    """The same batches, minibatches and passes with APPO, on the newest batch alone as PPO does."""
    ppo = {key: value for key, value in CLIPPED[task]["algorithm"].items() if key not in ("epochs", "target_kl")}
    alike = {"buffer_batches": 1, "target_every_updates": 1}
    return ppo | {"name": "appo", "reuse": CLIPPED[task]["algorithm"]["epochs"], **alike}


ALSO: dict[str, dict[str, dict[str, dict[str, Any]]]] = {
    "pong": {"rlctl, fp32": {"model": {"precision": "fp32"}}},
    "cartpole": {"rlctl, poles one by one": _POLES},
    "pong_ppo": {"rlctl, APPO": {"algorithm": _appo("pong_ppo")}, "rlctl, precision as by default": _AS_DEFAULT},
    "pong_dqn": {"rlctl, precision as by default": _AS_DEFAULT},
    "cartpole_ppo": {
        "rlctl, poles one by one": _POLES,
        "rlctl, APPO": {"algorithm": _appo("cartpole_ppo")},
        "rlctl, APPO, poles one by one": {"algorithm": _appo("cartpole_ppo"), **_POLES},
    },
}
"""Task -> rlctl without an advantage that no peer has here, or with APPO -> parts of the spec that differ."""
OUR_SETTINGS = (
    "rlctl: 1 actor of 32, 256 or 4,096 environments, 20 or 32 steps, batches of 640, 8,192 or 131,072 rows; in Pong "
    "bf16 where the processor has it, ALE's own vector and weights published every second update; in CartPole "
    "Gymnasium's own vector; peers compute in fp32 and step environments one by one"
)
OUR_SETTINGS_OF_ALGORITHMS = (
    "rlctl: 1 actor, fp32. PPO and APPO: Pong 8 environments x 128 steps, 4 epochs of minibatches of 256; CartPole 32 "
    "x 32, the same, observations and returns as they are; HalfCheetah 8 x 256, 10 epochs of minibatches of 64, where "
    "rlctl normalises observations and returns and SB3 does not. DQN and SAC: 8 environments or one, replay of 100,000 "
    "or 1,000,000 rows, of which learning begins at 1,000; rlctl clips gradients in DQN as SB3 does and normalises "
    "HalfCheetah's observations"
)


def changed(spec: dict[str, Any], parts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The spec with those fields in its parts; an algorithm of another name takes the place of the first.

    Example:
        `changed({"model": {"width": 512}}, {"model": {"precision": "fp32"}})` is
        {"model": {"width": 512, "precision": "fp32"}}.
    """
    found = {name: dict(part) for name, part in spec.items()}
    for name, part in parts.items():
        before = found.get(name, {})
        found[name] = part if name == "algorithm" and part.get("name") != before.get("name") else before | part
    return found


TASKS = {
    "pong": "Pong, 84x84x4, Nature CNN, skip 4",
    "cartpole": "CartPole-v1 of gymnasium, MLP 2x64",
    "native": "native vector CartPole, 4,096 slots, MLP 2x64",
    "solve": "CartPole-v1 until a mean of 475 over 100 episodes",
    "pong_ppo": "PPO and APPO: Pong, 84x84x4, Nature CNN, skip 4, four epochs",
    "cartpole_ppo": "PPO and APPO: CartPole-v1 of gymnasium, MLP 2x64, four epochs",
    "halfcheetah_ppo": "PPO: HalfCheetah-v5, MLP 2x64, ten epochs",
    "pong_dqn": "DQN: Pong, 84x84x4, Nature CNN, skip 4, 32 rows for every 4 steps",
    "halfcheetah_sac": "SAC: HalfCheetah-v5, MLP 2x256, 256 rows for every step",
}
GOALS = {
    "pong": "at least 1.6x the best peer; 870 per CPU second with bf16 and 700 without on a machine with AMX",
    "cartpole": "at least 1.1x PufferLib and 7x Sample Factory",
    "native": "at least 0.5x PufferLib, stretch 1x",
    "solve": "at most 15 s of training",
    "pong_ppo": "at least 1.3x the best peer",
    "cartpole_ppo": "at least 1.3x the best peer one by one, 3x with Gymnasium's vector",
    "halfcheetah_ppo": "at least 1.2x SB3",
    "pong_dqn": "at least 1.3x the best peer",
    "halfcheetah_sac": "at least 1.1x the best peer",
}
SCORE = 475.0
