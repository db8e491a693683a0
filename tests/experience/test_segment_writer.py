"""The writer against a list per slot, for environments with slots that move together and for seats that take turns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlctl_agents.experience.segment_writer import FinishedBlock, SegmentWriter
from rlctl_agents.types.experience import Decisions, Field, Schema


def schema(steps: int) -> Schema:
    return Schema(
        steps,
        (
            Field("obs", "float32", (2,), "row+1"),
            Field("first", "bool", (), "row+1"),
            Field("action", "int64", (), "row"),
            Field("reward", "float32", (), "row"),
            Field("terminated", "bool", (), "row"),
            Field("truncated", "bool", (), "row"),
            Field("valid", "bool", (), "row"),
            Field("legal", "bool", (3,), "row+1"),
            Field("log_prob", "float32", (), "row"),
            Field("core.h", "float32", (2,), "segment"),
        ),
    )


@dataclass
class Row:
    values: dict[str, Any]
    state: np.ndarray
    version: int = -1


@dataclass
class Naive:
    """Every row of every slot in a list; segments are slices of it."""

    steps: int
    rows: list[list[Row]]
    start: list[int]
    out: list[tuple[int, int, dict[str, Any]]] = field(default_factory=list)

    def observe(self, decisions: Decisions, state: np.ndarray) -> None:
        assert decisions.legal is not None
        for k, slot in enumerate(decisions.slot):
            rows = self.rows[slot]
            if rows:
                before = rows[-1].values
                before["reward"] = decisions.reward[k] if before["valid"] else 0.0
                before["terminated"] = bool(decisions.terminated[k]) and before["valid"]
                before["truncated"] = bool(decisions.truncated[k]) and before["valid"]
            ended = decisions.terminated[k] or decisions.truncated[k]
            rows.append(
                Row(
                    {
                        "obs": decisions.obs["obs"][k].copy(),
                        "first": decisions.first[k],
                        "legal": decisions.legal[k].copy(),
                        "valid": not ended,
                    },
                    state[k].copy(),
                )
            )
            if len(rows) - 1 - self.start[slot] == self.steps:
                self.out.append((int(slot), self.start[slot], self.segment(slot)))
                self.start[slot] += self.steps

    def record(self, slots: np.ndarray, chosen: dict[str, np.ndarray], version: int) -> None:
        for k, slot in enumerate(slots):
            row = self.rows[slot][-1]
            row.values |= {name: values[k] for name, values in chosen.items()}
            row.version = version

    def restart(self, waiting: np.ndarray) -> None:
        self.start = [len(rows) - (slot in waiting) for slot, rows in enumerate(self.rows)]

    def segment(self, slot: int) -> dict[str, Any]:
        rows = self.rows[slot][self.start[slot] : self.start[slot] + self.steps + 1]
        names = ("obs", "first", "legal")
        both = {name: np.stack([row.values[name] for row in rows]) for name in names}
        per_row = ("action", "reward", "terminated", "truncated", "valid", "log_prob")
        one = {name: np.stack([row.values[name] for row in rows[:-1]]) for name in per_row}
        return {**both, **one, "core.h": rows[0].state, "version": np.array([row.version for row in rows[:-1]])}


def drive(
    steps: int, slots: int, acting: list[list[int]], seed: int, restarts: frozenset[int] = frozenset()
) -> tuple[list[FinishedBlock], Naive]:
    """Random decisions for the slots that act in each step, into the writer and into the lists."""
    rng = np.random.default_rng(seed)
    writer, naive = SegmentWriter(schema(steps), slots), Naive(steps, [[] for _ in range(slots)], [0] * slots)
    blocks = []
    for number, who in enumerate(acting):
        slot = np.array(sorted(who), np.int64)
        k = slot.size
        ended = rng.random(k) < 0.2
        decisions = Decisions(
            slot=slot,
            obs={"obs": rng.random((k, 2), np.float32)},
            reward=rng.random(k, np.float32),
            terminated=ended & (rng.random(k) < 0.5),
            truncated=ended,
            first=rng.random(k) < 0.2,
            legal=rng.random((k, 3)) < 0.5,
        )
        state = rng.random((k, 2), np.float32)
        chosen: dict[str, np.ndarray] = {"action": rng.integers(0, 9, k), "log_prob": rng.random(k, np.float32)}
        block = writer.observe(decisions, {"core.h": state})
        naive.observe(decisions, state)
        if block is not None:
            blocks.append(block)
        if number in restarts:
            writer.restart({"core.h": state})
            naive.restart(slot)
            # the lists keep the state per row, which is the state of the restart already
        writer.record(chosen, version=number)
        naive.record(slot, chosen, version=number)
    return blocks, naive


def assert_same(blocks: list[FinishedBlock], naive: Naive) -> None:
    got = {}
    for block in blocks:
        for b, slot in enumerate(block.slot):
            values = {
                name: array[b] if name.startswith("core.") else array[:, b] for name, array in block.fields.items()
            }
            got[int(slot), int(block.row0[b])] = {**values, "version": block.version[:, b]}
    assert got.keys() == {(slot, row0) for slot, row0, _ in naive.out}
    for slot, row0, segment in naive.out:
        for name, values in segment.items():
            np.testing.assert_array_equal(got[slot, row0][name], values, err_msg=f"{name} of slot {slot}, row {row0}")


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_ragged_slots_give_the_segments_of_a_list_per_slot(data: st.DataObject) -> None:
    slots, steps = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    who = st.lists(st.integers(0, slots - 1), min_size=1, max_size=slots, unique=True)
    acting = data.draw(st.lists(who, min_size=1, max_size=40))
    restarts = data.draw(st.frozensets(st.integers(0, 39), max_size=3))
    assert_same(*drive(steps, slots, acting, seed=1, restarts=restarts))


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 30), st.frozensets(st.integers(0, 29), max_size=2))
def test_slots_that_move_together_give_the_segments_of_a_list_per_slot(
    slots: int, steps: int, length: int, restarts: frozenset[int]
) -> None:
    assert_same(*drive(steps, slots, [list(range(slots))] * length, seed=2, restarts=restarts))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 12), st.integers(1, 4))
def test_a_writer_may_begin_together_and_go_on_ragged(together: int, steps: int) -> None:
    acting = [[0, 1, 2]] * together + [[0], [1, 2], [0, 2], [1]] * 6 + [[0, 1, 2]] * 6
    assert_same(*drive(steps, 3, acting, seed=3))


def test_segments_of_slots_that_move_together_come_as_one_block_of_contiguous_arrays() -> None:
    blocks, _ = drive(steps=4, slots=3, acting=[[0, 1, 2]] * 9, seed=4)
    assert [block.row0.tolist() for block in blocks] == [[0, 0, 0], [4, 4, 4]]
    assert all(array.flags.c_contiguous for block in blocks for array in block.fields.values())


def test_a_block_is_not_written_to_after_it_was_handed_over() -> None:
    blocks, _ = drive(steps=2, slots=2, acting=[[0, 1]] * 3, seed=5)
    again, _ = drive(steps=2, slots=2, acting=[[0, 1]] * 9, seed=5)
    for name, values in blocks[0].fields.items():
        np.testing.assert_array_equal(again[0].fields[name], values)


def test_blocks_of_ragged_slots_are_contiguous_and_their_own() -> None:
    blocks, _ = drive(steps=2, slots=2, acting=[[0], [1]] * 5, seed=6)
    assert all(array.flags.c_contiguous for block in blocks for array in block.fields.values())
    assert not np.shares_memory(blocks[0].fields["obs"], blocks[1].fields["obs"])


def test_the_row_after_an_end_is_invalid_and_without_reward() -> None:
    writer = SegmentWriter(schema(3), 1)

    def step(terminated: bool, first: bool, reward: float) -> FinishedBlock | None:
        decisions = Decisions(
            slot=np.zeros(1, np.int64),
            obs={"obs": np.zeros((1, 2), np.float32)},
            reward=np.array([reward], np.float32),
            terminated=np.array([terminated]),
            truncated=np.array([False]),
            first=np.array([first]),
            legal=np.ones((1, 3), bool),
        )
        block = writer.observe(decisions, {"core.h": np.zeros((1, 2), np.float32)})
        writer.record({"action": np.zeros(1, np.int64), "log_prob": np.zeros(1, np.float32)}, 0)
        return block

    step(False, True, 0.0)
    step(True, False, 5.0)  # the first action won 5 and ended the episode; this is its final observation
    step(False, True, 7.0)  # an environment that wrongly rewards the reset
    block = step(False, False, 1.0)
    assert block is not None
    assert block.fields["valid"][:, 0].tolist() == [True, False, True]
    assert block.fields["reward"][:, 0].tolist() == [5.0, 0.0, 1.0]
    assert block.fields["terminated"][:, 0].tolist() == [True, False, False]
    assert block.fields["first"][:, 0].tolist() == [True, False, True, False]


def test_a_writer_without_slots_is_refused() -> None:
    with pytest.raises(ValueError, match="slots must be at least 1"):
        SegmentWriter(schema(3), 0)
