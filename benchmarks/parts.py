"""One part of the work alone, in a process of its own: `python -m benchmarks.parts PART TASK SECONDS [DEVICE]`.

Prints one JSON line: agent steps, seconds, CPU seconds. Parts: simulator, inference, learner, transport. Every one is
the product's own code with the settings of the whole (benchmarks/peers/contenders.py), one compute thread. DEVICE is
where the learner computes: cpu, cuda, or "copies", which is the way of a batch to a GPU taken on a CPU.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from benchmarks import wire
from benchmarks.peers.contenders import OURS
from rlctl.spec.schema import Spec
from rlctl_agents.acting.bootstrap import make_algorithm, make_env
from rlctl_agents.acting.policy_player import NetworkPolicy
from rlctl_agents.experience.batching import column_axes
from rlctl_agents.experience.segment_writer import FinishedBlock, SegmentWriter
from rlctl_agents.experience.staging import Staging
from rlctl_agents.training.trainer import Trainer
from rlctl_agents.types.experience import Ledger, SegmentBlock, SegmentHeader

PARTS = ("simulator", "inference", "learner", "transport")
WARM = 0.2
"""Warm-up before counting begins, as a share of the seconds."""


class Part(NamedTuple):
    """Work done by one part."""

    steps: float
    wall_s: float
    cpu_s: float
    bytes_copied: float = 0.0
    began_s: float = 0.0  # on the monotonic clock, which all processes share


def spec_of(task: str) -> Spec:
    return Spec.model_validate({"run": "part", **OURS[task]})


def repeat(step: Callable[[], int], seconds: float) -> Part:
    """Call it for that long after a warm-up; it says how many agent steps one call was."""
    until = time.perf_counter() + WARM * seconds
    while time.perf_counter() < until:
        step()
    began, cpu, steps = time.monotonic(), time.process_time(), 0
    while time.monotonic() < began + seconds:
        steps += step()
    return Part(steps, time.monotonic() - began, time.process_time() - cpu, began_s=began)


def simulator(task: str, seconds: float) -> Part:
    """The environment with random actions."""
    spec = spec_of(task)
    count = spec.roles.actor.envs
    env = make_env(spec, count)
    rng = np.random.default_rng(0)
    decisions = env.reset(list(range(count)))
    actions = rng.integers(0, env.spaces.action.n, (64, count))  # type: ignore[union-attr]
    at = 0

    def step() -> int:
        nonlocal decisions, at
        at += 1
        decisions = env.step(decisions.slot, {"action": actions[at % 64]})
        return int(decisions.slot.size)

    return repeat(step, seconds)


def inference(task: str, seconds: float) -> Part:
    """The policy on the same observations again and again, action sampling included."""
    spec = spec_of(task)
    count = spec.roles.actor.envs
    env = make_env(spec, count)
    decisions = env.reset(list(range(count)))
    algorithm = make_algorithm(spec, "main", env.spaces)
    player = NetworkPolicy(algorithm, np.arange(count), seed=0, rows=spec.policy().algorithm.unroll_length)

    def step() -> int:
        player.act(decisions)
        return count

    return repeat(step, seconds)


def recorded(spec: Spec, device: str = "cpu") -> tuple[FinishedBlock, Trainer, Staging]:
    """One block of real experience, and the trainer and staging that learn from it."""
    count = spec.roles.actor.envs
    env = make_env(spec, count)
    decisions = env.reset(list(range(count)))
    algorithm = make_algorithm(spec, "main", env.spaces)
    config = spec.policy().algorithm
    schema = type(algorithm).schema(config, spec.policy().model, env.spaces)
    player = NetworkPolicy(algorithm, np.arange(count), seed=0, rows=config.unroll_length)
    writer = SegmentWriter(schema, count)
    while True:
        block = writer.observe(decisions, player.state(decisions.slot))
        if block is not None:
            env.close()
            break
        chosen = player.act(decisions)
        writer.record(chosen.action | chosen.record, 0)
        decisions = env.step(decisions.slot, dict(chosen.action))
    there = torch.device("cpu" if device == "copies" else device)
    staging = Staging(there, copies=device == "copies")
    return block, Trainer(algorithm, policy="main", lineage=0, device=there), staging


def learner(task: str, seconds: float, device: str = "cpu") -> Part:
    """Batches in memory, learned from again and again; on a GPU one is on its way while the other is learned from."""
    spec = spec_of(task)
    block, learning, staging = recorded(spec, device)
    config = spec.policy().algorithm
    algorithm = make_algorithm(spec, "main", make_env(spec, 1).spaces)
    schema = type(algorithm).schema(config, spec.policy().model, make_env(spec, 1).spaces)
    streams = config.batch_size // config.unroll_length
    header = SegmentHeader(
        run="", term=0, boot="", sequence=0, receiver="", model=learning.ref, stream=block.slot.tolist(),
        row0=block.row0.tolist(), ledger=Ledger(),
    )  # fmt: skip
    segment = SegmentBlock(header, block.version, block.fields)
    batches = [staging.allocate(schema, streams) for _ in range(2)]
    for columns in batches:
        while columns.used < streams:
            columns.copy_in(segment, 0, min(block.slot.size, streams - columns.used), column_axes(schema))
    if device == "cuda":
        learning.compile(staging.batch(batches[0]))

    staging.begin(batches[0])

    def step() -> int:
        now, coming = batches
        staging.begin(coming)
        batches.reverse()
        return int(learning.update(staging.batch(now)).lag_versions.size)

    done = repeat(step, seconds)
    size = sum(values.nbytes for values in (*batches[0].fields.values(), batches[0].version))
    return done._replace(bytes_copied=0.0 if device == "cpu" else size * done.steps / (streams * config.unroll_length))


def transport(task: str, seconds: float) -> Part:
    """The same block from one process to another over the wire, both ends counted."""
    spec = spec_of(task)
    block, *_ = recorded(spec)
    algorithm = make_algorithm(spec, "main", make_env(spec, 1).spaces)
    schema = type(algorithm).schema(spec.policy().algorithm, spec.policy().model, make_env(spec, 1).spaces)
    sent = wire.Blocks(schema, block.version, block.fields)
    ipc, few = wire.Variant("ipc"), 50
    messages = math.ceil(few * seconds / wire.transfer_of(sent, ipc, few).wall_s)
    found = wire.transfer_of(sent, ipc, messages)
    return Part(messages * block.version.size, found.wall_s, found.cpu_s)


def main(part: str, task: str, seconds: float, device: str = "cpu") -> None:
    torch.set_num_threads(1)
    work = {"simulator": simulator, "inference": inference, "learner": learner, "transport": transport}[part]
    found = work(task, seconds, device) if work is learner else work(task, seconds)
    print(json.dumps(found._asdict()))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), *sys.argv[4:])
