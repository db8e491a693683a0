"""Stacked frames travel once, and every row is learned from with exactly what its actor saw."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from rlctl.spec.algorithms import Impala as Settings
from rlctl.spec.schema import Network
from rlctl_agents.algorithms.base import Batch
from rlctl_agents.algorithms.impala import Impala
from rlctl_agents.experience.batching import allocate_memory, column_axes
from rlctl_agents.experience.segment_writer import FinishedBlock, SegmentWriter
from rlctl_agents.experience.staging import Staging
from rlctl_agents.types.experience import Arrays, Decisions, Ledger, ModelRef, Schema, SegmentBlock, SegmentHeader
from rlctl_agents.types.spaces import Box, Discrete, Spaces
from rlctl_agents.wire.codec import BlockCodec

STEPS, STACK, SLOTS = 5, 4, 3
FRAME = (2, 2, 3)
SPACES = Spaces(Box((STACK, *FRAME), "uint8", 0.0, 255.0, stack=STACK), Discrete(2))


def the_schema() -> Schema:
    return Impala.schema(Settings(unroll_length=STEPS), Network(torso="mlp"), SPACES)


class Game:
    """Slots with episodes of 1 to 7 steps and numbered frames."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(0)
        self._stack = np.zeros((SLOTS, STACK, *FRAME), np.uint8)
        self._left = np.zeros(SLOTS, np.int64)
        self._ended = np.ones(SLOTS, np.bool_)
        self._frame = 0

    def step(self, slot: NDArray[np.int64]) -> Decisions:
        first, ended = self._ended[slot], np.zeros(slot.size, np.bool_)
        for number, one in enumerate(slot):
            if self._ended[one]:
                self._stack[one], self._left[one] = 0, self._random.integers(1, 8)
            else:
                self._stack[one, :-1] = self._stack[one, 1:]
                self._left[one] -= 1
                ended[number] = self._left[one] == 0
            self._frame += 1
            self._stack[one, -1] = self._frame % 255 + 1
        self._ended[slot] = ended
        nothing = np.zeros(slot.size, np.bool_)
        return Decisions(slot, {"obs": self._stack[slot]}, np.zeros(slot.size, np.float32), ended, nothing, first)


Saw = dict[tuple[int, int], NDArray[np.uint8]]


def played(turns: bool, restart_at: int = -1) -> Iterator[tuple[FinishedBlock, Saw]]:
    """Blocks, and what (slot, row of its stream) saw."""
    game, writer, rows = Game(), SegmentWriter(the_schema(), SLOTS), np.zeros(SLOTS, np.int64)
    saw: Saw = {}
    random = np.random.default_rng(1)
    for step in range(60):
        slot = np.flatnonzero(random.random(SLOTS) < 0.6) if turns else np.arange(SLOTS)
        if slot.size == 0:
            continue
        decisions = game.step(slot)
        for number, one in enumerate(slot):
            saw[int(one), int(rows[one])] = decisions.obs["obs"][number].copy()
            rows[one] += 1
        block = writer.observe(decisions, {})
        if step == restart_at:
            writer.restart({})
        chosen = {"action": np.zeros(slot.size, np.int64), "log_prob": np.zeros(slot.size, np.float32)}
        writer.record(chosen, 0)
        if block is not None:
            yield block, saw


def over_the_wire(block: FinishedBlock) -> Arrays:
    codec = BlockCodec(the_schema())
    heads, frames = codec.pack(block.slot.size, block.version, block.fields, compress=False)
    assert not frames  # small enough to travel inline
    return codec.unpack(block.slot.size, heads, [])[1]


def learned_from(block: FinishedBlock, staging: Staging) -> Batch:
    columns = staging.allocate(the_schema(), block.slot.size)
    header = SegmentHeader("r", 1, "a", 0, "l", ModelRef("main", 0, 0), [], [], Ledger())
    segment = SegmentBlock(header, block.version, over_the_wire(block))
    columns.copy_in(segment, 0, block.slot.size, column_axes(the_schema()))
    staging.begin(columns)
    return staging.batch(columns)


@pytest.mark.parametrize("turns", [False, True])
@pytest.mark.parametrize("restart_at", [-1, 7])
@pytest.mark.parametrize("copies", [False, True])  # True: as a GPU needs it
def test_rows_are_learned_from_with_what_their_actor_saw(turns: bool, restart_at: int, copies: bool) -> None:
    staging, compared = Staging(torch.device("cpu"), copies=copies), 0
    for block, saw in played(turns, restart_at):
        obs = learned_from(block, staging).fields["obs"].numpy()
        for column, (slot, row0) in enumerate(zip(block.slot, block.row0, strict=True)):
            for row in range(STEPS + 1):
                np.testing.assert_array_equal(obs[row, column], saw[int(slot), int(row0) + row])
                compared += 1
    assert compared > 100


def test_a_block_holds_each_frame_once() -> None:
    block, _ = next(played(False))
    assert block.fields["obs"].shape == (STEPS + STACK, SLOTS, *FRAME)


def test_a_stack_is_the_first_axis() -> None:
    with pytest.raises(ValueError, match="first axis"):
        Box((84, 84, 4), "uint8", stack=4)


def test_the_frames_of_ale_can_be_rebuilt() -> None:
    from rlctl_agents import envs

    env = envs.make("ALE/Pong-v5", envs=2, seeds=[0, 1], preset="atari", max_episode_steps=7)
    schema = Impala.schema(Settings(unroll_length=STEPS), Network(), env.spaces)
    writer, columns, compared = SegmentWriter(schema, 2), allocate_memory(schema, 2), 0
    decisions, seen = env.reset(), []
    for step in range(24):
        seen.append(decisions.obs["obs"].copy())
        block = writer.observe(decisions, {})
        if block is not None:
            header = SegmentHeader("r", 1, "a", 0, "l", ModelRef("main", 0, 0), [], [], Ledger())
            columns.copy_in(SegmentBlock(header, block.version, block.fields), 0, 2, column_axes(schema))
            np.testing.assert_array_equal(columns.fields["obs"], np.stack(seen[-STEPS - 1 :]))
            columns.clear()
            compared += 1
        action = np.full(2, step % 6)
        writer.record({"action": action, "log_prob": np.zeros(2, np.float32)}, 0)
        decisions = env.step(decisions.slot, {"action": action})
    env.close()
    assert compared == 4
