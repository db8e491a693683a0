"""Draws follow the masses: of one shard, of several as of one, with stale masses, a shard killed and returned."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from rlctl_agents.experience.replay.priorities import ReplaySettings
from rlctl_agents.experience.replay.shard import Shard
from rlctl_agents.experience.replay.sum_tree import SumTree
from tests.experience.replay.reference import Stream, block, schema
from tests.experience.replay.shards import Place, Run, T

ROWS = 400
"""Of each shard."""
DRAWS = 200_000
"""Rows drawn for one comparison."""


def chi_square(seen: NDArray[np.int64], chance: NDArray[np.float64]) -> tuple[float, float]:
    """The statistic, in deviations above what is expected, and its degrees of freedom; unlikely places together.

    Source: Wilson and Hilferty 1931: the cube root of chi-square over its freedom is all but normal.
    """
    wanted = chance * seen.sum()
    order = np.argsort(wanted)
    group = np.empty(wanted.size, np.int64)
    group[order] = np.minimum(np.cumsum(wanted[order]) // 10, 10**9)
    of = np.unique(group, return_inverse=True)[1]
    got, due = np.bincount(of, seen), np.bincount(of, wanted)
    got, due = got[due > 0], due[due > 0]
    freedom = got.size - 1
    ratio = ((got - due) ** 2 / due).sum() / freedom
    spread = 2 / (9 * freedom)
    return (float(np.cbrt(ratio)) - (1 - spread)) / math.sqrt(spread), freedom


def shard(seed: int) -> Shard:
    """A shard of uneven masses over some orders of magnitude, not all of its rows drawable."""
    rng = np.random.default_rng(seed)
    agreed = schema(5)
    made = Shard(agreed, ReplaySettings(2, prioritized=True, alpha=1.0), capacity=ROWS, seed=seed)
    streams = [Stream(number, "b", rng) for number in range(4)]
    for _ in range(25):
        made.insert(block(agreed, [one.segment(5) for one in streams]))
    change(made, rng)
    return made


def change(one: Shard, rng: np.random.Generator) -> None:
    """Other errors for a third of its rows."""
    slot = rng.integers(0, ROWS, ROWS // 3)
    one.update(slot, one._ring.generation[slot // 5], rng.pareto(1.5, slot.size) * rng.integers(1, 4))


def test_one_shard_draws_as_its_masses_say() -> None:
    one = shard(0)
    mass = one._tree.mass.astype(np.float64)
    seen = np.bincount(one.draw(100_000).fields["slot"], minlength=ROWS)
    assert not seen[mass == 0].any()
    assert abs(chi_square(seen, mass / mass.sum())[0]) < 4


def drawn(
    shards: Mapping[int, Shard], told: Mapping[int, float], count: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """[count] rows of all shards, numbered through, and the chance with which each was drawn.

    As a learner does it: a multinomial over the masses told last, then each shard by its masses now.
    """
    names = list(shards)
    share = np.array([told[name] for name in names])
    share = share / share.sum()
    rows, chance = [], []
    for name, part, asked in zip(names, share, rng.multinomial(count, share), strict=True):
        answer = shards[name].draw(int(asked))
        if answer.count:
            rows.append(name * ROWS + answer.fields["slot"])
            chance.append(part * answer.fields["mass"].astype(np.float64) / answer.total)
    return np.concatenate(rows), np.concatenate(chance)


class Phase(NamedTuple):
    """Draws from several shards at one time."""

    name: str
    seen: NDArray[np.int64]  # [rows of all shards]
    chance: NDArray[np.float64]  # the exact one of each
    of_tree: NDArray[np.int64]  # as many draws of one tree over all rows, by their masses now


def phases(count: int) -> Iterator[Phase]:
    """As many shards with fresh masses, with one of them killed, with that one returned empty of what it held, and with
    masses that the learner was told before a third of the rows had other errors."""
    rng = np.random.default_rng(5)
    shards = {number: shard(number) for number in range(count)}
    tree = SumTree(count * ROWS)
    told: dict[int, float] = {}
    for name in ("fresh", "killed", "returned", "stale"):
        if name == "killed":
            del shards[count - 1]
        if name == "returned":
            shards[count - 1] = shard(77)
        if name == "stale":
            for one in shards.values():
                change(one, rng)
        else:
            told = {number: one.totals.mass for number, one in shards.items()}
        mass, exact = np.zeros(count * ROWS), np.zeros(count * ROWS)
        for number, one in shards.items():
            place = slice(number * ROWS, (number + 1) * ROWS)
            mass[place] = one._tree.mass
            exact[place] = told[number] / sum(told.values()) * mass[place] / mass[place].sum()
        tree.set(np.arange(count * ROWS), mass)
        rows, chance = drawn(shards, told, DRAWS, rng)
        np.testing.assert_allclose(chance, exact[rows], rtol=1e-5, err_msg="the chance that comes with a row")
        of_tree = np.bincount(tree.draw(rng.random(DRAWS)), minlength=count * ROWS)
        yield Phase(name, np.bincount(rows, minlength=count * ROWS), exact, of_tree)


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_shards_draw_as_one_tree_does_with_one_of_them_killed_or_returned_and_exactly_with_stale_masses(
    count: int,
) -> None:
    for phase in phases(count) if count > 1 else islice(phases(1), 1):
        assert abs(chi_square(phase.seen, phase.chance)[0]) < 4, phase.name
        if phase.name == "stale":
            assert chi_square(phase.of_tree, phase.chance)[0] > 10, "those of one tree are others"
        else:
            assert abs(chi_square(phase.of_tree, phase.chance)[0]) < 4, phase.name


class Watched:
    """The draws of a learner from shards that come and go: what was drawn of each row, and what was due.

    Masses are changed by others before each draw, so that those which the learner knows are stale.
    """

    def __init__(self, run: Run) -> None:
        self.run, self.rng = run, np.random.default_rng(8)
        self.drawer = run.drawer
        self._multinomial, self.drawer._rng = self.drawer._rng.multinomial, self  # type: ignore[assignment]
        self.forget()

    def forget(self) -> None:
        """Count anew."""
        self.seen, self.due = np.zeros(4 * ROWS, np.int64), np.zeros(4 * ROWS)
        self.asked: list[tuple[int, list[int], NDArray[np.float64]]] = []

    def multinomial(self, count: int, chances: NDArray[np.float64]) -> NDArray[np.int64]:
        """In place of the generator's."""
        told = {index: one.mass for index, one in self.drawer.shards.live.items() if one.mass > 0}
        np.testing.assert_allclose(chances, np.array([*told.values()]) / sum(told.values()))
        self.asked.append((count, [*told], chances))
        return self._multinomial(count, chances)

    def draw(self, units: int) -> None:
        """One batch, of which no row may be absent."""
        place = self.run.places[int(self.rng.choice([*self.run.named]))]
        place.feed(0, scale=float(self.rng.uniform(0.5, 2.0)))
        self.asked.clear()
        parts = self.drawer.draw(units)
        assert parts is not None, "the learner waits for nothing"
        assert sum(part.units for part in parts) == units
        for part in parts:
            np.add.at(self.seen, part.shard * ROWS + part.arrays["slot"], 1)
            assert part.chance in [chances[live.index(part.shard)] for _, live, chances in self.asked]
        for count, live, chances in self.asked:
            for index, chance in zip(live, chances, strict=True):
                one = self.run.places[index]
                if one.alive:
                    mass = one.shard._tree.mass.astype(np.float64)
                    self.due[index * ROWS : (index + 1) * ROWS] += count * chance * mass / mass.sum()

    def exact(self) -> bool:
        """Whether all rows were drawn as often as was due since this was asked last."""
        off = chi_square(self.seen, self.due / self.due.sum())[0]
        self.forget()
        return abs(off) < 4


def test_draws_are_exact_before_during_and_after_a_shard_is_added_and_one_is_removed() -> None:
    run = Run(2, columns=ROWS // T)
    for place in run.places:
        place.feed(ROWS, scale=1.0)
    run.meet()
    learner = Watched(run)
    for _ in range(150):
        learner.draw(200)
    assert learner.exact(), "two shards"

    run.places.append(Place(2, shards=3, columns=ROWS // T))
    run.named[2] = {"rpc": "2"}
    for step in range(150):
        if step % 3 == 0:
            run.places[2].feed(20)
        learner.draw(200)
    assert learner.seen[2 * ROWS : 3 * ROWS].sum() > 0
    assert learner.exact(), "while the third one fills"
    assert run.places[2].shard.filled == ROWS
    for _ in range(150):
        learner.draw(200)
    assert (learner.seen[2 * ROWS : 3 * ROWS] > 0).mean() > 0.5
    assert learner.exact(), "three shards"

    run.places[0].kill_at_draw = True
    learner.draw(200)
    assert learner.seen[:ROWS].sum() == 0, "it ended in the middle of a draw, which the others made up for"
    del run.named[0]
    for _ in range(150):
        learner.draw(200)
    assert learner.seen[:ROWS].sum() == 0
    assert learner.exact(), "two shards again"


def test_a_shard_that_is_added_again_under_the_number_of_one_that_went_is_another() -> None:
    run = Run(2, columns=ROWS // T)
    for place in run.places:
        place.feed(ROWS, scale=1.0)
    run.meet()
    learner = Watched(run)
    limit = learner.drawer.limit
    assert limit is not None
    inserted = limit.inserted
    run.places[1].alive = False
    del run.named[1]
    learner.draw(200)
    run.places[1].start()
    run.named[1] = {"rpc": "1"}
    for step in range(100):
        if step == 20:
            run.places[1].feed(ROWS)
        learner.draw(200)
    assert limit.inserted == inserted + ROWS, "rows that went were inserted, and those that came too"
    assert learner.exact()


@pytest.mark.parametrize("stale", [False, True])
def test_importance_weights_are_unbiased(stale: bool) -> None:
    rng = np.random.default_rng(7)
    shards = {number: shard(10 + number) for number in range(3)}
    told = {number: one.totals.mass for number, one in shards.items()}
    if stale:
        for one in shards.values():
            change(one, rng)
    drawable = np.concatenate([one._tree.mass > 0 for one in shards.values()])
    value = rng.normal(3, 1, drawable.size)
    size = sum(one.totals.size for one in shards.values())
    assert size == drawable.sum()
    rows, chance = drawn(shards, told, 400_000, rng)
    weighed = value[rows] / (size * chance)  # beta 1
    error = weighed.std() / math.sqrt(weighed.size)
    assert abs(weighed.mean() - value[drawable].mean()) < 4 * error
    assert error < 0.1


def test_the_order_of_a_draw_says_nothing_about_its_rows() -> None:
    one = shard(3)
    slots = np.concatenate([one.draw(500).fields["slot"] for _ in range(40)]).reshape(40, 500)
    halves = slots[:, :250].mean(1) - slots[:, 250:].mean(1)
    assert abs(halves.mean()) < 4 * halves.std() / math.sqrt(40)


def figures() -> Iterator[str]:
    """The table of docs/replay.md."""
    yield "| shards | masses | chi-square: deviations from what is expected | freedom | of one tree |"
    yield "|---|---|---|---|---|"
    for count in (1, 2, 4, 8):
        for phase in phases(count) if count > 1 else islice(phases(1), 1):
            off, freedom = chi_square(phase.seen, phase.chance)
            of_tree, _ = chi_square(phase.of_tree, phase.chance)
            yield f"| {count} | {phase.name} | {off:+.2f} | {freedom} | {of_tree:+.2f} |"


if __name__ == "__main__":
    print(*figures(), sep="\n")
