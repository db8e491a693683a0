"""One replay buffer alone: `python buffers.py WHO CASE ROWS SECONDS`; prints one JSON line.

The buffer is filled with ROWS rows, then written on and drawn from for that long each. Batches are of 512 rows. WHO of
CONTENDERS is run by this interpreter: the peers' is that of the environment `buffers` (benchmarks/peers/venvs.py), with
CleanRL's source at $SOURCE. Every peer is fed as its own trainer feeds it, ours with blocks as an actor sends them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

BATCH, STREAMS, STEPS = 512, 32, 16
SHARDS = (2, 4, 8)
FEW = 8 * STREAMS * STEPS
"""Rows of a buffer that only shows what there is without rows."""
CASES = {"vectors": ((8,), "float32"), "frames": ((4, 84, 84), "uint8")}
"""Shape and dtype of an observation."""


class Buffer(NamedTuple):
    """Functions that use a buffer. `draw` leaves its rows where `update` finds them."""

    insert: Callable[[], int]  # some rows, and how many
    draw: Callable[[], object]
    update: Callable[[], object] | None = None  # the priorities of the last draw
    index: Callable[[], object] | None = None  # only the search for the rows of a draw
    computed_bytes: int = 0  # of its arrays, as they were computed before it was made; 0: not computed


def agreed(case: str) -> Any:
    """The schema of ours."""
    from rlctl_agents.types.experience import Field, Schema

    shape, dtype = CASES[case]
    return Schema(
        STEPS,
        (
            Field("obs", dtype, shape, "row+1", frames=shape[0] if case == "frames" else 0),
            Field("first", "bool", (), "row+1"), Field("action", "int64", (), "row"),
            Field("reward", "float32", (), "row"),
            *(Field(name, "bool", (), "row") for name in ("terminated", "truncated", "valid")),
        ),
    )  # fmt: skip


def blocks(case: str) -> Callable[[int], Any]:
    """Block of all streams by its number in them, as an actor sends it; its arrays are always the same."""
    from rlctl_agents.types.experience import Ledger, ModelRef, SegmentBlock, SegmentHeader

    schema = agreed(case)
    fields: dict[str, Any] = {one.name: np.zeros(schema.block_shape(one, STREAMS), one.dtype) for one in schema.fields}
    rng = np.random.default_rng(0)
    fields["obs"][:] = rng.integers(0, 255, fields["obs"].shape[:2] + (1,) * (fields["obs"].ndim - 2))
    fields["valid"][:] = True
    fields["terminated"][STEPS // 2, ::8] = True
    fields["valid"][STEPS // 2 + 1, ::8] = fields["terminated"][STEPS // 2 + 1, ::8] = False
    fields["first"][STEPS // 2 + 2, ::8] = True
    version = np.zeros((STEPS, STREAMS), np.int64)

    def block(number: int) -> Any:
        header = SegmentHeader(
            run="", term=1, boot="b", sequence=number, receiver="", model=ModelRef("main", 0, 0),
            stream=list(range(STREAMS)), row0=[number * STEPS] * STREAMS, ledger=Ledger(),
        )  # fmt: skip
        return SegmentBlock(header, version, fields)

    return block


def rlctl(case: str, rows: int, *, prioritized: bool = True, n_step: int = 1, shards: int = 1) -> Buffer:
    from rlctl_agents.experience.replay.shard import ReplaySettings, Shard

    schema, block = agreed(case), blocks(case)
    frames = CASES[case][0][0] if case == "frames" else 0
    settings = ReplaySettings(n_step, prioritized=prioritized)
    all_of_them = [Shard(schema, settings, capacity=rows // shards, seed=number) for number in range(shards)]
    rng, number = np.random.default_rng(0), 0
    drawn: list[Any] = [{}] * shards
    errors = rng.random(BATCH).astype(np.float32)

    def insert() -> int:
        nonlocal number
        at, turn = number % shards, number // shards
        number += 1
        return all_of_them[at].insert(block(turn))

    def draw() -> None:
        if shards == 1:
            drawn[0] = all_of_them[0].draw(BATCH, drawn[0]).fields
            return
        masses = np.array([one.totals.mass for one in all_of_them])
        for at, count in enumerate(rng.multinomial(BATCH, masses / masses.sum()).tolist()):
            drawn[at] = all_of_them[at].draw(count).fields

    def update() -> None:
        for one, fields_ in zip(all_of_them, drawn, strict=True):
            one.update(fields_["slot"], fields_["generation"], errors[: fields_["slot"].size])

    def index() -> None:
        one = all_of_them[0]
        slot = one._tree.draw(np.sort(rng.random(BATCH)))
        found = one._units.outcome(slot)
        if frames:
            one._units._stack(np.stack((slot, found.after)), frames)

    computed = shards * Shard.bytes_for(schema, settings, rows // shards)
    return Buffer(insert, draw, update if prioritized else None, index if shards == 1 else None, computed)


def cpprb(case: str, rows: int) -> Buffer:
    from cpprb import PrioritizedReplayBuffer

    shape, dtype = CASES[case]
    # frames once, as in its own examples: the newest axis last
    shape, once = ((*shape[1:], shape[0]), {"stack_compress": "obs"}) if case == "frames" else (shape, {})
    made = PrioritizedReplayBuffer(
        rows, {"obs": {"shape": shape, "dtype": dtype}, "act": {"dtype": np.int64}, "rew": {}, "done": {}},
        next_of="obs", alpha=0.6, **once,
    )  # fmt: skip
    count = STREAMS * STEPS
    obs = np.zeros((count, *shape), dtype)
    step = {"obs": obs, "next_obs": obs, "act": np.zeros(count, np.int64), "rew": np.zeros(count),
            "done": np.zeros(count)}  # fmt: skip
    drawn: dict[str, Any] = {}
    errors = np.random.default_rng(0).random(BATCH)

    def insert() -> int:
        made.add(**step)
        return count

    def draw() -> None:
        drawn.update(made.sample(BATCH, beta=0.4))

    return Buffer(insert, draw, lambda: made.update_priorities(drawn["indexes"], errors))


def uniform(case: str, rows: int, who: str) -> Buffer:
    """SB3's, and CleanRL's, which began as a copy of it: a row of every environment at once."""
    import torch
    from gymnasium import spaces

    torch.set_num_threads(1)
    if who == "sb3":
        from stable_baselines3.common.buffers import ReplayBuffer
    else:
        sys.path.insert(0, os.environ["SOURCE"])
        from cleanrl_utils.buffers import ReplayBuffer
    shape, dtype = CASES[case]
    space = spaces.Box(0, 255, shape, np.dtype(dtype).type)
    # as both set it for Atari: the next observation is that of the next row
    made = ReplayBuffer(
        rows, space, spaces.Discrete(4), "cpu", STREAMS, optimize_memory_usage=case == "frames",
        handle_timeout_termination=False,
    )  # fmt: skip
    obs, nothing = np.zeros((STREAMS, *shape), dtype), np.zeros(STREAMS)
    action, infos = np.zeros((STREAMS, 1), np.int64), [{}] * STREAMS

    def insert() -> int:
        made.add(obs, obs, action, nothing, nothing, infos)
        return STREAMS

    return Buffer(insert, lambda: made.sample(BATCH))


CONTENDERS: dict[str, Callable[[str, int], Buffer]] = {
    "rlctl": rlctl,
    "rlctl, n 3": lambda case, rows: rlctl(case, rows, n_step=3),
    "rlctl, uniform": lambda case, rows: rlctl(case, rows, prioritized=False),
    **{
        f"rlctl, {shards} shards": lambda case, rows, shards=shards: rlctl(case, rows, shards=shards)
        for shards in SHARDS
    },
    "cpprb": cpprb,
    "sb3": lambda case, rows: uniform(case, rows, "sb3"),
    "cleanrl": lambda case, rows: uniform(case, rows, "cleanrl"),
}


def cpu_us(work: Callable[[], object], seconds: float) -> float:
    """CPU of one call."""
    work()
    calls, began, cpu = 0, time.perf_counter(), time.process_time()
    while not calls or time.perf_counter() < began + seconds:
        work()
        calls += 1
    return 1e6 * (time.process_time() - cpu) / calls


def main(who: str, case: str, rows: int, seconds: float) -> dict[str, float]:
    CONTENDERS[who](case, FEW)  # what it imports is there from here on
    before = resident_mib("VmRSS")
    made = CONTENDERS[who](case, rows)
    there = 0
    while there < rows:
        there += made.insert()
    at_once = made.insert()
    figures = {"inserts_per_cpu_s": 1e6 * at_once / cpu_us(made.insert, seconds)}
    draw_us = cpu_us(made.draw, seconds)
    figures |= {"cpu_us_of_draw": draw_us, "samples_per_cpu_s": 1e6 * BATCH / draw_us}
    if made.update:

        def both() -> None:
            made.draw()
            made.update()  # type: ignore[misc]

        figures["cpu_us_of_both"] = cpu_us(both, seconds)
    if made.index:
        figures["cpu_share_of_index"] = cpu_us(made.index, seconds) / draw_us
    if made.computed_bytes:
        figures["computed_mib"] = made.computed_bytes / 2**20
    peak = resident_mib("VmHWM")
    return figures | {"grown_mib": peak - before, "peak_mib": peak}


def resident_mib(which: str) -> float:
    """Resident memory: VmRSS, now; VmHWM, the largest, where getrusage begins with the peak of the process that forked
    this one."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status[which].split()[0]) / 1024


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))))
