"""Lock-step: equal seeds give equal bits, whichever process is late."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlctl.spec.algorithms import ActorCritic, Appo, Ppo
from rlctl.spec.schema import Network
from rlctl_agents.acting.rollout import LockStepBroken
from rlctl_agents.experience.batching import LockStep
from rlctl_agents.experience.on_policy import OnPolicySource
from rlctl_agents.experience.staging import Staging
from rlctl_agents.models.weights import digest
from rlctl_agents.training.trainer import Trainer
from rlctl_agents.types.control import Match
from rlctl_agents.types.experience import ModelRef
from tests.support.chain import (
    Store,
    made,
    make_env,
    make_rollout,
    opened_wire,
    private_folder,
    receiver_at,
    schema_of,
    sender_to,
    settings,
    weights_of,
)
from tests.support.fakes import RUN, Manager, Pool, wait_until

ACTORS, ENVS, UPDATES = 3, 2, 7
CONFIG = settings(lr=0.05)
PPO = Ppo(unroll_length=5, batch_size=30, minibatch_size=10, epochs=2, lr=0.05)
APPO = Appo(unroll_length=5, batch_size=30, minibatch_size=10, reuse=2, target_every_updates=3, lr=0.05)
VALUE = settings(batch_size=30, value_batches=2, value_minibatch_size=20, buffer_batches=2, lr=0.05)
MLP, LSTM = Network(hidden=[8]), Network(hidden=[8], core="lstm", width=8)
GRU = Network.model_validate({"hidden": [8], "core": "gru", "width": 8, "gaussian": {"squash": True}})


class Late:
    """Delays every call of something by a few milliseconds, at random."""

    def __init__(self, inner: Any, chance: random.Random, methods: tuple[str, ...], at_most_s: float) -> None:
        self._inner = inner
        for name in methods:
            setattr(self, name, self._late(getattr(inner, name), chance, at_most_s))

    def _late(self, call: Any, chance: random.Random, at_most_s: float) -> Any:
        def later(*arguments: Any, **named: Any) -> Any:
            time.sleep(chance.random() * at_most_s)
            return call(*arguments, **named)

        return later

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def act(
    folder: Path, store: Any, index: int, name: str, network: Network, late: int, stop: threading.Event,
    config: ActorCritic,
) -> None:  # fmt: skip
    chance = random.Random(late * 100 + index)
    env = make_env(name, ENVS)
    slow = Late(env, chance, ("step",), 0.001 * (1 + 2 * (index == late % ACTORS)))
    with opened_wire() as wire:
        sender = sender_to(wire, folder, schema_of(config, network, env.spaces), f"actor{index}")
        rollout = make_rollout(
            slow, config, network, store, sender, index=index, lock_step=True,
            keep_going=lambda: not stop.is_set(), sleep=stop.wait,
        )  # fmt: skip
        while not stop.is_set():
            rollout.step()


def run(name: str, network: Network, late: int, config: ActorCritic = CONFIG) -> tuple[list[str], list[np.ndarray]]:
    """Digest of the weights after every update, and the versions behind the rows of every batch."""
    chance = random.Random(late)
    env = make_env(name, ENVS)
    schema, streams = schema_of(config, network, env.spaces), ACTORS * ENVS * env.spaces.seats
    learning = Trainer(
        made(config, network, env.spaces, seed=9),
        policy="main",
        lineage=1,
        device=torch.device("cpu"),
        lock_step=True,
    )
    store, stop = Store(), threading.Event()
    store.put(learning.ref, learning.weights())
    source = Late(store, chance, ("newer", "exact"), 0.002)
    with private_folder() as folder, opened_wire() as wire:
        receiver = receiver_at(
            wire, folder, schema, budget_rows=(1 + config.lock_step_lag) * streams * config.unroll_length
        )
        intake = OnPolicySource(
            receiver, LockStep(schema, streams), Staging(torch.device("cpu")), schema,
            streams=streams, weights=lambda: learning.ref, limits=lambda rows: ((1 + config.lock_step_lag) * rows, 0),
        )  # fmt: skip
        actors = [
            threading.Thread(target=act, args=(folder, source, index, name, network, late, stop, config))
            for index in range(ACTORS)
        ]
        try:
            intake.start()
            for actor in actors:
                time.sleep(chance.random() * 0.02)
                actor.start()
            digests: list[str] = []
            versions: list[np.ndarray] = []
            while len(digests) < UPDATES:
                batch = intake.take(60.0)
                assert batch is not None, f"stands still after {len(digests)} updates"
                time.sleep(chance.random() * 0.01)
                versions.append(batch.version.numpy().copy())
                torch.manual_seed(len(digests))  # actors of this process made their networks in no fixed order
                learning.update(batch)
                intake.give_back(batch)
                data = learning.weights()
                store.put(learning.ref, data)
                digests.append(digest(data))
        finally:
            stop.set()
            for actor in actors:
                actor.join(60.0)
            intake.close()
    return digests, versions


@pytest.mark.parametrize(
    ("name", "network", "config"),
    [
        ("Mixed", MLP, VALUE),
        ("Duel", LSTM, CONFIG),
        ("Mixed", GRU, CONFIG),
        ("Mixed", MLP, APPO),
        ("Mixed", LSTM, APPO),
    ],
)
def test_equal_seeds_give_bit_equal_weights_whoever_is_late(name: str, network: Network, config: ActorCritic) -> None:
    first, versions = run(name, network, 0, config)
    second, _ = run(name, network, 1, config)
    assert first == second
    assert len(set(first)) == UPDATES, "every update changed the weights"
    for number, batch in enumerate(versions):
        assert (batch == max(0, number - 1)).all(), "segment k is chosen with version max(0, k - 1)"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "network"), [("Mixed", MLP), ("Duel", LSTM), ("Mixed", GRU)])
def test_ppo_in_lock_step_learns_from_its_newest_version_alone_and_gives_equal_bits(
    name: str, network: Network
) -> None:
    first, versions = run(name, network, 0, PPO)
    second, _ = run(name, network, 1, PPO)
    assert first == second
    assert len(set(first)) == UPDATES
    for number, batch in enumerate(versions):
        assert (batch == number).all(), "segment k is chosen with version k"


def test_lock_step_refuses_seats_that_act_in_turn() -> None:
    store = Store()
    env = make_env("Turns", 2)
    store.put(ModelRef("main", 1, 0), weights_of(CONFIG, MLP, env.spaces, seed=1))
    rollout = make_rollout(env, CONFIG, MLP, store, sender=None, lock_step=True)
    with pytest.raises(LockStepBroken, match="sync: true needs"):
        rollout.step()


SPEC = {
    "run": "sync",
    "sync": True,
    "seed": 5,
    "env": {"id": "CartPole-v1"},
    "algorithm": {"name": "impala", "unroll_length": 5, "batch_size": 40},
    "model": {"hidden": [16]},
    "roles": {"actor": {"envs": 4, "replicas": 2}},
}
VERSIONS = 40


def run_processes(stops: int, spec: dict[str, Any] = SPEC, versions: int = VERSIONS) -> list[str]:
    """Checksums of the first versions of a learner and two actors, each frozen for a while now and then."""
    chance = random.Random(stops)
    with private_folder() as folder:
        for name in ("checkpoints", "run"):
            (folder / name).mkdir()
        with Manager(folder) as manager, Pool(folder) as pool:
            manager.index = None
            manager.matches["actor"] = Match(1, {0: ModelRef("main", -1, -1)}, (0,), 0)
            processes = [start(folder, manager, role, index, spec) for role, index in ROLES]
            try:
                for number in range(versions):
                    wait_until(lambda: len(pool.puts) > number, f"version {number}", timeout_s=60)  # noqa: B023
                    frozen = chance.choice(processes)
                    frozen.send_signal(signal.SIGSTOP)
                    time.sleep(chance.random() * 0.05)
                    frozen.send_signal(signal.SIGCONT)
            finally:
                for process in processes:
                    process.terminate()
                codes = [process.wait(60) for process in processes]
            assert codes == [0, 0, 0]
            return [put.sha256 for put in pool.puts[:versions]]


ROLES = [("learner", 0), ("actor", 0), ("actor", 1)]


def start(folder: Path, manager: Manager, role: str, index: int, spec: dict[str, Any]) -> subprocess.Popen[bytes]:
    run_file = folder / f"{role}.json"
    header = {"rlctl": "0.2.0", "format": 1, "run": "sync", "uid": RUN, "role": role}
    run_file.write_text(json.dumps({**header, "spec": spec}))
    repository = Path(__file__).parents[2]
    path = os.pathsep.join([str(repository / "agents"), str(repository)])
    return subprocess.Popen(
        [
            sys.executable, "-m", "rlctl_agents", role, "--name", f"{role}-{index}", "--run-file", str(run_file),
            "--manager", manager.address, "--probe", f"unix:{folder}/{role}-{index}.probe", "--volume", str(folder),
        ],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.mark.processes
def test_processes_in_lock_step_make_bit_equal_weights_though_they_are_frozen_at_random() -> None:
    first, second = run_processes(stops=1), run_processes(stops=2)
    assert len(set(first)) == VERSIONS
    assert first == second
