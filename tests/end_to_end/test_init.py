"""A run that begins from another one's policy, and goes on from its own when it is started again."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from tests.end_to_end.conftest import Cli

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

SMALL = {
    "env": {"id": "CartPole-v1"},
    "algorithm": {"name": "impala", "batch_size": 320},
    "roles": {"actor": {"envs": 16}},
    "evaluation": {"episodes": 5, "envs": 5},
    "stop": {"agent_steps": 2000},
}


def test_a_run_begins_with_the_weights_of_another_and_resumes_from_its_own(cli: Cli) -> None:
    cli("up", cli.spec("first", **SMALL))
    cli("pull", "first@best", "model")
    still = {**SMALL, "algorithm": {"name": "impala", "batch_size": 320, "lr": 1e-30}}  # weights stay, but for zeros
    parts = ["torso", "value_torso", "policy"]
    spec = cli.spec("second", **still, init={"run": "first@best", "parts": parts})
    checked = cli("lint", spec)
    assert "begins from first@best: version " in checked.stderr
    begun = cli("up", spec)
    assert "begins from first@best: version " in begun.stderr
    cli("down", "first", "--volumes", "--yes")
    cli("pull", "second@last", "after")

    given, after = (load_file(cli.folder / name / "policy.safetensors") for name in ("model", "after"))
    taken = {name for name in given if name.partition(".")[0] in parts}
    assert taken
    assert all(torch.allclose(given[name], after[name], rtol=0.0, atol=1e-20) for name in taken)
    assert not torch.equal(given["value.weight"], after["value.weight"])
    status = cli.status("second")
    assert status["init"]["model"] == "first@best"
    assert status["init"]["parts"] == parts
    assert status["resumed"] is None

    cli("up", spec, "--set", "stop.agent_steps=4000")  # the other run is gone
    status = cli.status("second")
    assert status["resumed"]["steps"] >= 2000
    assert status["totals"]["consumed_steps"] >= 4000
    events = [json.loads(line) for line in (cli.root("second") / "results" / "events.jsonl").read_text().splitlines()]
    assert [one["text"] for one in events if one["kind"] == "init"] == [f"the run begins from {status['init']['text']}"]
    assert "began from" in cli("status", "second").stdout

    wide = cli.spec("third", **{**SMALL, "model": {"hidden": [32, 64]}}, init={"run": "./model"})
    refused = cli("up", wide, exit_code=3)
    assert "float32 [64, 4] in first@best, and float32 [32, 4] in this network" in refused.stderr
    assert refused.stderr.count("in this network") == 6, "weights and bias of both torsos"
    cli("status", "third", exit_code=2)

    debugged = cli("debug", cli.spec("fourth", **SMALL, init={"run": "./model"}), "--updates", "1", "--episodes", "0")
    assert "begins from ./model: all parts" in debugged.stderr
    missing = cli("debug", cli.spec("fifth", **SMALL, init={"run": "none"}), "--updates", "1", exit_code=3)
    assert "init.run: there is no run none on this machine" in missing.stderr
