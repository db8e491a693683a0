"""Figures that an actor counts of its own episodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlctl_agents.acting.episode_figures import COUNTED_SLOTS, EpisodeFigures
from rlctl_agents.types.figures import MAX_SHARES, figure_names, shares
from rlctl_agents.types.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple


def of(space: Space, slots: int) -> EpisodeFigures:
    return EpisodeFigures(space, np.ones(slots, np.bool_))


def means(figures: EpisodeFigures, space: Space) -> dict[str, float]:
    return dict(zip(figure_names(space), [one.mean for one in figures.moments()], strict=True))


def play(figures: EpisodeFigures, slots: list[int], actions: Any, ended: dict[int, float] | None = None) -> None:
    """A step: episodes end, then these slots act, also those with an episode that ended, as environments have it."""
    over = np.array(sorted(ended or {}), np.int64)
    if over.size:
        figures.ended(over, np.array([(ended or {})[int(slot)] for slot in over], np.float64))
    leaves = actions if isinstance(actions, dict) else {"action": np.array(actions)}
    figures.acted(np.array(slots, np.int64), leaves)


def test_returns_lengths_and_shares_of_whole_episodes_are_counted() -> None:
    figures = of(Discrete(2), 2)
    play(figures, [0, 1], [0, 0])
    play(figures, [0, 1], [1, 1], {0: 5.0, 1: 5.0})  # from here on the actor is in its stride
    for actions in ([0, 1], [0, 1], [1, 1], [0, 1]):
        play(figures, [0, 1], actions)
    play(figures, [0, 1], [1, 0], {0: 7.0})
    play(figures, [0, 1], [1, 1])
    play(figures, [0, 1], [0, 0], {1: 9.0})
    count = [one.count for one in figures.moments()]
    assert count == [2, 2, 2, 2]
    # slot 0: 0 0 1 0; slot 1: 1 1 1 1 0 1
    assert means(figures, Discrete(2)) == pytest.approx(
        {"return": 8.0, "length": 5.0, "action=0": (3 / 4 + 1 / 6) / 2, "action=1": (1 / 4 + 5 / 6) / 2}
    )
    assert figures.moments()[0].m2 == pytest.approx(2.0)


def test_nothing_counts_before_every_slot_has_ended_an_episode() -> None:
    """The first to end are the short ones."""
    figures = of(Discrete(2), 3)
    for _ in range(4):
        play(figures, [0, 1, 2], [0, 0, 0], {0: 1.0, 1: 1.0})
    assert figures.moments()[0].count == 0
    play(figures, [0, 1, 2], [0, 0, 0], {2: 1.0})
    play(figures, [0, 1, 2], [0, 0, 0], {0: 1.0})
    assert figures.moments()[0].count == 1


def test_seats_that_act_in_turn_count_their_own_steps() -> None:
    figures = of(Discrete(2), 2)
    play(figures, [0, 1], [0, 0], {0: 0.0, 1: 0.0})
    for _ in range(3):
        play(figures, [0], [1])
    for _ in range(2):
        play(figures, [1], [0])
    play(figures, [0, 1], [0, 0], {0: 1.0, 1: -1.0})
    assert means(figures, Discrete(2)) == {"return": 0.0, "length": 2.5, "action=0": 0.5, "action=1": 0.5}


def test_of_many_slots_all_returns_and_the_actions_of_some_are_counted() -> None:
    slots = COUNTED_SLOTS + 10
    figures, everyone = of(Discrete(3), slots), list(range(slots))
    play(figures, everyone, [0] * slots, dict.fromkeys(everyone, 0.0))
    play(figures, everyone, [2] * slots)
    play(figures, everyone, [0] * slots, dict.fromkeys(everyone, 4.0))
    play(figures, everyone[-3:], [0] * 3)
    assert [one.count for one in figures.moments()] == [slots, slots, *[COUNTED_SLOTS] * 3]
    assert means(figures, Discrete(3))["action=2"] == 1.0


def test_seats_that_nobody_learns_from_do_not_count() -> None:
    figures = EpisodeFigures(Discrete(2), np.array([True, False]))
    play(figures, [0, 1], [0, 0], {0: 0.0})
    play(figures, [0, 1], [0, 0], {0: 3.0, 1: 100.0})
    assert (figures.moments()[0].count, figures.moments()[0].mean) == (1, 3.0)


def test_every_discrete_part_of_an_action_has_shares() -> None:
    space = Dict({"a": Tuple((Discrete(2), Box((1,), "float32"))), "b": MultiDiscrete((2, 3)), "c": MultiBinary(1)})
    assert figure_names(space)[2:] == (
        "action.a.0=0", "action.a.0=1", "action.b[0]=0", "action.b[0]=1", "action.b[1]=0", "action.b[1]=1",
        "action.b[1]=2", "action.c[0]=0", "action.c[0]=1",
    )  # fmt: skip
    figures = of(space, 1)
    actions = {
        "action.a.0": np.array([1]), "action.b": np.array([[0, 2]]), "action.c": np.array([[1]], np.int8),
        "action.a.1": np.zeros((1, 1), np.float32),
    }  # fmt: skip
    play(figures, [0], actions, {0: 0.0})
    play(figures, [0], actions)
    play(figures, [0], actions, {0: 0.0})
    found = means(figures, space)
    assert [name for name, mean in found.items() if mean == 1.0] == [
        "length", "action.a.0=1", "action.b[0]=0", "action.b[1]=2", "action.c[0]=1",
    ]  # fmt: skip


def test_real_numbers_have_no_shares_and_many_actions_share_them() -> None:
    assert figure_names(Box((3,), "float32")) == ("return", "length")
    assert len(shares(Discrete(1000))) == MAX_SHARES
    assert [one.name for one in shares(Discrete(20))][:2] == ["action=0", "action=1"]
    assert sum(one.high - one.low + 1 for one in shares(Discrete(1000))) == 1000
    assert len(shares(MultiBinary(100))) == MAX_SHARES
    figures = of(Discrete(1000), 1)
    play(figures, [0], [999], {0: 0.0})
    play(figures, [0], [999])
    play(figures, [0], [0], {0: 0.0})
    assert means(figures, Discrete(1000))["action=944-999"] == 1.0
