"""The HTTP surface: rights, origins, amounts, and what a stranger gets."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jinja2 import UndefinedError
from starlette.testclient import TestClient

from rlctl.errors import Refused, SpecError
from rlctl_ci.config.settings import Config
from rlctl_ci.core.errors import CiError
from rlctl_ci.core.logs import Log, Masker
from rlctl_ci.core.service import Service
from rlctl_ci.forges.find import FORGES
from rlctl_ci.store.records import Push
from rlctl_ci.web.app import make
from rlctl_ci.web.html import render
from rlctl_ci.web.limits import connection_limits, guard
from rlctl_ci.web.serve import check, local_token
from tests.ci.world import MAIN, no_file_beyond, no_hands, sha

SECRET = "a secret of sixteen or more"
OURS = "http://127.0.0.1:8710"
BAD_TEXT = '<script>alert(1)</script>"><img src=x onerror=alert(1)>\x1b[31m'


def config(folder: Path, **fields: Any) -> Config:
    (folder / "secret").write_text(SECRET + "\n")
    project = {"forge": "github", "repository": "/srv/pole.git", "secret_file": folder / "secret", "run": "pole"}
    return Config.model_validate(
        {"state": folder / "state", "projects": {"pole": project, "lab": {**project, "forge": "gitlab"}}, **fields}
    )


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    found = Service(config(tmp_path), no_hands)
    yield found
    found.close()


@pytest.fixture
def http(service: Service) -> TestClient:
    return TestClient(make(service), base_url=OURS, client=("127.0.0.1", 1), follow_redirects=False)


def hook(http: TestClient, push: Push | None = None, *, path: str = "/hooks/github/pole", **headers: str) -> Any:
    forge = FORGES["github"]
    body = json.dumps(forge.example(push or Push(MAIN, sha(7), "ana", "faster"))).encode()
    signed = dict(forge.sign(body, SECRET.encode(), delivery=headers.pop("delivery", "d-1"), now=0))
    return http.post(path, content=body, headers={**signed, **headers})


def test_a_service_whose_disk_is_full_is_not_ready(http: TestClient) -> None:
    assert http.get("/readyz").status_code == 200
    with no_file_beyond(0):
        assert http.get("/readyz").status_code == 503
        assert hook(http).status_code == 503
        assert http.get("/").status_code == 200
    assert http.get("/readyz").status_code == 200


def test_a_push_is_acknowledged_once(http: TestClient) -> None:
    first = hook(http)
    assert first.status_code == 202
    assert first.json() == {"build_id": 1}
    again = hook(http)
    assert (again.status_code, again.json()) == (200, {"build_id": 1})


def test_what_is_of_no_interest_is_answered_without_a_build(http: TestClient) -> None:
    assert hook(http, **{"X-GitHub-Event": "ping"}).status_code == 204
    assert hook(http, Push("refs/heads/other", sha(1)), delivery="2").status_code == 204
    assert http.get("/api/v1/builds").json()["builds"] == []


def test_the_page_says_which_deliveries_were_ignored_and_why(http: TestClient) -> None:
    assert http.get("/index.json").json()["ignored"] == []
    hook(http, **{"X-GitHub-Event": "ping"})
    hook(http, Push("refs/heads/other", sha(1)), delivery="2")
    hook(http, Push("refs/tags/v1", sha(1)), delivery="3")
    said = http.get("/projects/pole.json").json()["ignored"]
    assert [(one["project"], one["event"], one["why"]) for one in said] == [
        ("pole", "push", "refs/tags/v1 is no branch"), ("pole", "push", "branch other is not built"),
        ("pole", "ping", "event ping"),
    ]  # fmt: skip
    assert http.get("/projects/lab.json").json()["ignored"] == []
    assert "branch other is not built" in http.get("/").text
    assert "Ignored" not in http.get("/projects/lab").text


@pytest.mark.parametrize(
    "path", ["/hooks/github/pole", "/hooks/github/nobody", "/hooks/gitlab/pole", "/hooks/nothing/pole"]
)
def test_a_wrong_signature_and_a_wrong_project_look_the_same(http: TestClient, path: str) -> None:
    answer = hook(http, path=path, **{"X-Hub-Signature-256": "sha256=" + "0" * 64})
    assert (answer.status_code, answer.text) == (401, "no\n")


def test_a_signature_that_is_not_ascii_is_refused_like_any_other(http: TestClient) -> None:
    answer = http.post("/hooks/github/pole", content=b"{}", headers={b"x-hub-signature-256": b"sha256=\xc3\xa9"})  # type: ignore[dict-item]
    assert answer.status_code == 401


def test_a_body_that_is_too_large_is_refused_before_anybody_is_asked_who_sends_it(http: TestClient) -> None:
    assert http.post("/hooks/github/pole", content=b"x" * ((1 << 20) + 1)).status_code == 413
    chunks = (b"x" * 100_000 for _ in range(20))
    assert http.post("/hooks/github/pole", content=chunks).status_code == 413
    assert http.post("/hooks/github/pole", content=b"{}", headers={"content-length": "1" * 4000}).status_code == 413
    assert http.post("/login", content=b"x" * (guard.SMALL_BODY_BYTES + 1)).status_code == 413


def test_bodies_that_are_under_way_at_once_have_a_limit_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger could else have it killed for want of memory, by many bodies of the largest size."""
    monkeypatch.setattr(guard, "BODIES_BYTES", 1000)
    monkeypatch.setattr(guard, "SMALL_BODY_BYTES", 100)
    answers: list[int] = []
    inside = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await inside.wait()
        await send({"type": "http.response.start", "status": 202, "headers": []})

    async def post(guarded: guard.Guard, who: str, size: int) -> None:
        parts = [b"x" * 60] * (size // 60) + [b"x" * (size % 60)]

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": parts.pop(), "more_body": bool(parts)}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                answers.append(message["status"])

        headers = [(b"host", b"127.0.0.1:8710")]
        scope = {"type": "http", "method": "POST", "path": "/hooks/github/pole", "headers": headers,
                 "client": (who, 1)}  # fmt: skip
        await guarded(scope, receive, send)

    async def all_of_them() -> None:
        guarded = guard.Guard(app, config(tmp_path), connection_limits.ConnectionLimit())
        held = []
        for who in ("10.0.0.1", "10.0.0.2", "10.0.0.3"):
            held.append(asyncio.create_task(post(guarded, who, 240)))
            await asyncio.sleep(0)
            await post(guarded, who, 120)  # beyond the part of one source
        await post(guarded, "10.0.0.4", 120)  # and beyond that of large ones
        for who in ("10.0.0.1", "10.0.0.5"):
            held.append(asyncio.create_task(post(guarded, who, 100)))
        await asyncio.sleep(0)
        assert answers == [503] * 4
        inside.set()
        for task in held:
            await task
        await post(guarded, "10.0.0.1", 240)
        assert guarded._bodies_left == 1000
        assert not guarded._bodies_of

    asyncio.run(all_of_them())
    assert answers == [503] * 4 + [202] * 6


METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "FOO"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("path", ["/", "/api/v1/builds", "/hooks/github/pole", "/healthz", "/nothing"])
def test_another_host_or_origin_is_refused_on_every_method(http: TestClient, method: str, path: str) -> None:
    assert http.request(method, path, headers={"host": "evil.example"}).status_code == 421
    assert http.request(method, path, headers={"origin": "https://evil.example"}).status_code == 403
    assert http.request(method, path, headers={"origin": "null"}).status_code == 403
    assert http.request(method, path, headers={"sec-fetch-site": "cross-site"}).status_code == 403


def test_a_request_with_two_lengths_is_refused_and_its_connection_closed(http: TestClient) -> None:
    answer = http.post("/hooks/github/pole", headers={"content-length": "5", "transfer-encoding": "chunked"})
    assert (answer.status_code, answer.headers["connection"]) == (400, "close")


CHANGES = [
    "/api/v1/builds", "/api/v1/builds/1/cancel", "/api/v1/builds/1/retry", "/api/v1/projects/pole/pause",
    "/api/v1/projects/pole/resume", "/api/v1/projects/pole/rollback", "/builds/1/cancel", "/projects/pole/pause",
    "/projects/pole/rollback",
]  # fmt: skip


@pytest.mark.parametrize("path", CHANGES)
def test_nothing_is_changed_without_a_token_even_on_loopback(http: TestClient, path: str) -> None:
    hook(http)
    assert http.post(path, json={"project": "pole", "branch": "main", "sha": sha(1)}).status_code == 401


@pytest.mark.parametrize(
    ("scope", "path", "status"),
    [
        ("read", "/api/v1/builds/1/cancel", 403),
        ("trigger", "/api/v1/builds/1/cancel", 202),
        ("trigger", "/api/v1/projects/pole/pause", 403),
        ("deploy", "/api/v1/projects/pole/pause", 202),
        ("deploy", "/api/v1/builds/1/cancel", 403),
        ("admin", "/api/v1/projects/pole/pause", 202),
    ],
)
def test_a_token_may_do_what_its_scope_says(
    service: Service, http: TestClient, scope: str, path: str, status: int
) -> None:
    hook(http)
    token = service.people.issue("ana", [scope])
    assert http.post(path, headers={"authorization": f"Bearer {token}"}).status_code == status


def test_tokens_are_stored_as_hashes_expire_and_end(service: Service) -> None:
    now = [1000.0]
    service.people.now = lambda: now[0]
    token = service.people.issue("ana", ["read"], valid_s=60)
    stored = (service.folder / "ci.db").read_bytes() + (service.folder / "ci.db-wal").read_bytes()
    assert token.encode() not in stored
    assert service.people.whose(token) is not None
    now[0] += 61
    assert service.people.whose(token) is None
    other = service.people.issue("ben", ["read"])
    assert service.people.revoke("ben")
    assert service.people.whose(other) is None
    with pytest.raises(CiError, match="scope"):
        service.people.issue("ana", ["root"])


def test_a_browser_signs_in_and_its_forms_carry_a_secret_of_the_session(service: Service, http: TestClient) -> None:
    hook(http)
    token = service.people.issue("ana", ["admin"])
    assert http.post("/sign-in", data={"token": "nonsense"}).status_code == 401
    cookie = http.post("/sign-in", data={"token": token}).headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert token not in cookie
    assert http.post("/projects/pole/pause").status_code == 403, "a cookie alone changes nothing"
    found = re.search(r'name="csrf" value="([^"]+)"', http.get("/").text)
    assert found is not None
    assert http.post("/projects/pole/pause", data={"csrf": found[1]}).status_code == 303
    assert service.reading.pauses() == {"pole": "paused by ana"}
    service.people.revoke("ana")
    assert http.post("/projects/pole/resume", data={"csrf": found[1]}).status_code == 401


def test_pages_show_what_strangers_wrote_as_text(service: Service, http: TestClient) -> None:
    push = Push(MAIN, sha(7), BAD_TEXT[:60], BAD_TEXT)
    number = service.queue.accept("pole", push, recipe="r", delivery="x").build
    assert number is not None
    Log(service.log(number), 1 << 20, Masker([]))(BAD_TEXT)
    for path in ("/", f"/builds/{number}"):
        text = http.get(path).text
        assert "<img" not in text
        assert "<script>alert" not in text
        assert "\x1b" not in text
        assert "&lt;script&gt;" in text


def test_no_template_has_to_remember_that_a_value_is_a_strangers() -> None:
    text = render("notice.html.j2", title="t", live=None, icon="none", message=f"{BAD_TEXT}\x1b\nsecond", hint="")
    assert "&lt;script&gt;alert(1)" in text
    assert "<script>alert" not in text
    assert "\x1b" not in text
    assert "second" not in text
    with pytest.raises(UndefinedError, match="hint"):
        render("notice.html.j2", title="t", live=None, icon="none", message="m")


@pytest.mark.parametrize("path", ["/", "/builds/1", "/sign-in", "/index.json", "/nothing", "/static/style.css"])
def test_every_answer_carries_the_policy_that_lets_nothing_else_in(http: TestClient, path: str) -> None:
    hook(http)
    headers = http.get(path).headers
    assert headers["content-security-policy"].startswith("default-src 'none'")
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"


def test_pages_ask_nobody_else_for_anything_and_hold_no_inline_script(http: TestClient) -> None:
    hook(http)
    for path in ("/", "/builds/1", "/sign-in"):
        text = http.get(path).text
        assert not re.search(r"""(?:src|href)=["'](?:https?:)?//""", text)
        assert not re.search(r"<script>|<style|\son\w+=|style=", text)
        assert len(text) < 150_000


def test_every_page_has_a_twin_for_machines(http: TestClient) -> None:
    hook(http)
    assert http.get("/index.json").json()["builds"][0]["id"] == 1
    assert http.get("/builds/1.json").json()["sha"] == sha(7)
    assert http.get("/builds/2.json").status_code == 404
    assert "succeeded" in http.get("/metrics").text
    assert http.get("/badge/pole.svg").status_code == 200


def test_a_log_goes_on_from_its_offset(service: Service, http: TestClient) -> None:
    hook(http)
    log = Log(service.log(1), 1 << 20, Masker([]))
    log("one")
    first = http.get("/api/v1/builds/1/log")
    log("two")
    second = http.get("/api/v1/builds/1/log", params={"offset": first.headers["x-next-offset"]})
    assert (first.text, second.text) == ("one\n", "two\n")
    ranged = http.get("/api/v1/builds/1/log", headers={"range": "bytes=4-"})
    assert (ranged.status_code, ranged.text) == (206, "two\n")


def test_a_log_is_followed_as_events_until_the_build_is_over(service: Service, http: TestClient) -> None:
    hook(http)
    Log(service.log(1), 1 << 20, Masker([]))("one\ntwo")
    service.queue.cancel(1, "no")
    text = http.get("/api/v1/builds/1/log", headers={"accept": "text/event-stream"}).text
    assert 'id: 8\nevent: log\ndata: ["one", "two"]' in text
    assert "event: end" in text
    resumed = http.get("/api/v1/builds/1/log", headers={"accept": "text/event-stream", "last-event-id": "4"}).text
    assert '["two"]' in resumed


def test_a_log_hides_secrets_in_every_spelling_and_ends_at_its_limit(tmp_path: Path) -> None:
    import base64
    from urllib.parse import quote

    secret = "sw0rd/fish+&x=1"
    log = Log(tmp_path / "log", 1000, Masker([secret.encode()]))
    log(f"a {secret} b {quote(secret, safe='')} c {base64.b64encode(f'user:{secret}'.encode()).decode()}")
    text = (tmp_path / "log").read_text()
    assert secret not in text
    assert quote(secret, safe="") not in text
    assert base64.b64encode(secret.encode()).decode()[4:-4] not in text
    for _ in range(100):
        log.output("x" * 50)
    assert (tmp_path / "log").stat().st_size < 1200
    assert "left out" in (tmp_path / "log").read_text()
    log("rolled_back: it died")
    assert (tmp_path / "log").read_text().endswith("left out\nrolled_back: it died\n"), "what the service says has room"
    for _ in range(100):
        log("x" * 4000)
    assert (tmp_path / "log").stat().st_size < 1200 + (260 << 10)


def test_it_refuses_to_start_beyond_loopback_without_names_and_tls(tmp_path: Path) -> None:
    open_ = config(tmp_path, listen="0.0.0.0:8710")
    with pytest.raises(Refused) as refusal:
        check(open_)
    assert all(word in refusal.value.message for word in ("hosts", "tls"))
    named = open_.model_copy(update={"hosts": ["ci.example.org"], "behind_tls": True})
    check(named)
    service = Service(open_, no_hands)
    http = TestClient(make(service), base_url="http://127.0.0.1:8710", client=("10.0.0.1", 1))
    assert http.get("/healthz").status_code == 421, "the name of loopback is no name of ours there"
    service.close()


def test_beyond_loopback_nothing_but_hooks_is_answered_until_there_is_a_token(tmp_path: Path) -> None:
    service = Service(config(tmp_path, listen="0.0.0.0:8710", hosts=["ci"]), no_hands)
    http = TestClient(make(service), base_url="http://ci", client=("10.0.0.1", 1), follow_redirects=False)
    for path in ("/api/v1/builds", "/index.json", "/metrics", "/badge/pole.svg", "/live"):
        assert http.get(path).status_code == 401, path
    for path in ("/api/v1/projects/pole/pause", "/api/v1/projects/pole/rollback"):
        assert http.post(path, json={}).status_code == 401, path
    assert http.get("/", headers={"accept": "text/html"}).headers["location"] == "/sign-in"
    assert hook(http).status_code == 202
    mine = {"authorization": f"Bearer {service.people.issue('ana', ['read'])}"}
    assert http.get("/api/v1/builds", headers=mine).status_code == 200, "at once, with no restart"
    service.close()


@pytest.mark.parametrize("content", ["", "short\n", None])
def test_it_refuses_to_start_without_a_secret(tmp_path: Path, content: str | None) -> None:
    found = config(tmp_path)
    path = tmp_path / "secret"
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(SpecError):
        Service(found, no_hands)


def test_two_services_do_not_share_a_folder(service: Service) -> None:
    with pytest.raises(CiError, match="another"):
        Service(service.config, no_hands)


def test_the_token_of_this_machine_is_for_its_owner_alone(service: Service) -> None:
    path = local_token(service)
    assert path.with_name("address").read_text() == OURS, "verbs send it nowhere else"
    assert path.stat().st_mode & 0o077 == 0
    assert service.people.whose(path.read_text().strip()) is not None
    before = path.read_text()
    assert local_token(service).read_text() == before


def test_a_database_that_cannot_be_written_is_a_503_and_not_a_lost_hook(service: Service, http: TestClient) -> None:
    from rlctl_ci.core.errors import Busy

    def busy(*_: object, **__: object) -> None:
        raise Busy("disk full")

    accept, service.queue.accept = service.queue.accept, busy  # type: ignore[method-assign,assignment]
    assert hook(http).status_code == 503
    service.queue.accept = accept  # type: ignore[method-assign]
    assert hook(http).status_code == 202
