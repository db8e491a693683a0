"""One process that steps, acts and learns in turn: `python -m benchmarks.scaling.alone ENVS LATENCY_MS CPU_MS`.

With one environment it is the naive loop; with many, all stepped as one batch, the best that one process can do. The
same network, batch and optimizer as rlctl's runs, on the same code for acting, segments and learning. Tells its
progress as the peers do.
"""

from __future__ import annotations

import json
import os
import sys
import time

import numpy as np
import torch

from benchmarks.scaling.settings import run_spec
from rlctl.spec.schema import Spec
from rlctl_agents.acting.bootstrap import make_algorithm, make_env
from rlctl_agents.acting.policy_player import NetworkPolicy
from rlctl_agents.experience.segment_writer import SegmentWriter
from rlctl_agents.experience.staging import Staging
from rlctl_agents.training.trainer import Trainer

SAY_S = 0.25


def main(count: int, latency_ms: float, cpu_ms: float) -> None:
    torch.set_num_threads(1)
    spec = Spec.model_validate(run_spec(1, latency_ms, cpu_ms, envs=count))
    config = spec.policy().algorithm
    env = make_env(spec, count)
    algorithm = make_algorithm(spec, "main", env.spaces)
    schema = type(algorithm).schema(config, spec.policy().model, env.spaces)
    learning = Trainer(algorithm, policy="main", lineage=0, device=torch.device("cpu"))
    staging = Staging(torch.device("cpu"))
    columns = staging.allocate(schema, config.batch_size // config.unroll_length)
    player, writer = (
        NetworkPolicy(algorithm, np.arange(count), seed=0, rows=config.unroll_length),
        SegmentWriter(schema, count),
    )
    decisions = env.reset(list(range(count)))
    filled, said, told = 0, 0.0, 0
    while True:
        block = writer.observe(decisions, {})
        if block is not None:
            taken = 0
            while taken < count:
                width = min(count - taken, columns.version.shape[1] - filled)
                to, source = slice(filled, filled + width), slice(taken, taken + width)
                for name, values in columns.fields.items():
                    values[:, to] = block.fields[name][:, source]
                columns.version[:, to] = block.version[:, source]
                filled, taken = filled + width, taken + width
                if filled == columns.version.shape[1]:
                    learning.update(staging.batch(columns))
                    filled = 0
        chosen = player.act(decisions)
        writer.record(chosen.action | chosen.record, learning.version)
        decisions = env.step(decisions.slot, dict(chosen.action))
        if learning.consumed_steps > told and time.monotonic() - said > SAY_S:  # an update has just been made
            said, told = time.monotonic(), learning.consumed_steps
            line = {"at_s": said, "steps": told, "score": None}
            os.write(1, json.dumps(line).encode() + b"\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))
