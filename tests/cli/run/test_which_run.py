"""Which run a verb means, and on which target it looks."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Rlctl
from tests.support.memory import MemoryBackend


def test_without_a_name_it_is_the_only_live_run(rlctl: Rlctl) -> None:
    rlctl.up(run="old")
    rlctl("down", "old")
    rlctl.up()
    assert rlctl("status", "-o", "json").json["run"] == "pole"


def test_without_a_live_run_it_is_the_only_one(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl("down")
    assert rlctl("status", "-o", "json").json["run"] == "pole"


@pytest.mark.parametrize("verb", [["status"], ["logs"], ["wait"], ["scale", "actor=3"], ["restart", "actor"], ["down"]])
def test_several_live_runs_are_listed_with_2(rlctl: Rlctl, verb: list[str]) -> None:
    rlctl.up()
    rlctl("up", rlctl.spec, "-d", "--set", "run=other")
    result = rlctl(*verb)
    assert result.code == 2
    assert "pole (running)" in result.err
    assert "other (running)" in result.err
    writes = rlctl.backend.writes
    assert rlctl(*verb, "-o", "json").code == 2
    assert rlctl.backend.writes == writes


def test_a_name_that_nobody_has_is_2_with_the_closest(rlctl: Rlctl) -> None:
    rlctl.up()
    result = rlctl("status", "pol")
    assert result.code == 2
    assert "did you mean pole?" in result.err


def test_the_run_may_be_an_argument_or_an_option_but_not_two(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl("up", rlctl.spec, "-d", "--set", "run=other")
    assert rlctl("status", "pole").code == 0
    assert rlctl("status", "--run", "pole").code == 0
    assert rlctl("status", "pole", "--run", "other").code == 2


def test_the_environment_may_name_run_and_target(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl("up", rlctl.spec, "-d", "--set", "run=other")
    rlctl.environ["RLCTL_RUN"] = "other"
    assert rlctl("status", "-o", "json").json["run"] == "other"
    assert rlctl("status", "pole", "-o", "json").json["run"] == "pole"
    rlctl.environ["RLCTL_TARGET"] = "kubernetes"
    assert rlctl("status").code == 2


def test_a_run_is_looked_for_where_it_was_recorded(rlctl: Rlctl) -> None:
    elsewhere = MemoryBackend(now=rlctl.now)
    rlctl.targets["elsewhere"] = lambda: elsewhere
    rlctl.backend, local = elsewhere, rlctl.backend
    rlctl.up()  # `local` now names the other backend
    rlctl.backend = local
    index = Path(rlctl.folder / "state" / "rlctl" / "index")
    index.mkdir(parents=True)
    (index / "pole.json").write_text(json.dumps({"run": "pole", "uid": "0", "target": "elsewhere", "storage": "/x"}))
    assert rlctl("status", "pole").code == 0
    assert rlctl("status", "pole", "-t", "local").code == 2
    assert rlctl("status").code == 0, "without a name every target is asked"
    refused = rlctl("up", rlctl.spec, "-d")
    assert refused.code == 5
    assert "recorded for target elsewhere" in refused.err


def test_an_index_that_cannot_be_read_is_as_none(rlctl: Rlctl) -> None:
    index = Path(rlctl.folder / "state" / "rlctl" / "index")
    index.mkdir(parents=True)
    (index / "pole.json").write_text("{")
    rlctl.up()
    assert rlctl("status", "pole").code == 0


def test_an_unknown_target_says_what_there_is(rlctl: Rlctl) -> None:
    result = rlctl("status", "-t", "kubernetes")
    assert result.code == 2
    assert "not built yet" in result.err
    assert "local" in result.err
