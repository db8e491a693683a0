"""`history` and `rollback`: what was applied, and back to it."""

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from rlctl.backends.base import Applied
from tests.cli.clusters import DIGEST, Clusters
from tests.cli.conftest import Rlctl


@pytest.fixture
def changed(rlctl: Rlctl) -> Rlctl:
    """A run with three revisions."""
    rlctl.up()
    for at_s, rate in ((60, "2e-3"), (120, "4e-3")):
        rlctl.time_s = at_s
        rlctl("up", rlctl.spec, "-d", "--set", f"algorithm.lr={rate}")
    rlctl.report()
    return rlctl


def rate(rlctl: Rlctl) -> float:
    state = rlctl.backend.find("pole")
    assert state is not None
    return float(state.spec["algorithm"]["lr"])


def test_history_lists_revisions_newest_first_and_when(changed: Rlctl) -> None:
    result = changed("history", "--utc")
    assert result.code == 0
    rows = [line.split() for line in result.out.splitlines()]
    assert rows[0] == ["REVISION", "WHEN", "WHO", "RLCTL", "IMAGES", "NOTE"]
    assert [row[0] for row in rows[1:]] == ["3", "2", "1"]
    assert rows[1][2] == "04:02:00Z"
    told = changed("history", "-o", "json").json["revisions"]
    assert [entry["revision"] for entry in told] == [3, 2, 1]
    assert told[2]["spec"]["algorithm"]["lr"] == 1e-3


def test_history_names_the_images_by_their_digest(rlctl: Rlctl) -> None:
    clusters = Clusters(rlctl)
    clusters.up()
    assert f"core {DIGEST[7:19]}, actor {DIGEST[7:19]}" in rlctl("history", "pole").out
    images = rlctl("history", "pole", "-o", "json").json["revisions"][0]["images"]
    assert images["core"].endswith(DIGEST)


def test_an_up_that_changes_nothing_is_no_revision(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl.up()
    assert len(rlctl("history", "-o", "json").json["revisions"]) == 1


def test_rollback_goes_to_the_one_before_as_a_new_revision(changed: Rlctl) -> None:
    result = changed("rollback", "-o", "json")
    assert result.code == 0
    assert rate(changed) == 2e-3
    assert (result.json["from"], result.json["to"]) == (3, 2)
    assert [entry["object"] for entry in result.json["applied"] if entry["what"] == "restarted"] == ["learner/0"]
    told = changed("history", "-o", "json").json["revisions"]
    assert [entry["revision"] for entry in told] == [4, 3, 2, 1]
    assert told[0]["note"] == "rollback to 2"


def test_rollback_to_a_number_and_back_again(changed: Rlctl) -> None:
    assert changed("rollback", "1").code == 0
    assert rate(changed) == 1e-3
    assert changed("rollback").code == 0
    assert rate(changed) == 4e-3


def test_rollback_tells_first_what_it_restarts_and_dry_run_stays_at_that(changed: Rlctl) -> None:
    writes = changed.backend.writes
    result = changed("rollback", "1", "--dry-run")
    assert result.code == 0
    assert result.out == "restart learner    algorithm.lr: 0.004 -> 0.001\n"
    assert changed.backend.writes == writes
    assert rate(changed) == 4e-3


def test_a_revision_that_is_not_kept_is_5_and_names_those_that_are(changed: Rlctl) -> None:
    result = changed("rollback", "9")
    assert result.code == 5
    assert "no revision 9; kept: 3, 2, 1" in result.err


def test_the_first_revision_has_none_before_it(rlctl: Rlctl) -> None:
    rlctl.up()
    result = rlctl("rollback")
    assert result.code == 5
    assert "no revision before the present one" in result.err


def test_rollback_keeps_the_live_number_of_actors(changed: Rlctl) -> None:
    changed("scale", "actor=4")
    changed("rollback")
    state = changed.backend.find("pole")
    assert state is not None
    assert state.replicas["actor"] == 4


def test_only_the_newest_revisions_are_kept(rlctl: Rlctl) -> None:
    rlctl.up()
    for number in range(2, 9):
        rlctl("up", rlctl.spec, "-d", "--set", f"algorithm.lr={number}e-3")
    told = rlctl("history", "-o", "json").json["revisions"]
    assert [entry["revision"] for entry in told] == [8, 7, 6, 5, 4]


@pytest.mark.parametrize("verb", [["history", "nobody"], ["rollback", "--run", "nobody"]])
def test_an_unknown_run_is_a_usage_error(rlctl: Rlctl, verb: list[str]) -> None:
    assert rlctl(*verb).code == 2


def test_a_rollback_that_stopped_half_way_goes_on_by_its_number(changed: Rlctl) -> None:
    """Without one it would by now go back from the revision that it has recorded itself."""
    changed.backend.partly_after = 1
    stopped = changed("rollback", "1")
    assert stopped.code == 8
    assert "run `rlctl rollback 1 --run pole` again" in stopped.err
    changed.backend.partly_after = None
    assert changed("rollback", "1", "--run", "pole").code == 0
    assert rate(changed) == 1e-3


def test_ctrl_c_of_rollback_names_the_revision_that_it_was_going_to(
    changed: Rlctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = changed.backend.rollback

    def interrupted(*words: Any) -> Iterator[Applied]:
        yield from real(*words)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(changed.backend, "rollback", interrupted)
    result = changed("rollback")
    assert result.code == 130
    assert "left pole half rolled back; rlctl rollback 2 --run pole goes on" in result.err
