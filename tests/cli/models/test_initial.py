"""`init` of a spec on the command line: looked up once, before the run is made, and looked at."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest

from rlctl.errors import PartlyApplied
from rlctl.spec.layout import Layout
from tests.cli.conftest import Rlctl
from tests.cli.models import store
from tests.cli.models.conftest import Pair


def spec(rlctl: Rlctl, **init: Any) -> str:
    return str(rlctl.write("new.yaml", f"run: new\nenv: {{id: CartPole-v1}}\ninit: {json.dumps(init)}\n"))


def test_a_new_run_begins_from_a_model_of_another_which_is_looked_up_once(pole: Rlctl) -> None:
    file = spec(pole, run="pole@best", parts=["torso", "observed"])
    up = pole("up", file, "-d")
    assert up.code == 0, up.err
    assert "begins from pole@best: version 17, learned from 1,234 agent steps; torso, observed" in up.err
    begun = pole.backend.begun_with["new"]
    assert set(begun) == {"policy.json", "policy.safetensors", "run.json"}
    assert json.loads(begun["run.json"])["model"] == "best"
    assert pole.initials[-1]["of"] == "pole@best"
    assert pole.initials[-1]["arrays"]["observed.moments.0.mean"] == "float64 [2]"

    pole.backend.files = Layout(pole.folder / "gone")  # a later `up` does not look again
    again = pole("up", file, "-d")
    assert again.code == 0, again.err
    assert "begins from" not in again.err
    assert pole.backend.begun_with["new"] == begun
    learner = next(one for one in pole.backend.documents("new") if one.name.startswith("learner-"))
    assert json.loads(learner.text)["spec"]["init"] == {"run": "pole@best", "parts": ["torso", "observed"]}


def test_what_a_run_begins_from_cannot_change(pole: Rlctl) -> None:
    assert pole("up", spec(pole, run="pole@best"), "-d").code == 0
    refused = pole("up", spec(pole, run="pole@best", parts=["torso"]), "-d")
    assert refused.code == 5
    assert "init.parts: [] -> " in refused.err
    assert "fixed for the life of a run" in refused.err


@pytest.mark.parametrize(
    ("init", "told"),
    [
        ({"run": "pol@best"}, "init.run: there is no run pol"),
        ({"run": "pole@goal"}, "init.run: run pole has no model goal; it has best, 3"),
        ({"run": "./nowhere"}, "is no folder that `rlctl pull` has made"),
        (
            {"run": "pole@best", "parts": ["tors", "head"]},
            "has no part `tors`; did you mean `torso`?; it has observed, ",
        ),
    ],
)
@pytest.mark.parametrize("verb", [("up", "-d"), ("up", "--dry-run", "server"), ("lint",)])
def test_what_is_not_there_is_told_with_its_place_before_anything_is_made(
    pole: Rlctl, init: dict[str, Any], told: str, verb: tuple[str, ...]
) -> None:
    result = pole(verb[0], spec(pole, **init), *verb[1:])
    said = result.out + result.err
    assert result.code == 3, said
    assert told in said
    assert "new.yaml:3:" in said
    assert ("`head`" in said) is ("parts" in init), "all at once"
    assert pole.backend.find("new") is None


def test_a_folder_lies_beside_the_spec_and_its_signature_is_verified(pole: Rlctl, ours: Pair, theirs: Pair) -> None:
    assert pole("pull", "pole@best", str(pole.folder / "model"), "--sign", str(ours.private)).code == 0
    refused = pole("up", spec(pole, run="./model", verify="theirs.pub"), "-d")
    assert refused.code == 1
    assert "its signature is of another key" in refused.err
    up = pole("up", spec(pole, run="./model", verify="ours.pub"), "-d")
    assert up.code == 0, up.err
    assert "begins from pole@best: version 17" in up.err
    shutil.rmtree(pole.folder / "model")
    assert pole("up", spec(pole, run="./model", verify="ours.pub"), "-d").code == 0


def test_a_folder_that_is_damaged_makes_no_run(pole: Rlctl) -> None:
    assert pole("pull", "pole@best", str(pole.folder / "model")).code == 0
    store.flip(pole.folder / "model" / "policy.safetensors")
    refused = pole("up", spec(pole, run="./model"), "-d")
    assert refused.code == 1
    assert "its bytes are not those that were stored" in refused.err
    assert pole.backend.find("new") is None


def test_parts_without_the_moments_that_they_were_trained_with_are_noted(pole: Rlctl) -> None:
    up = pole("up", spec(pole, run="pole@best", parts=["torso", "value"]), "-d")
    assert "note: init.parts takes torso without observed, the moments that it was trained with" in up.err
    assert "note: init.parts takes value without returns" in up.err


def test_a_run_that_was_made_without_its_policy_gets_it_with_the_next_up(pole: Rlctl) -> None:
    pole.backend.refuse = PartlyApplied("the policy did not reach it")
    file = spec(pole, run="pole@best")
    assert pole("up", file, "-d").code == 8
    pole.backend.begun_with.clear()
    assert pole("up", file, "-d").code == 0
    assert "new" in pole.backend.begun_with


def test_lint_asks_no_cluster_for_the_policy(pole: Rlctl, monkeypatch: pytest.MonkeyPatch) -> None:
    index = pole.folder / "state" / "rlctl" / "index"
    index.mkdir(parents=True, exist_ok=True)
    (index / "far.json").write_text('{"run": "far", "target": "kubernetes", "uid": "' + "a" * 32 + '"}')
    linted = pole("lint", spec(pole, run="far@best"))
    assert "not checked: init.run: far@best is on a cluster" in linted.err


def test_trials_of_a_sweep_begin_alike_though_a_better_model_comes_meanwhile(pole: Rlctl) -> None:
    file = pole.write(
        "swept.yaml", "run: swept\nenv: {id: CartPole-v1}\ninit: {run: pole@best}\nstop: {agent_steps: 1000}\n"
    )
    pole.at(1.0, lambda: finish(pole, "swept-1"))
    pole.at(4.0, lambda: finish(pole, "swept-2"))
    swept = pole("sweep", str(file), "--seeds", "2", "--parallel", "1")
    assert swept.code == 0, swept.err
    assert pole.backend.begun_with["swept-1"] == pole.backend.begun_with["swept-2"]


def finish(rlctl: Rlctl, run: str) -> None:
    """And the model is gone that the next trial begins with."""
    rlctl.report(run)
    rlctl.backend.files = Layout(rlctl.folder / "gone")
    rlctl.backend.finish(run, "agent_steps 1000")
