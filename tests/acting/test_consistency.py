"""The learner reads what an actor did: actor -> wire -> batch -> loss, for every kind of environment."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch

from rlctl.spec.schema import Network
from rlctl_agents.algorithms.base import below
from rlctl_agents.algorithms.impala import Impala
from rlctl_agents.envs.base import Env
from rlctl_agents.experience.batching import ArrivalOrder, BatchMemory
from rlctl_agents.experience.validation import ValueCheck
from rlctl_agents.training.trainer import Trainer
from rlctl_agents.types.experience import ModelRef
from tests.support.batches import batch, memory
from tests.support.chain import (
    Store,
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

CPU = torch.device("cpu")
MLP = Network(hidden=[16])
LSTM, GRU = (Network.model_validate({"hidden": [16], "core": core, "width": 8}) for core in ("lstm", "gru"))
SQUASHED = Network.model_validate({"hidden": [16], "gaussian": {"squash": True, "std": "network"}})
KINDS = [
    ("Reach", {}, MLP),
    ("Reach", {}, LSTM),
    ("Reach", {}, SQUASHED),
    ("Memory", {"delay": 2}, LSTM),
    ("Memory", {"delay": 2}, GRU),
    ("Mixed", {"length": 3}, MLP),
    ("Mixed", {"length": 3}, LSTM),
    ("Mixed", {"length": 3}, GRU),
    ("Mixed", {"length": 3}, SQUASHED),
    ("Clock", {"length": 4}, LSTM),
    ("Turns", {}, MLP),
    ("Turns", {}, LSTM),
    ("Turns", {}, GRU),
    ("Duel", {"rounds": 3}, MLP),
    ("Duel", {"rounds": 3}, LSTM),
]
NAMES = [f"{name}-{network.core}{'-squashed' * network.gaussian.squash}" for name, _, network in KINDS]


def gather(env: Env, network: Network, batches: int, seats: Any = None) -> tuple[list[dict[str, np.ndarray]], Trainer]:
    """Batches as the learner gets them, all made with the weights that the learner has."""
    config = settings(batch_size=40)
    schema = schema_of(config, network, env.spaces)
    learning = Trainer(Impala(config, network, env.spaces, seed=9), policy="main", lineage=4, device=CPU)
    source = Store()
    source.put(learning.ref, weights_of(config, network, env.spaces, seed=9))
    with private_folder() as folder, opened_wire() as wire:
        receiver = receiver_at(wire, folder, schema, budget_rows=400)
        sender = sender_to(wire, folder, schema, "actor")
        assembler, columns = ArrivalOrder(schema, 0), memory(schema, 8)
        got = []

        def keep_going() -> bool:  # the receiving end works while the actor waits for credit
            for segment in receiver.poll(0.0):
                assembler.add(segment)
            assert assembler.fill(columns, learning.ref) == []
            if columns.used == 8:
                got.append(copied(columns))
                learning.columns = columns  # type: ignore[attr-defined]
                for segment, outcome, rows in columns.clear():
                    receiver.settle(segment, outcome, rows)
            return True

        rollout = make_rollout(env, config, network, source, sender, keep_going=keep_going, seats=seats)
        while len(got) < batches:
            rollout.step()
    env.close()
    return got, learning


@functools.cache
def gathered(case: int) -> tuple[list[dict[str, np.ndarray]], Trainer]:
    """Once per kind; a learner that takes them comes last."""
    name, kwargs, network = KINDS[case]
    return gather(make_env(name, 4, **kwargs), network, batches=3)


def copied(columns: BatchMemory) -> dict[str, np.ndarray]:
    return {name: values.copy() for name, values in columns.fields.items()} | {"version": columns.version.copy()}


def log_probs(learning: Trainer, fields: dict[str, Any]) -> torch.Tensor:
    """As the learner's loss computes them."""
    net: Any = learning._algorithm.net
    params, _ = net.unroll(below(fields, "obs"), fields["first"], below(fields, "core"))
    legal = fields["legal"][:-1] if "legal" in fields else None
    log_prob: torch.Tensor = net.distribution.score(params[:-1], below(fields, "action"), legal)[0]
    return log_prob


@pytest.mark.parametrize("case", range(len(KINDS)), ids=NAMES)
def test_the_learner_reproduces_every_log_prob_of_the_actors(case: int) -> None:
    batches, learning = gathered(case)
    ends = invalid = 0
    for fields in batches:
        tensors = {key: torch.from_numpy(values) for key, values in fields.items()}
        with torch.no_grad():
            again = log_probs(learning, tensors)
        valid = tensors["valid"]
        torch.testing.assert_close(again[valid], tensors["log_prob"][valid], atol=1e-5, rtol=0)
        assert torch.isfinite(again[valid]).all()
        ends += int((tensors["terminated"] | tensors["truncated"]).sum())
        invalid += int((~valid).sum())
    assert ends > 0, "no episode ended, nothing was tested across a reset"
    assert invalid > 0


@pytest.mark.parametrize("case", range(len(KINDS)), ids=NAMES)
def test_a_batch_of_every_kind_of_environment_can_be_learned_from(case: int) -> None:
    batches, learning = gathered(case)
    columns = learning.columns  # type: ignore[attr-defined]
    for key, values in columns.fields.items():
        values[...] = batches[0][key]
    updated = learning.update(batch(columns))
    assert updated.finite
    assert learning.ref == ModelRef("main", 4, 1)
    assert abs(updated.stats["rho"] - 1) < 1e-4, "the policies agree, so every importance weight is 1"


@pytest.mark.parametrize("case", range(len(KINDS)), ids=NAMES)
def test_no_value_of_an_actor_in_good_order_is_refused(case: int) -> None:
    batches, _ = gathered(case)
    name, kwargs, network = KINDS[case]
    env = make_env(name, 4, **kwargs)
    env.close()
    check = ValueCheck(env.spaces, schema_of(settings(), network, env.spaces))
    for fields in batches:
        arrays = {key: values for key, values in fields.items() if key != "version"}
        assert check(fields["version"], 0, arrays) == ""


def test_rows_of_one_stream_follow_each_other_over_blocks_and_episodes() -> None:
    batches, _ = gather(make_env("Clock", 4, length=4), MLP, batches=6)
    shown = np.concatenate([fields["obs"][:-1, ::4, 0] for fields in batches], axis=1)  # stream 0: columns 0 and 4
    np.testing.assert_array_equal(shown.T.reshape(-1)[:12], [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1])


def test_only_the_seats_that_learn_send_rows() -> None:
    batches, _ = gather(make_env("Duel", 8, rounds=3), MLP, batches=2, seats=[[0], [1]])
    for fields in batches:
        # what a seat sees first of all is its own last choice: one-hot, or nothing at the beginning
        mine = fields["obs"][1:, :, :3].argmax(-1)
        same_episode = ~fields["first"][1:]
        assert (mine == fields["action"])[same_episode & fields["valid"]].all()
