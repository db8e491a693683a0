"""The order of decisions is watched while an environment of our own protocol is in use, not only when it is tried."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rlctl_agents import envs
from rlctl_agents.envs import Env, EnvError
from rlctl_agents.envs.check import sample
from rlctl_agents.envs.order import Order
from rlctl_agents.types.experience import Decisions
from tests.envs.tiny import Duel, Turns

HERE = __name__
SEEDS = [11, 12]


def kept(decisions: Decisions, keep: NDArray[np.bool_]) -> Decisions:
    """Some of the rows."""
    return Decisions(
        slot=decisions.slot[keep],
        obs={name: leaf[keep] for name, leaf in decisions.obs.items()},
        reward=decisions.reward[keep],
        terminated=decisions.terminated[keep],
        truncated=decisions.truncated[keep],
        first=decisions.first[keep],
        legal=None if decisions.legal is None else decisions.legal[keep],
    )


def at_slot(decisions: Decisions, slot: int, **values: Any) -> Decisions:
    """The same with other values in one row."""
    changed = {name: getattr(decisions, name).copy() for name in values}
    for name, value in values.items():
        changed[name][decisions.slot == slot] = value
    return replace(decisions, **changed)


# of Duel: rounds 1 to 5, the last of them ends the episode; step 6 begins the next one
FAULTS: dict[str, tuple[int, Callable[[Decisions], Decisions], str]] = {
    "late first": (2, lambda d: at_slot(d, 3, first=True), "the decision of slot 3 is marked as first, but its "),
    "no first": (6, lambda d: at_slot(d, 2, first=False), "the decision of slot 2 is not marked as first, but begins"),
    "no first at reset": (0, lambda d: at_slot(d, 1, first=False), "the decision of slot 1 is not marked as first"),
    "early reward": (6, lambda d: at_slot(d, 1, reward=2.0), "the first decision of slot 1 has a reward or an end"),
    "end at reset": (0, lambda d: at_slot(d, 2, terminated=True), "the first decision of slot 2 has a reward or an"),
    "end of one": (5, lambda d: at_slot(d, 2, terminated=False), "the episode ended, but slot 2, which had played, "),
    "end untold": (5, lambda d: kept(d, d.slot != 3), "the episode ended, but slot 3, which had played, does not see "),
    "two ends": (6, lambda d: at_slot(d, 0, first=False, truncated=True), "slot 0 sees the end of an episode in "),
}


class Disorderly(Duel):
    """Breaks one rule at one step."""

    def __init__(self, envs: int, which: str) -> None:
        super().__init__(envs)
        self.at, self.bend, _ = FAULTS[which]
        self.steps = 0

    def reset(self, seeds: Any = None) -> Decisions:
        self.steps = 0
        return self.bent(super().reset(seeds))

    def step(self, slot: Any, action: Any) -> Decisions:
        self.steps += 1
        return self.bent(super().step(slot, action))

    def bent(self, decisions: Decisions) -> Decisions:
        return self.bend(decisions) if self.steps == self.at else decisions


def used(env: Env, steps: int) -> None:
    decisions = env.reset()
    for _ in range(steps):
        decisions = env.step(decisions.slot, {"action": np.zeros(4, np.int64)})


@pytest.mark.parametrize("which", FAULTS)
def test_a_broken_rule_is_told_with_slot_and_step_while_the_environment_is_in_use(which: str) -> None:
    at, _, words = FAULTS[which]
    env = envs.make(f"{HERE}:Disorderly", envs=2, seeds=SEEDS, kwargs={"which": which})
    with pytest.raises(EnvError) as caught:
        used(env, at)
    slot = int(words.partition("slot ")[2][0])
    assert str(caught.value).startswith(words)
    assert str(caught.value).endswith(f"({HERE}:Disorderly, seed {SEEDS[slot // 2]}, step {at})")


def test_a_reset_in_the_midst_of_an_episode_begins_the_order_anew() -> None:
    env = envs.make("tests.envs.tiny:Duel", envs=2, seeds=SEEDS)
    env.reset()
    env.step(np.arange(4), {"action": np.zeros(4, np.int64)})
    assert env.reset().first.all()


def test_a_seat_that_never_acted_may_begin_the_next_episode_only_after_the_end() -> None:
    """Seat 0 acts alone and ends the episode; seat 1 joins in the same answer, or in the next."""
    order = Order(envs=1, seats=2)
    assert order.fault(answer([0], first=[True])) is None
    found = order.fault(answer([0, 1], first=[False, True], terminated=[True, False]))
    assert found == ("slot 1 acts in an episode that has ended; it can begin the next one in the next answer", 0)

    order.begin()
    assert order.fault(answer([0], first=[True])) is None
    assert order.fault(answer([0], first=[False], terminated=[True])) is None
    assert order.fault(answer([1], first=[True])) is None


def answer(slot: list[int], *, first: list[bool], terminated: list[bool] | None = None) -> Decisions:
    no = np.zeros(len(slot), np.bool_)
    return Decisions(
        slot=np.array(slot),
        obs={},
        reward=np.zeros(len(slot), np.float32),
        terminated=no if terminated is None else np.array(terminated),
        truncated=no,
        first=np.array(first),
    )


def breaks_a_rule(decisions: Decisions, playing: set[int], seats: int) -> bool:
    """Check the rules as the protocol states them, slot by slot; keeps account of the seats that play."""
    ended = set(decisions.slot[decisions.terminated | decisions.truncated].tolist())
    over = {slot // seats for slot in ended}
    for slot, first, reward in zip(
        decisions.slot.tolist(), decisions.first.tolist(), decisions.reward.tolist(), strict=True
    ):
        if first == (slot in playing) or (first and (reward != 0 or slot in ended)):
            return True
        if slot // seats in over and slot not in ended:
            return True
    if any(slot // seats in over and slot not in ended for slot in playing):
        return True
    playing |= set(decisions.slot.tolist())
    playing -= ended
    return False


@pytest.mark.parametrize("kind", [Turns, Duel])
def test_the_order_agrees_with_its_rules_written_out_whatever_is_broken(kind: type[Turns] | type[Duel]) -> None:
    rng = np.random.default_rng(4)
    broken = 0
    for _ in range(300):
        env, order, playing = kind(envs=3), Order(3, 2), set[int]()
        decisions = env.reset([1, 2, 3])
        bent_at = int(rng.integers(12))
        for step in range(12):
            shown = decisions
            if step == bent_at:
                slot = int(rng.choice(decisions.slot))
                row = decisions.slot == slot
                shown = [
                    kept(decisions, ~row),
                    at_slot(decisions, slot, first=not decisions.first[row][0]),
                    at_slot(decisions, slot, terminated=not decisions.terminated[row][0]),
                    at_slot(decisions, slot, truncated=True),
                    at_slot(decisions, slot, reward=5.0),
                ][rng.integers(5)]
            expected = breaks_a_rule(shown, playing, 2)
            assert (order.fault(shown) is not None) == expected
            if expected:
                broken += 1
                break
            chosen = sample(env.spaces.action, rng, len(decisions.slot), decisions.legal)
            decisions = env.step(decisions.slot, chosen)
    assert 50 < broken < 300


def test_watching_the_order_allocates_nothing_that_grows_with_the_slots() -> None:
    slots = 100_000
    order = Order(envs=slots // 2, seats=2)
    begins, goes_on = (answer(list(range(slots)), first=[first] * slots) for first in (True, False))
    ends = replace(goes_on, terminated=np.ones(slots, np.bool_))
    assert order.fault(begins) is None
    tracemalloc.start()
    try:
        for decisions in (goes_on, ends, begins):
            assert order.fault(decisions) is None
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < slots / 2
