"""Rights to read, how often, and for how long: on this machine, behind a proxy of it, with tokens good and bad."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from rlctl_ci.core.service import Service
from rlctl_ci.store.people import SCOPES
from rlctl_ci.web.app import READY_LOOKS_PER_MINUTE, make
from rlctl_ci.web.limits import streams
from tests.ci.web.test_http import OURS, config, hook, http, service

__all__ = ["http", "service"]
READ = ("/index.json", "/api/v1/builds", "/api/v1/builds/1/log", "/metrics", "/live", "/feed.atom", "/badge/pole.svg")
FORM = {"accept": "text/html", "content-type": "application/x-www-form-urlencoded"}


@contextmanager
def served(folder: Path, clock: Callable[[], float] = lambda: 0.0, **fields: Any) -> Iterator[tuple[Service, Any]]:
    """A service, and a client that asks it from this machine."""
    service = Service(config(folder, **fields), lambda project, service: {})
    try:
        yield service, TestClient(make(service, clock), base_url=OURS, client=("127.0.0.1", 1), follow_redirects=False)
    finally:
        service.close()


@pytest.mark.parametrize("declared", [{"hosts": ["ci.example.org"]}, {"behind_tls": True}])
def test_behind_a_proxy_on_this_machine_nothing_is_read_without_a_token(
    tmp_path: Path, declared: dict[str, Any]
) -> None:
    with served(tmp_path, **declared) as (service, http):
        hook(http)
        for path in READ:
            assert http.get(path).status_code == 401, f"{path}, as nginx sends it: with the host of loopback"
        mine = {"authorization": f"Bearer {service.people.issue('ana', ['read'])}"}
        assert http.get("/index.json", headers=mine).status_code == 200


def test_a_status_that_is_public_is_read_behind_a_proxy_too(tmp_path: Path) -> None:
    with served(tmp_path, hosts=["ci.example.org"], public_status=True) as (_, http):
        assert http.get("/index.json", headers={"host": "ci.example.org"}).status_code == 200


def test_a_push_is_taken_whatever_strangers_send_from_the_same_address(tmp_path: Path) -> None:
    with served(tmp_path, hooks_per_minute=2) as (_, http):
        bad = {"X-Hub-Signature-256": "sha256=" + "0" * 64}
        assert {hook(http, **bad).status_code for _ in range(25)} == {401}
        assert {http.get("/healthz").status_code for _ in range(25)} == {200}, "nor is a probe refused"
        assert hook(http).status_code == 202


def test_who_reads_too_much_is_slowed_down_and_no_other(tmp_path: Path) -> None:
    with served(tmp_path, hooks_per_minute=2) as (service, http):
        assert [http.get("/index.json").status_code for _ in range(3)] == [200, 200, 429]
        mine = {"authorization": f"Bearer {service.people.issue('ana', ['read'])}"}
        assert http.get("/index.json", headers=mine).status_code == 200, "a token has a limit of its own"
        assert [http.get("/index.json", headers=mine).status_code for _ in range(2)] == [200, 429]


def test_who_asks_whether_it_is_ready_without_end_is_told_and_the_disk_is_not_asked_as_often(tmp_path: Path) -> None:
    with served(tmp_path) as (service, http):
        looks: list[None] = []
        service.database.check = lambda: looks.append(None)  # type: ignore[method-assign]
        assert {http.get("/readyz").status_code for _ in range(READY_LOOKS_PER_MINUTE + 50)} == {200}
        assert len(looks) == READY_LOOKS_PER_MINUTE


def test_of_many_that_listen_the_oldest_ends_and_none_goes_on_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MOST", 2)
    now = [0.0]
    open_ = streams.Streams(lambda: now[0])
    with ExitStack() as stack:
        first, second = (stack.enter_context(open_.one("a")) for _ in range(2))
        assert (first(), second()) == (True, True)
        third = stack.enter_context(open_.one("a"))
        assert (first(), second(), third()) == (False, True, True)
        now[0] = streams.ENDS_AFTER_S
        assert (second(), third()) == (False, False)
    with open_.one("a") as again:
        assert again(), "those that ended hold no place"


def test_who_follows_most_makes_room_for_the_next_and_the_end_of_the_service_is_that_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "MOST", 4)
    open_ = streams.Streams(lambda: 0.0)
    with ExitStack() as stack:
        lone, *many, newest = (stack.enter_context(open_.one(source)) for source in ("a", "b", "b", "b", "c"))
        assert [each() for each in (lone, *many, newest)] == [True, False, True, True, True]
        open_.end()
        assert not any(each() for each in (lone, *many, newest))


@pytest.mark.parametrize(("path", "said"), [("/live", "event: beat"), ("/api/v1/builds/1/log", "id: 4\nevent: log")])
def test_what_goes_on_ends_after_minutes_and_tells_where_to_go_on(tmp_path: Path, path: str, said: str) -> None:
    later = itertools.count(step=streams.ENDS_AFTER_S * 0.6)
    with served(tmp_path, lambda: next(later)) as (service, http):
        hook(http)
        service.log(1).write_text("one\n")
        answer = http.get(path, params={"since": service.reading.mark()}, headers={"accept": "text/event-stream"})
        assert said in answer.text
        assert "event: end" not in answer.text, "the build goes on"


def test_a_token_that_is_not_known_is_said_to_be_so_and_reads_what_anybody_may(http: TestClient) -> None:
    stale = {"authorization": "Bearer rlctl_ci_of_another_service"}
    assert http.get("/api/v1/builds", headers=stale).status_code == 200
    for headers, why in ((stale, "this token is not known, or no longer valid"), ({}, "a token is needed")):
        answer = http.post("/api/v1/projects/pole/pause", headers=headers)
        assert (answer.status_code, answer.json()["error"]) == (401, why)


BUTTONS = {"pause": "deploy", "rollback": "deploy", "resume": "deploy", "cancel": "trigger", "retry": "trigger"}


@pytest.mark.parametrize("scope", ["read", "trigger", "deploy", "admin"])
def test_only_those_see_a_button_who_may_press_it(service: Service, http: TestClient, scope: str) -> None:
    hook(http)
    hook(http, path="/hooks/github/pole", delivery="2")
    service.people.pause("lab", "not now")
    http.post("/sign-in", data={"token": service.people.issue("ana", ["read", scope])})
    page = http.get("/").text + http.get("/builds/1").text
    service.queue.cancel(1, "no")
    page += http.get("/builds/1").text
    shown = {verb for verb in BUTTONS if f'/{verb}"' in page}
    assert shown == {verb for verb, needed in BUTTONS.items() if scope in (needed, "admin")}
    assert "/sign-out" in page


def test_a_form_of_somebody_who_may_not_is_answered_by_a_page(service: Service, http: TestClient) -> None:
    http.post("/sign-in", data={"token": service.people.issue("ana", ["read"])})
    answer = http.post("/projects/pole/pause", data={"csrf": "x"}, headers=FORM)
    assert answer.status_code == 403
    assert answer.text.startswith("<!doctype html>")
    assert "rlctl ci token NAME --scope deploy" in answer.text


def test_a_form_of_a_session_that_has_ended_says_so(service: Service, http: TestClient) -> None:
    http.post("/sign-in", data={"token": service.people.issue("ana", ["admin"])})
    service.people.revoke("ana")
    answer = http.post("/projects/pole/pause", data={"csrf": "x"}, headers=FORM)
    assert (answer.status_code, "This session has ended" in answer.text) == (401, True)


def test_who_signs_in_learns_which_scopes_there_are(http: TestClient) -> None:
    text = http.get("/sign-in").text
    assert "rlctl ci token NAME --scope SCOPE" in text
    assert all(f" {scope} " in text or f" {scope}," in text for scope in SCOPES)
