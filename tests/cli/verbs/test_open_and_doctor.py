"""`open` and `doctor`."""

import signal

import pytest

from rlctl.backends.base import Check
from rlctl.errors import BackendUnreachable
from tests.cli.clusters import Clusters
from tests.cli.conftest import Rlctl


@pytest.mark.parametrize("page", ["tensorboard", "status"])
def test_open_prints_the_address_and_stays_until_ctrl_c(rlctl: Rlctl, page: str) -> None:
    rlctl.up()
    seen: list[list[str]] = []
    rlctl.at(30, lambda: (seen.append(list(rlctl.backend.forwarded)), signal.raise_signal(signal.SIGINT)))
    result = rlctl("open", page)
    assert result.code == 0
    assert result.out == f"http://127.0.0.1:12345/{page}\n"
    assert rlctl.time_s == pytest.approx(30, abs=1)
    assert seen == [[page]]
    assert rlctl.backend.forwarded == [], "it is closed again"


def test_open_as_json_is_one_document(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl.at(3, lambda: signal.raise_signal(signal.SIGINT))
    told = rlctl("open", "status", "pole", "-o", "json").json
    assert told["url"] == "http://127.0.0.1:12345/status"
    assert told["page"] == "status"


def test_a_browser_is_opened_only_on_a_terminal_that_has_one(rlctl: Rlctl) -> None:
    rlctl.up()

    def opened(*more: str, terminal: bool) -> list[str]:
        rlctl.browsed.clear()
        rlctl.at(rlctl.time_s + 1, lambda: signal.raise_signal(signal.SIGINT))
        assert rlctl("open", "status", *more, terminal=terminal).code == 0
        return list(rlctl.browsed)

    assert opened(terminal=True) == [], "a browser for the terminal would take this one away"
    rlctl.environ["DISPLAY"] = ":0"
    assert opened(terminal=True) == ["http://127.0.0.1:12345/status"]
    assert opened("--no-browser", terminal=True) == []
    assert opened(terminal=False) == []


def test_a_run_that_is_over_has_no_page(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl("down")
    assert rlctl("open", "status", "pole").code == 5
    assert rlctl("open", "curves").code == 2


def test_doctor_is_0_when_nothing_stands_in_the_way(rlctl: Rlctl) -> None:
    result = rlctl("doctor", "-o", "json")
    assert result.code == 0
    assert result.json["healthy"] is True
    assert list(result.json["targets"]) == ["local"]


def test_doctor_is_1_with_the_next_command_for_a_problem(rlctl: Rlctl) -> None:
    rlctl.backend.ails = [
        Check("disk", "problem", "0.1 GiB free in /data", "free some space"),
        Check("quota", "not checked", "forbidden"),
        Check("packages", "ok", "all are installed", "nothing to do"),
    ]
    result = rlctl("doctor")
    assert result.code == 1
    assert result.out.splitlines() == [
        "local",
        "  PROBLEM  disk      0.1 GiB free in /data",
        "                     next: free some space",
        "  -        quota     forbidden",
        "  ok       packages  all are installed",
    ]
    assert "1 of 3 checks found a problem" in result.err


def test_doctor_looks_at_a_cluster_when_told_to_or_when_a_run_is_there(rlctl: Rlctl) -> None:
    clusters = Clusters(rlctl)
    assert list(rlctl("doctor", "-o", "json").json["targets"]) == ["local"]
    assert clusters.made == {}
    assert rlctl("doctor", "--context", "stage").out.startswith("kubernetes, context stage, namespace team\n")
    clusters.current = "stage"
    clusters.up()
    clusters.current = "prod"
    assert rlctl("doctor").out.splitlines()[2] == "kubernetes, context stage, namespace team", "where the run is"
    assert list(rlctl("doctor", "-o", "json").json["targets"]) == ["local", "kubernetes"]


def test_clusters_that_cannot_be_asked_are_a_problem_each(rlctl: Rlctl) -> None:
    clusters = Clusters(rlctl)
    for number, context in enumerate(("stage", "prod")):
        clusters.record(f"run{number}", f"{number:032x}", context, "team")

    def nobody(context: str | None, namespace: str | None) -> object:
        raise BackendUnreachable(f"there is no context {context}")

    rlctl.targets["kubernetes"] = nobody
    result = rlctl("doctor", "-o", "json")
    assert set(result.json["targets"]) == {"local", "kubernetes", "kubernetes, context prod, namespace team"}
    assert "2 of " in result.err


def test_a_target_that_cannot_even_be_asked_is_a_problem(rlctl: Rlctl) -> None:
    def nobody(context: str | None, namespace: str | None) -> object:
        raise BackendUnreachable("target kubernetes: the package kubernetes is not installed", hint="install it")

    rlctl.targets["kubernetes"] = nobody
    result = rlctl("doctor", "-t", "kubernetes")
    assert result.code == 1
    assert "PROBLEM  access  target kubernetes: the package kubernetes is not installed" in result.out
    assert "next: install it" in result.out
