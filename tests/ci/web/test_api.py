"""Requests to the service: numbers, ranges, pages of lists, the feed; and what it hides."""

from __future__ import annotations

import asyncio
import json
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import pytest
from starlette.testclient import TestClient

from rlctl.errors import BackendUnreachable
from rlctl_ci.core import logs
from rlctl_ci.core.logs import Log, Masker
from rlctl_ci.core.service import Service
from rlctl_ci.forges.find import FORGES
from rlctl_ci.store.records import Push
from rlctl_ci.web.app import make
from rlctl_ci.web.masked_reading import MaskedReading
from tests.ci.web.test_http import BAD_TEXT, OURS, SECRET, config, hook, http, service
from tests.ci.world import MAIN, Outside, hands, no_hands, sha

__all__ = ["http", "service"]
ATOM = "{http://www.w3.org/2005/Atom}"


@pytest.mark.parametrize("path", ["/builds/{}", "/builds/{}.json", "/api/v1/builds/{}", "/api/v1/builds/{}/log"])
@pytest.mark.parametrize("digits", [15, 16, 5000])
def test_a_number_that_no_build_has_is_a_404(http: TestClient, path: str, digits: int) -> None:
    assert http.get(path.format("9" * digits)).status_code == 404


RANGES = ["bytes=5--", "bytes=²-", "bytes=3-1", "bytes=-", "bytes=", f"bytes={'9' * 30}-", "lines=1-", "bytes=1-,2-"]


@pytest.mark.parametrize("asked", RANGES)
def test_a_range_of_another_form_is_not_looked_at(service: Service, http: TestClient, asked: str) -> None:
    hook(http)
    Log(service.log(1), 1 << 20, Masker([]))("one")
    answer = http.get("/api/v1/builds/1/log", headers={b"range": asked.encode("latin-1")})  # type: ignore[dict-item]
    assert (answer.status_code, answer.text) == (200, "one\n")
    assert "content-range" not in answer.headers


@pytest.mark.parametrize(
    ("asked", "text", "said"),
    [
        ("bytes=0-", "one\ntwo\n", "0-7/8"), ("bytes=4-", "two\n", "4-7/8"), ("bytes=0-0", "o", "0-0/8"),
        ("bytes=4-900", "two\n", "4-7/8"), ("bytes=-2", "o\n", "6-7/8"), ("bytes=-900", "one\ntwo\n", "0-7/8"),
        ("bytes=8-", "", "*/8"), ("bytes=9-12", "", "*/8"), ("bytes=-0", "", "*/8"),
    ],
)  # fmt: skip
def test_a_range_of_a_log_is_given_as_http_says(
    service: Service, http: TestClient, asked: str, text: str, said: str
) -> None:
    hook(http)
    Log(service.log(1), 1 << 20, Masker([]))("one\ntwo")
    answer = http.get("/api/v1/builds/1/log", headers={"range": asked})
    assert (answer.status_code, answer.text) == (206 if text else 416, text)
    assert answer.headers["content-range"] == f"bytes {said}"
    assert answer.headers["content-length"] == str(len(text))


def test_a_log_of_several_mebibytes_is_given_whole_and_by_offset_piece_by_piece(
    service: Service, http: TestClient
) -> None:
    hook(http)
    assert http.get("/api/v1/builds/1/log").text == "", "nothing has been said yet"
    lines = "".join(f"{number:07d} {'x' * 55}\n" for number in range(50_000))
    service.log(1).write_text(lines)
    whole = http.get("/api/v1/builds/1/log")
    assert whole.text == lines
    assert whole.headers["x-next-offset"] == whole.headers["content-length"] == str(len(lines))
    pieces, offset = "", 0
    while more := http.get("/api/v1/builds/1/log", params={"offset": offset}).text:
        assert len(more) <= 1 << 20
        pieces += more
        offset += len(more)
    assert pieces == lines
    page = http.get("/builds/1").text
    assert "the last 96 KiB of 3.1 MiB" in page
    assert len(page) < 150_000
    assert 'href="/api/v1/builds/1/log"' in page


def test_a_part_of_a_log_ends_with_a_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("one\ntwo\nthree\n")
    assert logs.read(path, 0, 10) == (b"one\ntwo\n", 8)
    assert logs.read(path, 8, 10) == (b"three\n", 14)
    assert logs.read(path, 8, 3) == (b"thr", 11), "a line that is longer than a part comes in several"


def test_builds_are_listed_page_by_page(service: Service, http: TestClient) -> None:
    for number in range(1, 6):
        service.queue.accept("pole", Push(MAIN, sha(number)), recipe="r", delivery=f"{number}")
    service.queue.accept("lab", Push(MAIN, sha(1)), recipe="r", delivery="1")
    assert pages(http, "builds", "id") == [[5, 4], [3, 2], [1]]


def test_deployments_are_listed_page_by_page(service: Service, http: TestClient) -> None:
    for number in range(1, 5):
        service.queue.accept("pole", Push(MAIN, sha(number)), recipe="r", delivery=f"{number}")
        with service.database.write() as db:
            db.execute(
                "INSERT INTO deploys (build, project, ref, run, state, started, updated)"
                " VALUES (?, 'pole', ?, 'pole', 'verified', 0, 0)",
                (number, MAIN),
            )
    assert pages(http, "deploys", "build") == [[4, 3], [2, 1], []]


def test_projects_are_listed_page_by_page(http: TestClient) -> None:
    first = http.get("/api/v1/projects", params={"limit": 1}).json()
    assert ([one["name"] for one in first["projects"]], first["next_after"]) == (["lab"], "lab")
    second = http.get("/api/v1/projects", params={"limit": 1, "after": "lab"}).json()
    assert ([one["name"] for one in second["projects"]], second["next_after"]) == (["pole"], None)


@pytest.mark.parametrize("path", ["/api/v1/projects", "/api/v1/builds", "/api/v1/deploys"])
@pytest.mark.parametrize("limit", ["0", "201", "-1", "", "many", "1" * 400])
def test_a_page_has_from_one_to_two_hundred_entries(http: TestClient, path: str, limit: str) -> None:
    answer = http.get(path, params={"limit": limit})
    assert answer.status_code == 400
    assert answer.json()["error"] == "limit: must be a number from 1 to 200"


def test_the_page_of_a_project_shows_its_builds_and_leads_to_older_ones(service: Service, http: TestClient) -> None:
    service.queue.accept("lab", Push(MAIN, sha(1)), recipe="r", delivery="1")
    for number in range(1, 61):
        service.queue.accept("pole", Push(MAIN, sha(number)), recipe="r", delivery=f"{number}")
    newest = http.get("/projects/pole.json").json()
    assert [one["id"] for one in newest["builds"]] == list(range(61, 11, -1))
    assert [one["name"] for one in newest["projects"]] == ["pole"]
    assert 'href="/projects/pole?before=12"' in http.get("/projects/pole").text
    older = http.get("/projects/pole.json", params={"before": 12}).json()
    assert ([one["id"] for one in older["builds"]], older["next_before"]) == (list(range(11, 1, -1)), None)
    assert 'href="/?before=12"' in http.get("/").text
    assert http.get("/projects/nobody").status_code == 404


@pytest.mark.parametrize("path", ["/nothing", "/builds/9", "/projects/nobody", "/badge/nobody.svg"])
def test_what_is_not_there_is_said_in_words_to_a_browser_and_as_json_to_a_machine(http: TestClient, path: str) -> None:
    machine, person = http.get(path), http.get(path, headers={"accept": "text/html"})
    assert machine.status_code == person.status_code == 404
    assert machine.json()["error"]
    assert person.text.startswith("<!doctype html>")


@pytest.mark.parametrize("public", [True, False])
def test_only_a_public_badge_is_shown_in_pages_elsewhere(tmp_path: Path, public: bool) -> None:
    service = Service(config(tmp_path, public_status=public), no_hands)
    http = TestClient(make(service), base_url=OURS, client=("127.0.0.1", 1))
    picture = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
    badge = http.get("/badge/pole.svg", headers=picture)
    assert badge.status_code == (200 if public else 403)
    assert badge.headers["cross-origin-resource-policy"] == ("cross-origin" if public else "same-origin")
    assert http.get("/index.json", headers=picture).status_code == 403
    assert http.get("/badge/pole.svg", headers={"origin": "https://evil.example"}).status_code == 403
    assert http.post("/badge/pole.svg", headers=picture).status_code == 403
    service.close()


def test_a_build_that_a_person_goes_back_from_is_shown_as_rolled_back(tmp_path: Path) -> None:
    outside = Outside(tmp_path / "outside.jsonl")
    service = Service(config(tmp_path), lambda project, service: hands(outside))
    http = TestClient(make(service), base_url=OURS, client=("127.0.0.1", 1))
    hook(http)
    assert service.one()
    assert ">succeeded<" in http.get("/badge/pole.svg").text
    verified = http.get("/builds/1.json").json()["seconds"]["verified"]
    service.roll_back("pole", "ana")
    metrics = http.get("/metrics").text
    for result in ("succeeded", "rolled_back"):
        assert f'rlctl_ci_builds_total{{result="{result}"}} 1.0\n' in metrics, "a counter never goes back"
    assert ">rolled back<" in http.get("/badge/pole.svg").text
    told = http.get("/builds/1.json").json()
    assert (told["state"], told["reason"]) == ("rolled_back", "rolled back by ana")
    assert told["seconds"]["verified"] == verified
    assert "rolled back by ana" in http.get("/builds/1").text
    service.close()


def test_a_target_that_is_away_is_no_fault_of_who_asks(service: Service, http: TestClient) -> None:
    def away(*_: object) -> None:
        raise BackendUnreachable("the cluster does not answer")

    service.roll_back = away  # type: ignore[method-assign,assignment]
    headers = {"authorization": f"Bearer {service.people.issue('ana', ['admin'])}"}
    assert http.post("/api/v1/projects/pole/rollback", headers=headers).status_code == 503


def test_a_deployment_that_has_begun_is_decided_whoever_cancels_it(service: Service, http: TestClient) -> None:
    hook(http)
    http.post("/sign-in", data={"token": service.people.issue("ana", ["admin"])})
    assert "/builds/1/cancel" in http.get("/builds/1").text
    with service.database.write() as db:
        db.execute("UPDATE builds SET state = 'deploying' WHERE id = 1")
        db.execute(
            "INSERT INTO deploys (build, project, ref, run, state, started, updated)"
            " VALUES (1, 'pole', ?, 'pole', 'planned', 0, 0)",
            (MAIN,),
        )
    assert "/builds/1/cancel" not in http.get("/builds/1").text
    headers = {"authorization": f"Bearer {service.people.issue('ben', ['admin'])}"}
    said = http.post("/api/v1/builds/1/cancel", headers=headers).json()["said"]
    assert said == "deploying, its deployment has begun and goes on to its end"
    back = http.post("/api/v1/projects/pole/rollback", headers=headers)
    assert (back.status_code, back.json()["hint"]) == (400, "roll back when that has ended: rlctl ci log 1 -f")


def test_a_page_hears_of_what_has_changed_since_it_was_made(service: Service) -> None:
    app, mark = make(service), service.reading.mark()
    service.queue.accept("pole", Push(MAIN, sha(1)), recipe="r", delivery="1")

    async def first(headers: dict[str, str]) -> str:
        said: list[bytes] = []
        sent = {"type": "http.request", "body": b"", "more_body": False}

        async def receive() -> dict[str, Any]:
            return {"type": "http.disconnect"} if said else sent

        async def send(message: MutableMapping[str, Any]) -> None:
            said.append(message.get("body", b""))

        pairs = [(b"host", b"127.0.0.1:8710"), *((name.encode(), text.encode()) for name, text in headers.items())]
        scope = {"type": "http", "method": "GET", "path": "/live", "query_string": f"since={mark}".encode()}
        asgi = {"asgi": {"version": "3.0", "spec_version": "2.4"}}
        await app({**scope, **asgi, "headers": pairs, "client": ("127.0.0.1", 1)}, receive, send)
        return b"".join(said).decode()

    assert "event: changed" in asyncio.run(first({}))
    assert "event: beat" in asyncio.run(first({"last-event-id": service.reading.mark()}))


def pages(http: TestClient, kind: str, key: str) -> list[list[int]]:
    """Of two entries each, of one project, until there is no further one."""
    found: list[list[int]] = []
    before: dict[str, int] = {}
    while len(found) < 10:
        page = http.get(f"/api/v1/{kind}", params={"project": "pole", "limit": 2, **before}).json()
        found.append([one[key] for one in page[kind]])
        if page["next_before"] is None:
            return found
        before = {"before": page["next_before"]}
    raise AssertionError(f"it does not end: {found}")


def pushed(http: TestClient, number: int, ref: str = MAIN) -> int:
    """The status of the answer to a push."""
    forge = FORGES["github"]
    body = json.dumps(forge.example(Push(ref, sha(number), "ana", "faster"))).encode()
    headers = dict(forge.sign(body, SECRET.encode(), delivery=f"{ref}-{number}", now=0))
    return http.post("/hooks/github/pole", content=body, headers=headers).status_code


def test_a_project_that_gets_too_many_pushes_is_slowed_down_and_no_other(tmp_path: Path) -> None:
    service = Service(config(tmp_path, hooks_per_minute=2), no_hands)
    app = make(service, clock=lambda: 0.0)
    senders = [TestClient(app, base_url=OURS, client=(f"10.0.0.{number}", 1)) for number in range(6)]
    bad = {"X-Hub-Signature-256": "sha256=" + "0" * 64}
    assert [hook(one, **bad).status_code for one in senders[:3]] == [401] * 3, "a stranger uses nothing up"
    assert [pushed(one, number) for number, one in enumerate(senders[3:], 1)] == [202, 202, 429]
    other = FORGES["gitlab"]
    body = json.dumps(other.example(Push(MAIN, sha(1)))).encode()
    headers = dict(other.sign(body, SECRET.encode(), delivery="1", now=0))
    assert senders[5].post("/hooks/gitlab/lab", content=body, headers=headers).status_code == 202
    service.close()


def test_reasons_and_notes_hide_the_secrets_of_their_project(service: Service, http: TestClient) -> None:
    hook(http)
    service.queue.cancel(1, f"fetch of https://x:{SECRET}@example.org failed")
    service.people.pause("pole", f"see {SECRET}")
    with service.database.write() as db:
        db.execute(
            "INSERT INTO deploys (build, project, ref, run, state, note, started, updated)"
            " VALUES (1, 'pole', ?, 'pole', 'failed', ?, 0, 0)",
            (MAIN, f"note {SECRET}"),
        )
        db.execute("INSERT INTO pins (project, ref, sha, why, at) VALUES ('pole', ?, ?, ?, 0)", (MAIN, sha(7), SECRET))
    stream = {"accept": "text/event-stream"}
    paths = [
        "/", "/index.json", "/builds/1", "/builds/1.json", "/feed.atom", "/api/v1/projects", "/api/v1/builds",
        "/api/v1/deploys", "/api/v1/builds/1",
    ]  # fmt: skip
    for text in (*(http.get(path).text for path in paths), http.get("/api/v1/builds/1/log", headers=stream).text):
        assert "***" in text
        assert SECRET not in text


@pytest.mark.parametrize("how", ["missing", "not ours"])
def test_reasons_are_hidden_whole_while_the_secrets_cannot_be_read(
    service: Service, http: TestClient, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    def masker(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    hook(http)
    service.queue.cancel(1, "because")
    if how == "missing":
        service.config.projects["pole"].secret_file.unlink()
    else:
        monkeypatch.setattr(service, "masker", masker)
    assert http.get("/api/v1/builds/1").json()["reason"] == "***"


def test_a_build_whose_secrets_cannot_be_read_waits_and_its_attempt_does_not_count(
    service: Service, http: TestClient, capsys: pytest.CaptureFixture[str]
) -> None:
    hook(http)
    service.config.projects["pole"].secret_file.unlink()
    assert service.one()
    build = service.reading.build(1)
    assert (build.state, build.attempts) == ("queued", 0)
    assert "the secrets of pole cannot be read" in capsys.readouterr().out


def test_secrets_are_read_once_for_a_list_however_many_rows_it_has(
    service: Service, http: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 5):
        hook(http, Push(MAIN, sha(number)), delivery=str(number))
        hook(http, Push(f"refs/heads/b{number}", sha(number)), delivery=f"b{number}")
        with service.database.write() as db:
            db.execute("INSERT INTO pins VALUES ('pole', ?, ?, 'bad', 0)", (f"refs/heads/b{number}", sha(number)))
    read, as_it_is = list[Path](), Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read.append(path) or as_it_is(path))
    reading = MaskedReading(service)
    for listed in (reading.builds, reading.ignored, reading.pins):
        read.clear()
        assert (len(listed()), len(read)) == (4, len(set(read))), listed.__name__


def test_a_reason_in_the_words_of_a_commit_is_text_that_has_an_end(service: Service, http: TestClient) -> None:
    hook(http)
    service.queue.cancel(1, "spec.yaml: \udcff\x1b[2J" + "key " * 100_000)
    reason = http.get("/api/v1/builds/1").json()["reason"]
    assert reason.startswith("spec.yaml: key key")
    assert len(reason) == 8000


def test_the_newest_builds_are_a_feed_that_pages_lead_to(service: Service, http: TestClient) -> None:
    assert Xml.fromstring(http.get("/feed.atom").content).find(f"{ATOM}entry") is None
    for number in (1, 2):
        service.queue.accept("pole", Push(MAIN, sha(number), BAD_TEXT, BAD_TEXT), recipe="r", delivery=f"{number}")
    service.queue.cancel(2, "no")
    answer = http.get("/feed.atom")
    assert answer.headers["content-type"].startswith("application/atom+xml")
    feed = Xml.fromstring(answer.content)
    entries = feed.findall(f"{ATOM}entry")
    assert [one.findtext(f"{ATOM}id") for one in entries] == [f"{OURS}/builds/2", f"{OURS}/builds/1"]
    assert entries[0].findtext(f"{ATOM}title") == "pole main: build 2 cancelled"
    assert [child.tag for child in entries[0]].count(f"{ATOM}updated") == 1
    assert 'href="/feed.atom"' in http.get("/").text


def test_the_feed_needs_the_same_rights_as_the_page(tmp_path: Path) -> None:
    service = Service(config(tmp_path, listen="0.0.0.0:8710", hosts=["ci"], behind_tls=True), no_hands)
    http = TestClient(make(service), base_url="http://ci", client=("10.0.0.1", 1))
    assert http.get("/feed.atom").status_code == 401
    token = service.people.issue("ana", ["read"])
    answer = http.get("/feed.atom", headers={"authorization": f"Bearer {token}"})
    assert answer.status_code == 200
    assert "<id>https://ci/</id>" in answer.text
    service.close()
