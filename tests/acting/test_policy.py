"""Conformance of policies: what acts for slots, whatever it is, and what a network's is told."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from rlctl.spec.schema import Network
from rlctl_agents.acting.policy import Chosen, Policy, Table
from rlctl_agents.acting.policy_player import NetworkPolicy, as_tensor
from rlctl_agents.acting.rollout import Rollout, SeatedPolicy
from rlctl_agents.algorithms.base import Act, ActInputs
from rlctl_agents.algorithms.impala import Impala
from rlctl_agents.envs.base import Env
from rlctl_agents.experience.segment_writer import SegmentWriter
from rlctl_agents.models.weights import digest, pack
from rlctl_agents.runtime.metrics import Metrics
from rlctl_agents.types.experience import Decisions, ModelRef
from rlctl_agents.types.spaces import leaf_array, leaves
from rlctl_agents.weights.client import Follower, Model
from tests.support.chain import Store, make_env, schema_of, settings

MLP = Network(hidden=[8])


class Bot(Policy):
    """Rule-based: always the same choice. Remembers which of its slots it has decided for."""

    def __init__(self, choice: int) -> None:
        self.choice = choice
        self.seen: list[list[int]] = []

    def act(self, decisions: Decisions) -> Chosen:
        self.seen.append(decisions.slot.tolist())
        return Chosen({"action": np.full(decisions.slot.size, self.choice)}, {})


class Curious(Impala):
    """Looks at its last action and reward, and at how far the learner is."""

    needs_last: ClassVar[frozenset[str]] = frozenset({"action", "reward"})
    told: list[ActInputs]

    def act(self, inputs: ActInputs) -> Act:
        self.told = [*getattr(self, "told", []), inputs]
        return super().act(inputs)


def network(env: Env, kind: type[Impala] = Impala, slots: int = 0) -> NetworkPolicy:
    streams = np.arange(slots or env.envs * env.spaces.seats)
    return NetworkPolicy(kind(settings(), MLP, env.spaces, seed=1), streams, seed=1, rows=8, spaces=env.spaces)


def conforms(policy: Policy, env: Env) -> None:
    """Everything that rollouts, evaluations and tables ask of a policy that has all slots of an environment."""
    decisions = env.reset(list(range(env.envs)))
    for step in range(30):
        state = policy.state(decisions.slot)
        assert all(len(values) == decisions.slot.size for values in state.values())
        chosen = policy.act(decisions)
        for name, leaf in leaves(env.spaces.action, "action"):
            dtype, shape = leaf_array(leaf)
            values = chosen.action[name]
            assert values.shape == (decisions.slot.size, *shape), f"step {step}"
            assert values.dtype.kind == np.dtype(dtype).kind
        assert all(len(values) == decisions.slot.size for values in chosen.record.values())
        decisions = env.step(decisions.slot, dict(chosen.action))
    env.close()


@pytest.mark.parametrize("name", ["Clock", "Turns", "Duel", "Mixed", "Reach"])
def test_a_network_is_a_policy(name: str) -> None:
    env = make_env(name, 3)
    conforms(network(env), env)


@pytest.mark.parametrize("how", ["whole", "strided", "by columns", "mirrored", "packed", "read-only"])
def test_any_array_becomes_a_tensor_without_a_copy_where_torch_has_such(how: str) -> None:
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    packed = np.zeros(3, [("flag", "u1"), ("number", "f4")])
    given = {
        "whole": rows, "strided": rows[:, ::2], "by columns": rows.T, "mirrored": rows[:, ::-1],
        "packed": packed["number"], "read-only": rows.copy(),
    }[how]  # fmt: skip
    given.flags.writeable = how != "read-only"
    tensor = as_tensor(given)
    assert np.array_equal(tensor.numpy(), given)
    assert np.shares_memory(tensor.numpy(), given) is (how in ("whole", "strided", "by columns"))


@pytest.mark.parametrize("name", ["Turns", "Duel"])
def test_a_bot_is_a_policy(name: str) -> None:
    conforms(Bot(0), make_env(name, 3))


def test_every_slot_has_an_owner_of_its_own() -> None:
    """One process: in one environment both seats are the network's, in the others a bot has a seat, not the same."""
    env = make_env("Duel", 3)
    table = Table(env.spaces, np.array([0, 0, 0, 1, 2, 0]))
    assert [slots.tolist() for slots in table.slots] == [[0, 1, 2, 5], [3], [4]]
    store, player = Store(), network(env, slots=4)
    store.put(ModelRef("main", 1, 0), pack(player.algorithm.net.state_dict()))
    follower = Follower(player.load, "main", store)
    assert follower.wait_for_any(lambda: True, lambda seconds: None)
    blocks: list[Any] = []

    class Sender:
        least_version = 0

        def reserve(self, rows: int) -> bool:
            return True

        def offer(self, **block: Any) -> bool:
            blocks.append(block)
            return True

        def poll(self, timeout_s: float) -> None:
            pass

    bots = Bot(0), Bot(1)
    learns = SeatedPolicy(player, follower, table.slots[0])
    learns.writer, learns.sender = SegmentWriter(schema_of(settings(), MLP, env.spaces), 4), Sender()
    seated = [learns, *(SeatedPolicy(bot, None, slots) for bot, slots in zip(bots, table.slots[1:], strict=True))]
    rollout = Rollout(env, [1, 2, 3], table, seated, metrics=Metrics(), keep_going=lambda: True)
    for _ in range(20):
        rollout.step()
    assert {tuple(one) for bot in bots for one in bot.seen} == {(0,)}, "slots of a policy are numbered from 0"
    assert {stream for block in blocks for stream in block["stream"]} == {0, 1, 2, 5}, "its rows alone are learned from"
    env.close()


@pytest.mark.parametrize("owner", [[], [0, 2], [-1, 0], [1, 1]])
def test_owners_are_numbered_without_gaps(owner: list[int]) -> None:
    with pytest.raises(ValueError, match="without gaps"):
        Table(make_env("Clock", 2).spaces, np.array(owner, np.int64))


@pytest.mark.parametrize("name", ["Clock", "Turns"])
def test_last_action_and_reward_are_those_of_the_slots_own_last_decision_in_its_episode(name: str) -> None:
    env = make_env(name, 2)
    policy = network(env, Curious)
    last: dict[int, Any] = {}
    decisions = env.reset([1, 2])
    for _ in range(40):
        chosen = policy.act(decisions)
        told = policy.algorithm.told[-1]  # type: ignore[attr-defined]
        assert told.last_action is not None
        assert told.last_reward is not None
        for number, slot in enumerate(decisions.slot.tolist()):
            first = bool(decisions.first[number])
            expected = np.zeros_like(chosen.action["action"][number]) if first else last[slot]
            assert np.array_equal(told.last_action["action"][number].numpy(), expected)
            assert float(told.last_reward[number]) == (0.0 if first else float(decisions.reward[number]))
            assert int(told.stream[number]) == slot, "its slots are numbered as its streams"
            last[slot] = chosen.action["action"][number].copy()
        decisions = env.step(decisions.slot, dict(chosen.action))
    env.close()


def test_who_does_not_ask_for_last_actions_is_not_given_any() -> None:
    env = make_env("Clock", 2)

    class Blind(Curious):
        needs_last = frozenset()

    policy = network(env, Blind)
    policy.act(env.reset([1, 2]))
    told = policy.algorithm.told[-1]  # type: ignore[attr-defined]
    assert told.last_action is told.last_reward is None
    env.close()
    with pytest.raises(ValueError, match="give the spaces"):
        NetworkPolicy(Curious(settings(), MLP, env.spaces, seed=1), np.arange(2), seed=1, rows=8)


def test_progress_comes_with_the_weights() -> None:
    env = make_env("Clock", 2)
    policy = network(env, Curious)
    data = pack({name: torch.ones_like(value) for name, value in policy.algorithm.net.state_dict().items()}, 12_345)
    policy.load(Model(ModelRef("main", 1, 7), digest(data), data))
    policy.act(env.reset([1, 2]))
    assert policy.algorithm.told[-1].progress == 12_345  # type: ignore[attr-defined]
    plain = pack(policy.algorithm.net.state_dict())
    policy.load(Model(ModelRef("main", 1, 8), digest(plain), plain))
    assert policy.progress == 0
    env.close()
