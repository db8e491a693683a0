"""`rlctl profile` on the memory target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlctl.errors import RlctlError
from tests.cli.clusters import Clusters
from tests.cli.conftest import Rlctl

ID = "learner-0-20261121T040000Z"
COLLAPSED = (
    "MainThread;run (learner.py:1);wait (threading.py:2) 2500000\nMainThread;run (learner.py:1) 7500000\n"
    "reports;wait (threading.py:2) 100000\n"
)
ORDERED = {"id": ID, "process": "learner/0", "seconds": 10.0, "within_s": 42.0}
WAITING: dict[str, Any] = {"id": ID, "process": "learner/0", "state": "waiting", "why": ""}
DONE = WAITING | {
    "state": "done", "seconds": 10.0, "samples": 998, "threads": {"MainThread": 7.4, "reports": 0.1},
    "files": [f"results/profiles/{ID}.svg", f"results/profiles/{ID}.collapsed"],
    "svg": "<svg/>", "collapsed": COLLAPSED,
}  # fmt: skip


def up(rlctl: Rlctl, *answers: dict[str, Any]) -> None:
    rlctl.up()
    rlctl.backend.answer("pole", "/profile", ORDERED)
    rlctl.backend.answer("pole", f"/profiles?id={ID}", *answers)


def test_a_profile_says_what_takes_time_and_where_the_files_lie(rlctl: Rlctl) -> None:
    up(rlctl, WAITING, WAITING, DONE)
    result = rlctl("profile", "learner", "--seconds", "10")
    assert result.code == 0, result.err
    state = rlctl.backend.find("pole")
    assert state is not None
    assert result.out.splitlines() == [
        "learner/0, 10.0 s, 998 samples, 7.5 s of CPU",
        "  75 %  run (learner.py:1)",
        "  25 %  wait (threading.py:2)",
        f"{state.storage}/results/profiles/{ID}.svg",
        f"{state.storage}/results/profiles/{ID}.collapsed",
    ]
    assert result.err == "looking at learner/0 for 10 s\n"
    assert rlctl.backend.posts("pole") == [("/profile", {"role": "learner", "index": None, "seconds": 10.0})]


def test_cpu_of_threads_that_libraries_start_is_part_of_it(rlctl: Rlctl) -> None:
    up(rlctl, DONE | {"threads": {"MainThread": 7.4, "native threads": 12.0}})
    first = rlctl("profile", "learner").out.splitlines()[0]
    assert first == "learner/0, 10.0 s, 998 samples, 19.4 s of CPU, 12.0 s of it in native threads"


def test_files_are_copied_where_they_are_wanted_and_json_names_them(rlctl: Rlctl) -> None:
    up(rlctl, DONE)
    folder = rlctl.folder / "graphs"
    result = rlctl("profile", "learner/0", "--write", str(folder), "-o", "json")
    assert result.code == 0, result.err
    assert result.json == {
        "apiVersion": "rlctl/v1", "run": "pole", "process": "learner/0", "seconds": 10.0, "samples": 998,
        "cpu_s": {"MainThread": 7.4, "reports": 0.1}, "stored": DONE["files"],
        "files": [str(folder / f"pole-{ID}.svg"), str(folder / f"pole-{ID}.collapsed")],
    }  # fmt: skip
    assert (folder / f"pole-{ID}.svg").read_text() == "<svg/>"
    assert (folder / f"pole-{ID}.collapsed").read_text() == COLLAPSED


def test_files_that_the_volume_did_not_take_come_into_this_folder(
    rlctl: Rlctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    up(rlctl, DONE | {"files": [], "why": "cannot be stored in results/profiles: No space left on device"})
    monkeypatch.chdir(rlctl.folder)
    result = rlctl("profile", "learner")
    assert result.code == 0
    assert "warning: learner/0: cannot be stored in results/profiles: No space left" in result.err
    assert (Path.cwd() / f"pole-{ID}.svg").read_text() == "<svg/>"


def test_what_was_seen_is_said_where_no_file_can_be_written(rlctl: Rlctl) -> None:
    up(rlctl, DONE | {"files": [], "why": "cannot be stored in results/profiles: No space left on device"})
    (rlctl.folder / "full").write_text("")
    result = rlctl("profile", "learner", "--write", str(rlctl.folder / "full" / "below"))
    assert result.code == 2
    assert "name another with --write DIR" in result.err
    assert result.out.splitlines()[:2] == ["learner/0, 10.0 s, 998 samples, 7.5 s of CPU", "  75 %  run (learner.py:1)"]
    assert "No space left" in result.err
    assert "not a directory" in result.err


def test_from_a_cluster_the_files_come_into_this_folder(rlctl: Rlctl, monkeypatch: pytest.MonkeyPatch) -> None:
    clusters = Clusters(rlctl)
    clusters.up()
    clusters.here.answer("pole", "/profile", ORDERED)
    clusters.here.answer("pole", f"/profiles?id={ID}", DONE)
    monkeypatch.chdir(rlctl.folder)
    result = rlctl("profile", "learner")
    assert result.code == 0, result.err
    assert str(rlctl.folder / f"pole-{ID}.svg") in result.out.splitlines()
    assert (rlctl.folder / f"pole-{ID}.collapsed").read_text() == COLLAPSED


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["cook"], "'cook' is not ROLE or ROLE/INDEX"),
        (["actor/x"], "'actor/x' is not ROLE or ROLE/INDEX"),
        (["inference"], "'inference' is not ROLE"),
        (["actor/2"], "run pole has no actor/2: the last is actor/1"),
        (["actor", "--seconds", "0"], "--seconds must be above 0"),
        (["actor", "--seconds", "601"], "--seconds must be above 0 and at most 600"),
        (["actor", "--seconds", "nan"], "--seconds must be above 0"),
        ([], "Missing argument"),
    ],
)
def test_what_the_run_has_not_is_a_usage_error(rlctl: Rlctl, arguments: list[str], said: str) -> None:
    rlctl.up()
    result = rlctl("profile", *arguments)
    assert result.code == 2
    assert said in result.err
    assert rlctl.backend.posts("pole") == []


def test_a_run_that_is_over_has_nothing_to_look_at(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl("down")
    result = rlctl("profile", "learner")
    assert result.code == 5
    assert "only a live run" in result.err


def test_a_process_that_does_not_run_or_ends_meanwhile_is_a_no(rlctl: Rlctl) -> None:
    up(rlctl, WAITING | {"state": "failed", "why": "learner/0 ended meanwhile"})
    result = rlctl("profile", "learner")
    assert (result.code, "learner/0 ended meanwhile" in result.err) == (1, True)
    rlctl.backend.manager_refuses = "the manager of run pole refused POST /profile: no actor/1 runs now"
    result = rlctl("profile", "actor/1")
    assert (result.code, "no actor/1 runs now" in result.err) == (RlctlError.exit_code, True)


def test_a_manager_that_never_says_what_became_of_it_is_a_time_out(rlctl: Rlctl) -> None:
    up(rlctl, WAITING)
    assert rlctl("profile", "learner").code == 6
    rlctl.backend.silence("pole")
    assert rlctl("profile", "learner").code == 4
