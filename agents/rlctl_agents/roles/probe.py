"""`python -m rlctl_agents probe`: finds spaces and schema of a run's environment and algorithm, where they are
installed.

Prints the `Experience` as JSON, for a learner with an image that lacks the simulator; or one line that says what is
wrong with the user's environment, network or algorithm, and exits 3.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pydantic

from rlctl.spec.schema import Spec
from rlctl_agents import algorithms, envs
from rlctl_agents.algorithms.base import AlgorithmError
from rlctl_agents.envs import EnvError, EnvRefused
from rlctl_agents.manager.lifecycle.stop import require_measurable
from rlctl_agents.types.control import Experience

USERS_FAULT = 3


def probe(spec: Spec, policy: str = "main") -> Experience:
    """Make one environment, reset it, and build the policy's network for it.

    Raises:
        EnvError: the environment cannot be made or reset, or an evaluation in it cannot say what `spec.stop` asks.
        AlgorithmError: algorithm, network and spaces do not fit.
    """
    env = envs.make_of(spec.env.model_dump(), envs=1, seeds=[spec.seed % 2**31])
    try:
        try:
            require_measurable(spec.stop, env.spaces.seats)
        except ValueError as fault:
            raise EnvRefused(str(fault)) from fault
        env.reset()
        experience = Experience(env.spaces, algorithms.schema_of(spec, env.spaces, policy), env.frame_skip)
        chosen = spec.policy(policy)
        algorithms.find(chosen.algorithm.name)(chosen.algorithm, chosen.model, env.spaces, seed=spec.seed)
    finally:
        env.close()
    return experience


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns its exit code: 0, or 3 after one line on stderr.

    Args:
        arguments: after the word `probe`: `--run-file FILE [--out FILE] [--policy NAME]`.
    """
    parser = argparse.ArgumentParser("rlctl_agents probe", description="Write the experience schema of a run as JSON.")
    parser.add_argument("--run-file", type=Path, required=True, help="of an actor: JSON with the key `spec`")
    parser.add_argument("--out", type=Path, help="written here instead of to stdout")
    parser.add_argument("--policy", default="main")
    options = parser.parse_args(arguments)
    try:
        spec = Spec.model_validate(json.loads(options.run_file.read_bytes())["spec"])
        experience = probe(spec, options.policy)
    except (EnvError, AlgorithmError) as error:
        return _refused(str(error))
    except (OSError, json.JSONDecodeError, KeyError, pydantic.ValidationError) as error:
        return _refused(f"{options.run_file} is no run file: {type(error).__name__}: {error}")
    text = msgspec.json.format(msgspec.json.encode(experience)) + b"\n"
    if options.out is None:
        sys.stdout.buffer.write(text)
    else:
        part = options.out.with_name(options.out.name + ".part")
        part.write_bytes(text)
        os.replace(part, options.out)
    return 0


def _refused(why: str) -> int:
    print(" ".join(why.split()), file=sys.stderr)
    return USERS_FAULT
