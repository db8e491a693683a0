"""A shard holds exactly the windows that can be put together from what it stores, and draws them as they were."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl_agents.experience.replay.priorities import ReplaySettings, masses
from rlctl_agents.experience.replay.shard import Shard
from rlctl_agents.types.experience import Field, Schema
from tests.experience.replay.reference import Column, Reference, Stream, block, schema

FATES = ("sent", "sent", "sent", "lost", "late", "twice", "restarted", "renamed")
"""Of a segment: it arrives, or does not, or after the next ones, or twice; or its actor is started again first, and its
stream has the old number or a new one."""


class World:
    """A shard, the reference, and the streams that fill both."""

    def __init__(
        self, steps: int, n_step: int, columns: int, *, frames: int = 0, streams: int = 3, seed: int = 0,
        settings: dict[str, Any] | None = None, longest: int = 7, recorded: bool = True, last: bool = False,
    ) -> None:  # fmt: skip
        self.schema = schema(steps, frames=frames, recorded=recorded, legal=True, last=last)
        self.settings = ReplaySettings(n_step, **({"prioritized": True, "gamma": 0.9} | (settings or {})))
        self.shard = Shard(self.schema, self.settings, capacity=columns * steps, seed=seed)
        self.reference = Reference(self.schema, columns, n_step)
        self._rng, self._frames, self._longest = np.random.default_rng(seed), frames, longest
        self.boots, self._numbers = 0, count(1)
        self.streams = [self.stream(number) for number in range(streams)]
        self._late: list[Column] = []

    def stream(self, number: int) -> Stream:
        self.boots += 1
        return Stream(number, f"boot{self.boots}", self._rng, self._frames, self._longest, self._numbers)

    def arrive(self, columns: Sequence[Column]) -> None:
        """As blocks of one boot each, no stream twice in one."""
        steps, left = self.schema.unroll_length, list(columns)
        while left:
            together: list[Column] = []
            for one in list(left):
                if one.boot == left[0].boot and one.stream not in [other.stream for other in together]:
                    together.append(one)
            left = [one for one in left if not any(one is other for other in together)]
            assert self.shard.insert(block(self.schema, together)) == len(together) * steps
            self.reference.insert(together)

    def next(self, chosen: Sequence[int], fate: str = "sent") -> None:
        """The next segments of some streams."""
        steps = self.schema.unroll_length
        if fate in ("restarted", "renamed"):
            for at in chosen:
                self.streams[at] = self.stream(self.streams[at].id if fate == "restarted" else 100 + self.boots)
        columns = [self.streams[at].segment(steps) for at in chosen]
        if fate == "late":
            self._late += columns
        elif fate != "lost":
            self.arrive(columns)
            if fate == "twice":
                self.arrive(columns)
            late, self._late = self._late, []
            self.arrive(late)

    def compare(self) -> int:
        """Windows that may be drawn, after comparing every array of each."""
        wanted = self.reference.windows()
        mass = self.shard._tree.mass
        assert np.flatnonzero(mass).tolist() == sorted(wanted)
        assert self.shard.totals.size == len(wanted)
        assert self.shard.totals.mass == pytest.approx(mass.astype(np.float64).sum())
        if wanted:
            slots = np.array(sorted(wanted))
            got = self.shard._units.gather(slots, {})
            rows = [wanted[slot].arrays(self.schema, self.settings.n_step) for slot in slots.tolist()]
            for name in rows[0]:
                axis = 1 if name in ("rewards", "legal") or name.startswith("obs") else 0
                np.testing.assert_array_equal(got[name], np.stack([row[name] for row in rows], axis), name)
            assert got.keys() == rows[0].keys()
        return len(wanted)


@given(
    steps=st.integers(1, 5),
    n_step=st.integers(1, 8),
    frames=st.sampled_from([0, 1, 2, 4]),
    columns=st.integers(1, 12),
    seed=st.integers(0, 1000),
    told=st.lists(
        st.tuples(st.sampled_from(FATES), st.sets(st.integers(0, 2), min_size=1)), min_size=1, max_size=14
    ),
)  # fmt: skip
def test_what_may_be_drawn_is_what_can_be_put_together(
    steps: int, n_step: int, frames: int, columns: int, seed: int, told: list[tuple[str, set[int]]]
) -> None:
    world = World(steps, n_step, columns, frames=frames, seed=seed)
    for fate, chosen in told:
        world.next(sorted(chosen), fate)
        world.compare()


def of_one_boot(world: World, count: int) -> list[Stream]:
    """Seats of one actor."""
    made = [world.stream(number) for number in range(count)]
    for one in made:
        one.boot = made[0].boot
    return made


def test_a_sender_that_was_started_again_is_not_stitched_to_its_former_life() -> None:
    world = World(3, 2, 12, streams=1, frames=4, longest=100)
    world.next([0])
    world.streams = [world.stream(0)]  # the same number, and rows from 0 on again
    world.next([0], "lost")
    world.next([0])  # begins where the former life ended
    assert world.compare() == 1, "row 0 of the former life; of the new one no row sees all of its frames"


def test_a_stranger_that_uses_the_number_of_a_stream_breaks_none_of_its_windows() -> None:
    world = World(3, 2, 40, streams=1, frames=4, longest=100)
    stranger = world.stream(0)
    for _ in range(4):
        world.next([0])
        world.arrive([stranger.segment(3)])
    world.compare()
    mine = {at for at, boot in enumerate(world.shard._ring._boot[:8].tolist()) if at % 2 == 0}
    assert {slot // 3 for slot in np.flatnonzero(world.shard._tree.mass)} >= mine - {0, 6}


@pytest.mark.parametrize("frames", [0, 4])
def test_seats_that_act_in_turn_fill_blocks_at_rows_of_their_own(frames: int) -> None:
    world = World(4, 3, 20, frames=frames)
    world.streams = of_one_boot(world, 4)
    rng, seen = np.random.default_rng(1), 0
    for _ in range(20):
        chosen = np.flatnonzero(rng.random(4) < 0.6)
        if chosen.size:
            world.arrive([world.streams[at].segment(4) for at in chosen])
            seen += world.compare()
    assert seen > 200


@pytest.mark.parametrize("width", [1, 3, 7, 50])
def test_blocks_of_any_width_are_stored_of_one_larger_than_the_ring_the_last_columns(width: int) -> None:
    world = World(3, 2, 10, frames=2)
    world.streams = of_one_boot(world, width)
    for _ in range(6):
        world.arrive([one.segment(3) for one in world.streams])
        assert world.compare() > 0
    assert world.shard.totals.inserted == 6 * 3 * width
    assert world.shard.totals.rows == min(30, 18 * width)


def test_a_window_may_reach_over_three_columns_and_beyond() -> None:
    world = World(2, 7, 30, longest=30, streams=1, frames=4)
    for _ in range(20):
        world.next([0])
        world.compare()
    lengths = {len(window.rows) for window in world.reference.windows().values()}
    assert max(lengths) == 7


def test_n_may_be_longer_than_every_episode() -> None:
    world = World(4, 50, 30, longest=5, streams=2)
    for _ in range(8):
        world.next([0, 1])
    assert world.compare() > 0
    drawn = world.shard.draw(200).fields
    assert drawn["steps"].max() <= 5
    assert drawn["rewards"].shape == (50, 200)


def test_a_stream_twice_in_a_block_is_a_gap_and_never_wrong() -> None:
    world = World(3, 2, 12, streams=1, longest=100)
    first, second = (world.streams[0].segment(3) for _ in range(2))
    world.shard.insert(block(world.schema, [first]))
    world.shard.insert(block(world.schema, [second, second]))
    world.shard.insert(block(world.schema, [world.streams[0].segment(3)]))
    for _ in range(3):
        drawn = world.shard.draw(500).fields
        later = drawn["obs.small"][1, :, 0] - drawn["obs.small"][0, :, 0]
        np.testing.assert_array_equal(later, 20.0)
        world.shard.insert(block(world.schema, [world.streams[0].segment(3)] * 3))


@pytest.mark.parametrize("recorded", [False, True])
def test_first_masses_are_the_errors_of_what_actors_recorded_or_the_largest_so_far(recorded: bool) -> None:
    settings = {"alpha": 0.6, "epsilon": 0.01, "reward_scale": 2.0, "reward_clip": 1.5}
    world = World(3, 4, 40, settings=settings, recorded=recorded)
    for _ in range(10):
        world.next([0, 1, 2])
    windows = world.reference.windows()
    error = [windows[slot].error(world.settings) if recorded else 1.0 for slot in sorted(windows)]
    wanted = masses(np.array(error), world.settings) if recorded else np.ones(len(windows))
    np.testing.assert_allclose(world.shard._tree.mass[sorted(windows)], wanted, rtol=1e-5)
    if not recorded:
        drawn = world.shard.draw(4).fields
        world.shard.update(drawn["slot"], drawn["generation"], np.array([1, 2, -40, 3], np.float32))
        before = set(windows)
        world.next([0])
        made = set(world.reference.windows()) - before
        highest = world.shard.totals.highest
        assert highest == pytest.approx(40.01**0.6)
        np.testing.assert_allclose(world.shard._tree.mass[sorted(made)], highest, rtol=1e-6)


def test_a_mass_is_set_only_for_the_row_that_was_drawn() -> None:
    world = World(2, 1, 4, streams=1, longest=1000)
    for _ in range(3):
        world.next([0])
    drawn = world.shard.draw(64).fields
    late = {name: drawn[name].copy() for name in ("slot", "generation")}
    assert world.shard.update(drawn["slot"], drawn["generation"], np.full(64, 5, np.float32)) == 64
    for _ in range(4):
        world.next([0])
    before = world.shard._tree.mass.copy()
    assert world.shard.update(late["slot"], late["generation"], np.full(64, 9, np.float32)) == 0
    np.testing.assert_array_equal(world.shard._tree.mass, before)


def test_priorities_of_places_that_are_none_of_nan_and_of_rows_not_drawable_are_dropped() -> None:
    world = World(2, 1, 4, streams=1, longest=1000)
    world.next([0])
    newest = 1  # its successor is not there
    slot = np.array([0, newest, -1, 8, 10**12, 0], np.int64)
    delta = np.array([np.nan, 1, 1, 1, 1, 3], np.float32)
    assert world.shard.update(slot, np.ones(6, np.uint32), delta) == 1
    assert world.shard._tree.mass[newest] == 0
    assert world.compare() == 1


def test_of_a_row_that_comes_twice_the_last_error_counts_and_the_largest_error_breaks_nothing() -> None:
    world = World(2, 1, 4, streams=1, longest=1000)
    world.next([0])
    world.next([0])
    ones = np.ones(2, np.uint32)
    world.shard.update(np.zeros(2, np.int64), ones, np.array([7, 3], np.float32))
    assert world.shard._tree.mass[0] == pytest.approx((3 + 1e-6) ** 0.6)
    world.shard.update(np.array([0, 1]), ones, np.array([np.inf, 0], np.float32))
    assert np.isfinite(world.shard.totals.mass)
    assert world.shard._tree.mass[1] > 0


def test_nothing_is_drawn_of_nothing() -> None:
    world = World(2, 3, 4)
    assert world.shard.draw(8).count == 0
    world.next([0], "lost")
    drawn = world.shard.draw(8)
    assert (drawn.count, drawn.fields, drawn.total) == (0, {}, 0.0)
    assert world.shard.totals.sampled == 0


def test_a_draw_says_with_what_chance_and_fills_large_arrays_again() -> None:
    world = World(4, 3, 20, frames=4)
    for _ in range(6):
        world.next([0, 1, 2])
    shard = world.shard
    drawn = shard.draw(32)
    np.testing.assert_array_equal(drawn.fields["mass"], shard._tree.mass[drawn.fields["slot"]])
    np.testing.assert_array_equal(drawn.fields["generation"], shard._ring.generation[drawn.fields["slot"] // 4])
    assert drawn.total == shard.totals.mass
    again = shard.draw(32, drawn.fields)
    assert again.fields["obs.frames"] is drawn.fields["obs.frames"]
    wanted = world.reference.windows()
    for at, slot in enumerate(again.fields["slot"].tolist()):
        frames = wanted[slot].arrays(world.schema, 3)["obs.frames"]
        np.testing.assert_array_equal(again.fields["obs.frames"][:, at], frames)
    assert shard.totals.sampled == 64


def test_a_uniform_shard_draws_evenly_and_takes_no_priorities() -> None:
    world = World(4, 1, 20, settings={"prioritized": False})
    for _ in range(4):
        world.next([0, 1, 2])
    drawn = world.shard.draw(16)
    assert world.shard.update(drawn.fields["slot"], drawn.fields["generation"], np.full(16, 9.0)) == 0
    assert set(world.shard._tree.mass.tolist()) <= {0.0, 1.0}
    assert world.shard.totals.mass == world.compare()


@pytest.mark.parametrize("frames", [0, 4])
def test_memory_is_what_was_computed_and_stays_so(frames: int) -> None:
    world = World(5, 3, 40, frames=frames, streams=0)
    computed = Shard.bytes_for(world.schema, world.settings, 200)
    allocated = world.shard.totals.nbytes
    assert allocated == computed
    for number in range(120):  # ten times the capacity, of ever new streams
        world.streams = of_one_boot(world, 4)
        for one in world.streams:
            one.id += 4 * number
        world.arrive([one.segment(5) for one in world.streams])
    assert world.shard.totals.nbytes == allocated
    assert len(world.shard._ring._newest) <= 40
    assert world.shard.totals.rows == 200


def test_memory_of_frames_is_that_of_one_frame_a_row() -> None:
    agreed = Schema(20, (Field("obs", "uint8", (4, 84, 84), "row+1", frames=4), *schema(20).fields[2:]))
    computed = Shard.bytes_for(agreed, ReplaySettings(3), 200_000)
    assert computed == pytest.approx(200_000 * 84 * 84, rel=0.01)


@pytest.mark.parametrize(
    ("capacity", "n_step", "fields", "said"),
    [(0, 1, None, "capacity"), (4, 0, None, "n_step"), (4, 256, None, "n_step"), (4, 1, 2, "lacks: first")],
)
def test_what_cannot_be_is_refused(capacity: int, n_step: int, fields: int | None, said: str) -> None:
    agreed = Schema(2, schema(2).fields[:fields])
    with pytest.raises(ValueError, match=said):
        Shard(agreed, ReplaySettings(n_step), capacity=capacity, seed=0)
