"""A run with an environment that fails in the middle of an episode, and the command that plays it again."""

from __future__ import annotations

import json

import pytest

from tests.end_to_end.conftest import Cli
from tests.end_to_end.test_debug import LIGHTS

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

# never at its first step: an episode that has recorded no step of its own cannot differ from a repetition
FAILS = 'assert self.now == 1 or self.np_random.random() < 0.99, "the lamp is broken"'


def test_a_failure_names_the_command_that_plays_its_episode_again_up_to_the_environments_own_line(cli: Cli) -> None:
    file = cli.folder / "lights.py"
    file.write_text(LIGHTS % FAILS)
    spec = cli.spec(
        "lights", code={"path": "."}, env={"id": "lights:Lights"}, roles={"actor": {"replicas": 1, "envs": 4}},
        algorithm={"name": "impala", "unroll_length": 5, "batch_size": 80}, stop={"agent_steps": 10**8},
        evaluation={"episodes": 4},
    )  # fmt: skip
    failed = cli("up", spec, exit_code=7, timeout_s=240)
    command = "play it again: rlctl repro lights "
    failure = cli.status("lights")["failure"]["text"]
    said, _, rest = failure.partition(command)
    name = rest.split()[0]  # then how often it was started again
    assert "the lamp is broken (lights:Lights, seed " in said
    assert command + name in failed.stderr + failed.stdout
    assert command + name in cli("logs", "--grep", "play it again", "--run", "lights").stdout

    told = json.loads(cli("repro", "lights", "-o", "json").stdout)["episodes"]
    assert name in [one["name"] for one in told if one["kind"] == "crash" and one["playable"]]
    again = cli("repro", "lights", name, exit_code=7)
    assert f'{file}", line ' in again.stdout
    assert "AssertionError: the lamp is broken" in again.stdout
    assert ", as recorded: step raised AssertionError: the lamp is broken" in again.stdout.splitlines()[-1]

    file.write_text(LIGHTS % "self.np_random.random()")
    mended = json.loads(cli("repro", name, "--run", "lights", "-o", "json").stdout)
    assert (mended["result"], mended["differences"]) == ("passed", ["module lights has changed since"])
    file.write_text(LIGHTS % "obs = obs / 2")
    other = cli("repro", "lights", name, exit_code=1)
    assert f"{name} of run lights diverged at step 1 of " in other.stdout
    assert "module lights has changed since" in other.stdout
    missing = cli("repro", "lights", "actor/0@999", exit_code=2)
    assert f"{name} (crash)" in missing.stderr
