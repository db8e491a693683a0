"""Sequences of a shard are exactly those that can be put together from what it stores, and arrive as they were."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl_agents.experience.batching import allocate_memory
from rlctl_agents.experience.replay.messages import drawn_schema, layout
from rlctl_agents.experience.replay.priorities import ReplaySettings, masses, rescaled, unscaled
from rlctl_agents.experience.replay.shard import Shard
from rlctl_agents.experience.replay.source import ShardPart
from rlctl_agents.types.experience import Arrays
from tests.experience.replay.reference import Row, schema
from tests.experience.replay.shards import Run
from tests.experience.replay.test_exactness import chi_square
from tests.experience.replay.test_shard import FATES, World

AGREED = schema(2, recorded=True)
SETTINGS = ReplaySettings(3, burn_in=2, sequence=4, prioritized=True, alpha=1.0)
INDEX = {"slot", "generation", "mass"}
"""Arrays of a draw that are not of its rows."""


class Sequenced(World):
    """A shard of sequences, and a learner's memory that they are brought into."""

    def __init__(
        self, steps: int, burn_in: int, sequence: int, columns: int, *, settings: dict[str, Any] | None = None,
        **more: Any,
    ) -> None:  # fmt: skip
        self.length = burn_in + sequence
        told = {"burn_in": burn_in, "sequence": sequence} | (settings or {})
        super().__init__(steps, 3, columns, settings=told, last=True, **more)
        learner = Run(0, agreed=self.schema, settings=self.settings)
        learner.learner(beta=0.0)
        self.drawer = learner.drawer

    @property
    def sequences(self) -> dict[int, list[Row]]:
        return self.reference.sequences(self.length)

    def compare(self) -> int:
        """Sequences that may be drawn, after comparing every array of each, sent and in a batch."""
        wanted = self.sequences
        mass = self.shard._tree.mass
        assert np.flatnonzero(mass).tolist() == sorted(wanted)
        assert self.shard.totals.size == len(wanted)
        assert self.shard.totals.mass == pytest.approx(mass.astype(np.float64).sum())
        if wanted:
            columns = np.array(sorted(wanted))
            sent = self.shard._units.gather(columns, {})
            self.check(sent, [wanted[column] for column in columns.tolist()])
        return len(wanted)

    def check(self, sent: Arrays, wanted: list[list[Row]]) -> None:
        """Arrays of these sequences, and the batch that they make."""
        shapes = layout(self.schema, self.settings, len(wanted))
        found = {name: (one.dtype, one.shape) for name, one in sent.items()}
        assert found == {name: shape for name, shape in shapes.items() if name in found}
        assert shapes.keys() - found.keys() <= INDEX
        memory = allocate_memory(drawn_schema(self.schema, self.settings), len(wanted), np.zeros)
        self.drawer.fill(memory, [ShardPart(0, "", len(wanted), sent, 1.0, 1.0)])
        for field in self.schema.fields:
            if field.per == "segment":
                rows: Any = [one[0].value(field.name) for one in wanted]
            else:
                count = self.length + (field.per == "row+1")
                rows = [[one[at].value(field.name) for one in wanted] for at in range(count)]
            np.testing.assert_array_equal(memory.fields[field.name], rows, field.name)
        versions = [[one[at].number for one in wanted] for at in range(self.length)]
        np.testing.assert_array_equal(memory.version, versions)


@given(
    steps=st.integers(1, 4),
    segments=st.tuples(st.integers(0, 2), st.integers(1, 3)),
    frames=st.sampled_from([0, 1, 2, 4]),
    columns=st.integers(1, 14),
    seed=st.integers(0, 1000),
    told=st.lists(
        st.tuples(st.sampled_from(("sent",) * 8 + FATES), st.sets(st.integers(0, 1), min_size=1)),
        min_size=1, max_size=24,
    ),
)  # fmt: skip
def test_what_may_be_drawn_is_what_can_be_put_together(
    steps: int, segments: tuple[int, int], frames: int, columns: int, seed: int, told: list[tuple[str, set[int]]]
) -> None:
    before, of = segments
    world = Sequenced(steps, before * steps, of * steps, columns, frames=frames, streams=2, seed=seed)
    for fate, chosen in told:
        world.next(sorted(chosen), fate)
        world.compare()


@pytest.mark.parametrize("steps", [1, 2, 3, 5])
def test_frames_are_those_that_the_actor_saw_and_without_the_oldest_of_them_nothing_is_drawn(steps: int) -> None:
    """Segments shorter than a stack, and episodes that begin within the frames before a sequence."""
    world, rng = Sequenced(steps, steps, 2 * steps, 13, frames=4, streams=2), np.random.default_rng(steps)
    seen = 0
    for _ in range(60):
        world.next(np.flatnonzero(rng.random(2) < 0.7).tolist())
        seen += world.compare()
    assert seen > 60


def test_a_sequence_may_be_drawn_once_the_row_after_it_is_there_and_until_its_first_is_overwritten() -> None:
    world = Sequenced(2, 2, 4, 6, streams=1)
    counts = []
    for _ in range(9):
        world.next([0])
        world.compare()
        counts.append(sorted(world.sequences))
    assert counts == [[], [], [], [0], [0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5]]


@pytest.mark.parametrize("fate", ["lost", "restarted"])
def test_a_sequence_does_not_reach_across_a_gap_or_a_start_of_its_sender(fate: str) -> None:
    world = Sequenced(2, 2, 4, 20, streams=1)
    for _ in range(5):
        world.next([0])
    assert world.compare() == 2
    world.next([0], fate)
    world.next([0])
    assert world.compare() == 2
    for _ in range(3):
        world.next([0])
    assert world.compare() == (3 if fate == "lost" else 4)


def test_a_ring_that_is_shorter_than_a_sequence_has_none() -> None:
    world = Sequenced(2, 2, 4, 3, streams=1)
    for _ in range(9):
        world.next([0])
        assert world.compare() == 0
    assert world.shard.draw(4).count == 0


@pytest.mark.parametrize(("burn_in", "sequence"), [(0, 3), (1, 4), (3, 2)])
def test_lengths_that_segments_do_not_make_are_refused(burn_in: int, sequence: int) -> None:
    settings = ReplaySettings(3, burn_in=burn_in, sequence=sequence)
    with pytest.raises(ValueError, match=rf"sequences of {burn_in} \+ {sequence} rows are not made of segments of 2"):
        Shard(AGREED, settings, capacity=20, seed=0)


# -- priorities ----------------------------------------------------------------------------------------------------


def h(x: float) -> float:
    return float(rescaled(np.array(x)))


def error_of(rows: list[Row], settings: ReplaySettings) -> float:
    """Of a sequence, by what its actor recorded: row by row."""
    errors = []
    for start in range(settings.burn_in, len(rows) - 1):
        if not rows[start].valid:
            continue
        total, power = 0.0, 1.0
        for at in range(start, min(start + settings.n_step, len(rows) - 1)):
            row, after = rows[at], rows[at + 1]
            reward = row.value("reward") * settings.reward_scale
            if settings.reward_clip is not None:
                reward = max(-settings.reward_clip, min(settings.reward_clip, reward))
            total += power * reward
            power *= settings.gamma
            last = row.truncated or at + 1 in (start + settings.n_step, len(rows) - 1)
            if last and not row.terminated:
                value = float(after.value("q_max"))
                total += power * (float(unscaled(np.array(value))) if settings.rescaled else value)
            if last or row.terminated:
                break
        errors.append(abs((h(total) if settings.rescaled else total) - rows[start].value("q")))
    if not errors:
        return 0.0
    return settings.priority_max * max(errors) + (1 - settings.priority_max) * sum(errors) / len(errors)


@pytest.mark.parametrize(
    "settings",
    [
        {}, {"rescaled": True}, {"reward_scale": 3.0, "reward_clip": 2.0, "rescaled": True}, {"priority_max": 0.0},
        {"priority_max": 1.0},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("burn_in", [0, 6])
@pytest.mark.parametrize("longest", [7, 40])
def test_first_masses_are_the_largest_and_the_mean_error_of_what_actors_recorded(
    settings: dict[str, Any], burn_in: int, longest: int
) -> None:
    world = Sequenced(3, burn_in, 9, 60, settings={"alpha": 0.9, **settings}, longest=longest)
    for _ in range(20):
        world.next([0, 1, 2])
    wanted = world.sequences
    assert len(wanted) > 30
    error = [error_of(wanted[column], world.settings) for column in sorted(wanted)]
    np.testing.assert_allclose(world.shard._tree.mass[sorted(wanted)], masses(np.array(error), world.settings), 1e-5)


def test_without_recorded_values_the_first_mass_is_the_largest_so_far() -> None:
    world = Sequenced(2, 0, 2, 20, streams=1, recorded=False)
    for _ in range(3):
        world.next([0])
    assert world.shard._tree.mass[:3].tolist() == [1.0, 1.0, 0.0]
    world.shard.update(np.array([0]), np.ones(1, np.uint32), np.array([40.0]))
    world.next([0])
    assert world.shard._tree.mass[2] == pytest.approx(40**0.6, rel=1e-4)


def test_a_mass_is_set_only_for_the_sequence_that_was_drawn() -> None:
    world = Sequenced(2, 2, 4, 6, streams=1, settings={"alpha": 1.0})
    for _ in range(5):
        world.next([0])
    drawn = world.shard.draw(40).fields
    assert set(drawn["slot"].tolist()) == {0, 1}
    np.testing.assert_array_equal(drawn["generation"], 1)
    np.testing.assert_array_equal(drawn["mass"], world.shard._tree.mass[drawn["slot"]])
    late = {name: drawn[name].copy() for name in ("slot", "generation")}
    one = np.ones(1, np.uint32)
    assert world.shard.update(np.array([1]), one, np.array([7.0])) == 1
    assert world.shard._tree.mass[1] == pytest.approx(7.0)
    assert world.shard.update(np.array([2]), one, np.array([7.0])) == 0, "it cannot be drawn yet"
    assert world.shard.update(np.array([6, -1]), np.ones(2, np.uint32), np.array([7.0, 7.0])) == 0, "no columns"
    for _ in range(6):
        world.next([0])
    before = world.shard._tree.mass.copy()
    assert world.shard.update(late["slot"], late["generation"], np.full(40, 9.0)) == 0
    np.testing.assert_array_equal(world.shard._tree.mass, before)


def test_draws_are_counted_in_rows_to_be_learned_from_and_fill_large_arrays_again() -> None:
    world = Sequenced(2, 2, 4, 30, frames=4)
    for _ in range(8):
        world.next([0, 1, 2])
    drawn = world.shard.draw(10)
    assert (drawn.count, world.shard.totals.sampled) == (10, 40)
    again = world.shard.draw(10, drawn.fields)
    assert world.shard.totals.sampled == 80
    for name in ("obs.frames", "obs.big", "last"):
        assert again.fields[name] is drawn.fields[name]
    wanted = world.sequences
    world.check(again.fields, [wanted[column] for column in again.fields["slot"].tolist()])


# -- several shards ------------------------------------------------------------------------------------------------


def test_several_shards_draw_as_their_masses_say() -> None:
    run = Run(3, agreed=AGREED, settings=SETTINGS)
    for place, scale in zip(run.places, (1.0, 3.0, 10.0), strict=True):
        place.feed(160, scale)
    run.meet()
    mass = np.stack([place.shard._tree.mass for place in run.places]).astype(np.float64)
    seen = np.zeros(mass.shape, np.int64)
    for _ in range(100):
        parts = run.drawer.draw(200)
        assert parts is not None
        for part in parts:
            np.add.at(seen[part.shard], part.arrays["slot"], 1)
    assert seen.sum() == 20_000
    assert not seen[mass == 0].any()
    assert abs(chi_square(seen.ravel(), mass.ravel() / mass.sum())[0]) < 4


def test_a_batch_holds_the_sequences_of_the_shards_side_by_side_with_their_weights() -> None:
    run = Run(2, agreed=AGREED, settings=SETTINGS)
    for place in run.places:
        place.feed(160, 1.0)
    run.meet()
    parts = run.drawer.draw(30)
    assert parts is not None
    assert len(parts) == 2
    memory = allocate_memory(run.drawer.schema, 30, np.zeros)
    run.drawer.fill(memory, parts)
    for name, axis in (("action", 1), ("first", 1), ("valid", 1), ("core.h", 0)):
        np.testing.assert_array_equal(memory.fields[name], np.concatenate([one.arrays[name] for one in parts], axis))
    np.testing.assert_array_equal(memory.version, np.concatenate([one.arrays["version"] for one in parts], 1))
    total = sum(place.shard.totals.mass for place in run.places)
    size = sum(place.shard.totals.size for place in run.places)
    weight = np.concatenate([(size * one.arrays["mass"].astype(np.float64) / total) ** -0.5 for one in parts])
    np.testing.assert_allclose(memory.fields["weight"], weight / weight.max(), rtol=1e-5)
