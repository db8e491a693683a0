"""`python -m benchmarks.scaling.experience RUN_FILE OUT`: writes spaces and schema of a run's environment as JSON, for
actors that do without torch."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec

from rlctl.spec.schema import Spec
from rlctl_agents import algorithms, envs
from rlctl_agents.types.control import Experience


def found(spec: Spec) -> Experience:
    """Make one environment, and ask it and the algorithm."""
    env = envs.make_of(spec.env.model_dump(), envs=1, seeds=[spec.seed % 2**31])
    try:
        return Experience(env.spaces, algorithms.schema_of(spec, env.spaces, "main"), env.frame_skip)
    finally:
        env.close()


if __name__ == "__main__":
    run_file, out = map(Path, sys.argv[1:])
    out.write_bytes(msgspec.json.encode(found(Spec.model_validate(json.loads(run_file.read_bytes())["spec"]))))
