"""Segments into batches: every column once, every row accounted for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlctl_agents.experience.batching import (
    ArrivalOrder,
    BatchMemory,
    LockStep,
    LockStepError,
    Settled,
    allocate_memory,
)
from rlctl_agents.types.experience import Arrays, Field, Ledger, ModelRef, Schema, SegmentBlock, SegmentHeader

T = 3
SCHEMA = Schema(
    T,
    (
        Field("obs", "float32", (2,), "row+1"),
        Field("reward", "float32", (), "row"),
        Field("valid", "bool", (), "row"),
        Field("core.h", "float32", (4,), "segment"),
    ),
)
NOW = ModelRef("main", lineage=1, version=10)


def segment(
    streams: list[int], *, number: int = 0, version: int = 10, lineage: int = 1, policy: str = "main"
) -> SegmentBlock:
    """A block with its stream and segment number in every value."""
    mark = np.array(streams, np.float32) + 1000 * number
    b = len(streams)
    header = SegmentHeader(
        run="r", term=1, boot="a", sequence=0, receiver="l", model=ModelRef(policy, lineage, version),
        stream=streams, row0=[number * T] * b, ledger=Ledger(),
    )  # fmt: skip
    fields: Arrays = {
        "obs": np.broadcast_to(mark[None, :, None], (T + 1, b, 2)),
        "reward": np.broadcast_to(mark, (T, b)),
        "valid": np.ones((T, b), bool),
        "core.h": np.broadcast_to(mark[:, None], (b, 4)),
    }
    return SegmentBlock(header, np.full((T, b), version, np.int64), fields)


def marks(batch: BatchMemory) -> list[float]:
    """The mark of every column, after checking that its fields agree."""
    used = batch.used
    np.testing.assert_array_equal(batch.fields["obs"][0, :used, 0], batch.fields["core.h"][:used, 0])
    np.testing.assert_array_equal(batch.fields["obs"][T, :used, 1], batch.fields["reward"][T - 1, :used])
    return [float(mark) for mark in batch.fields["reward"][0, :used]]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 7), min_size=1, max_size=30), st.integers(1, 9))
def test_blocks_of_any_size_fill_batches_of_any_size_in_order_and_every_row_is_settled_once(
    sizes: list[int], width: int
) -> None:
    assembler, batch = ArrivalOrder(SCHEMA, max_lag_versions=5), allocate_memory(SCHEMA, width)
    stream, got, rows = 0, [], 0
    for size in sizes:
        assembler.add(segment(list(range(stream, stream + size))))
        stream += size
        while True:
            assert assembler.fill(batch, NOW) == []
            if batch.used < width:
                break
            got += marks(batch)
            rows += sum(settled.rows for settled in batch.clear())
    got += marks(batch)
    rows += sum(settled.rows for settled in batch.clear())
    assert got == [float(number) for number in range(stream)]
    assert rows == stream * T


def outcomes(settled: list[Settled]) -> list[tuple[str, int]]:
    return [(one.outcome, one.rows) for one in settled]


def test_a_segment_is_stale_when_its_first_row_is_older_than_the_lag_allows() -> None:
    assembler, batch = ArrivalOrder(SCHEMA, max_lag_versions=5), allocate_memory(SCHEMA, 4)
    limit, old = segment([1], version=5), segment([2], version=9)
    old.version[0] = 4  # the later rows of this segment were chosen with newer weights
    assembler.add(limit)
    assembler.add(old)
    assert outcomes(assembler.fill(batch, NOW)) == [("stale", T)]
    assert marks(batch) == [1.0]


def test_the_rest_of_a_block_may_grow_stale_after_its_first_columns_were_learned() -> None:
    assembler, batch = ArrivalOrder(SCHEMA, max_lag_versions=0), allocate_memory(SCHEMA, 2)
    assembler.add(segment([1, 2, 3]))
    assembler.fill(batch, NOW)
    assert outcomes(batch.clear()) == [("consumed", 2 * T)]
    assert outcomes(assembler.fill(batch, ModelRef("main", 1, 11))) == [("stale", T)]


def test_rows_of_a_batch_that_is_not_full_grow_stale_too() -> None:
    assembler, batch = ArrivalOrder(SCHEMA, max_lag_versions=5), allocate_memory(SCHEMA, 4)
    assembler.add(segment([1, 2], version=5))
    assembler.add(segment([3], version=10))
    assembler.fill(batch, NOW)
    assert assembler.rejudge(batch, NOW) == []
    assert (marks(batch), batch.used) == ([1.0, 2.0, 3.0], 3)
    assert outcomes(assembler.rejudge(batch, ModelRef("main", 1, 11))) == [("stale", 2 * T)]
    assert (marks(batch), batch.used) == ([3.0], 1)
    assert outcomes(batch.clear()) == [("consumed", T)]


@pytest.mark.parametrize(
    ("wrong", "outcome"),
    [
        ({"lineage": 0}, "fenced"),
        ({"lineage": 2}, "fenced"),
        ({"policy": "other"}, "invalid"),
        ({"version": 11}, "invalid"),
    ],
)
def test_segments_of_another_lineage_are_fenced_and_impossible_ones_invalid(
    wrong: dict[str, object], outcome: str
) -> None:
    for assembler in (ArrivalOrder(SCHEMA, 5), LockStep(SCHEMA, 2)):
        batch = allocate_memory(SCHEMA, 2)
        assembler.add(segment([1, 2], **wrong))  # type: ignore[arg-type]
        assert sum(one.rows for one in assembler.fill(batch, NOW) if one.outcome == outcome) == 2 * T
        assert batch.used == 0


@settings(max_examples=50, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 4), st.integers(1, 3))
def test_lock_step_batches_do_not_depend_on_who_comes_first(random: object, actors: int, envs: int) -> None:
    streams = actors * envs
    assembler, batch = LockStep(SCHEMA, streams), allocate_memory(SCHEMA, streams)
    pending = {actor: list(range(3)) for actor in range(actors)}
    got = []
    while any(pending.values()):
        actor = random.choice([actor for actor, left in pending.items() if left])  # type: ignore[attr-defined]
        number = pending[actor].pop(0)
        assembler.add(segment(list(range(actor * envs, (actor + 1) * envs)), number=number))
        while assembler.fill(batch, NOW) == [] and batch.used:
            got.append(marks(batch))
            assert sum(one.rows for one in batch.clear()) == streams * T
    assert got == [[1000.0 * number + stream for stream in range(streams)] for number in range(3)]


def test_lock_step_says_whom_it_waits_for() -> None:
    assembler, batch = LockStep(SCHEMA, 3), allocate_memory(SCHEMA, 3)
    assembler.add(segment([1, 2]))
    assert assembler.missing().startswith("lock-step waits for 1 unseen streams, []; algorithm.batch_size must")
    assembler.add(segment([3]))
    assembler.fill(batch, NOW)
    batch.clear()
    assembler.add(segment([1, 2], number=1))
    assert assembler.missing() == "lock-step waits for 0 unseen streams, [3]"


def test_lock_step_with_too_many_streams_names_the_arithmetic() -> None:
    assembler = LockStep(SCHEMA, 3)
    assembler.add(segment([1, 2]))
    with pytest.raises(LockStepError, match="learns from 3 streams at once, but 4 arrive"):
        assembler.add(segment([7, 8]))
