"""The tests' own home folder, and how a test that leaves it is found out."""

from __future__ import annotations

import os
from pathlib import Path

from rlctl.spec.layout import state_home
from tests.support.home import KUBECONFIG, Home, changes, listing, watched


def person(folder: Path) -> dict[str, str]:
    """The environment of a user at home, with a run of theirs and a cluster."""
    (folder / ".local/state/rlctl/index").mkdir(parents=True)
    (folder / ".local/state/rlctl/runs/mine-0123abcd/logs").mkdir(parents=True)
    (folder / ".kube").mkdir()
    (folder / ".kube/config").write_text("apiVersion: v1\n")
    state = str(folder / ".local/state")
    return {
        "HOME": str(folder),
        "XDG_STATE_HOME": state,
        "RLCTL_RUN": "mine",
        "RLCTL_TEST_CONTEXT": "made-for-tests",
        "PATH": "/bin",
    }


def test_nothing_of_the_users_environment_reaches_a_test(tmp_path: Path) -> None:
    environ = person(tmp_path)
    home = Home(environ)
    places = {name: value for name, value in environ.items() if name not in ("PATH", KUBECONFIG, "RLCTL_TEST_CONTEXT")}
    assert all(Path(value).is_relative_to(home.folder) for value in places.values()), places
    assert "RLCTL_RUN" not in environ
    assert environ["RLCTL_TEST_CONTEXT"] == "made-for-tests"
    assert environ[KUBECONFIG] == str(tmp_path / ".kube/config")
    assert home.close() == []
    assert not home.folder.exists()


def test_what_a_test_writes_in_the_users_home_is_told(tmp_path: Path) -> None:
    environ = person(tmp_path)
    home = Home(environ)
    (tmp_path / ".local/state/rlctl/index/pong.json").write_text("{}")
    (tmp_path / ".local/state/rlctl/runs/pong-4567cdef").mkdir()
    (tmp_path / ".kube/config").write_text("apiVersion: v1\nkind: Config\n")
    told = home.close()
    assert told == [
        f"changed {tmp_path}/.kube/config",
        f"made {tmp_path}/.local/state/rlctl/index/pong.json",
        f"made {tmp_path}/.local/state/rlctl/runs/pong-4567cdef",
    ]


def test_what_a_test_leaves_to_the_next_one_is_told(tmp_path: Path) -> None:
    home = Home(person(tmp_path))
    index = home.folder / "state/rlctl/index"
    index.mkdir(parents=True)
    (index / "pole.json").touch()
    assert home.close() == [f"left to the next test: {index}/pole.json"]


def test_a_run_that_the_user_left_running_may_write_on(tmp_path: Path) -> None:
    environ = person(tmp_path)
    before = listing(watched(environ))
    (tmp_path / ".local/state/rlctl/runs/mine-0123abcd/logs/actor-0.log").write_text("a line\n")
    assert changes(before, listing(watched(environ))) == []


def test_this_very_session_has_a_home_of_its_own() -> None:
    assert state_home().is_relative_to(os.environ["HOME"])
    assert Path(os.environ["HOME"]).name.startswith("rlctl-tests-")
