"""The HTTP surface against its document: schemathesis makes requests of it, good ones and bad ones."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode, checks
from starlette.testclient import TestClient

from rlctl_ci.core.logs import Log, Masker
from rlctl_ci.core.service import Service
from rlctl_ci.core.states import STATES
from rlctl_ci.forges.find import FORGES
from rlctl_ci.store.records import Push
from rlctl_ci.web.app import STATIC, make
from rlctl_ci.web.limits.guard import App, AsgiScope, Receive, Send
from tests.ci.web.test_http import OURS, SECRET, config
from tests.ci.world import MAIN, Outside, hands, sha
from tests.support.samples import sample

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # the first of them imports half of schemathesis
DOCUMENT: dict[str, Any] = json.loads((STATIC / "openapi.json").read_text())
OPERATIONS = [(method, path) for path, methods in DOCUMENT["paths"].items() for method in methods]
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
EXAMPLES = 20
CASES = sample("surface of http", [(*one, scope) for one in OPERATIONS for scope in ("", "read", "admin")], 12)
KNOWN = {
    "project": "pole",
    "branch": "main",
    "ref": MAIN,
    "sha": sha(9),
    "after": sha(9),
    "build": 1,
    "forge": "github",
}
"""Values that a stranger would not guess."""
CONFIG = schemathesis.Config.from_dict({"analysis": {"constants": {"enabled": False}}})  # what is asked is no accident
CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """With builds that are over, one that is not, a deployment, a pin, and logs."""
    outside = Outside(tmp_path / "outside.jsonl")
    found = Service(config(tmp_path, hooks_per_minute=1_000_000), lambda project, service: hands(outside))
    outside.bad.add(sha(2))
    for number in range(1, 4):
        outside.push(sha(number))
        found.queue.accept("pole", Push(MAIN, sha(number), "ana", "faster"), recipe="r", delivery=f"{number}")
        if number < 3:
            found.one()
        Log(found.log(number), 1 << 20, Masker([]))("one line\n" * number)
    yield found
    found.close()


def signed(app: App) -> App:
    """Whatever is sent to a hook is signed as its forge does."""

    async def signing(scope: AsgiScope, receive: Receive, send: Send) -> None:
        words = scope.get("path", "").split("/")
        if scope["type"] != "http" or words[1] != "hooks" or words[2] not in FORGES:
            await app(scope, receive, send)
            return
        told = await receive()
        delivery = f"fuzz-{hash(told.get('body', b''))}"
        headers = FORGES[words[2]].sign(told.get("body", b""), SECRET.encode(), delivery=delivery, now=1_000_000.0)
        ours = [(name.lower().encode(), value.encode()) for name, value in headers]

        async def again() -> Any:
            return told

        await app({**scope, "headers": [*scope["headers"], *ours]}, again, send)

    return signing


def informed(case: schemathesis.Case) -> schemathesis.Case:
    """Give a request the names of what there is."""
    case.path_parameters.update({name: KNOWN[name] for name in case.path_parameters})
    if case.path.endswith("/cancel"):
        case.path_parameters["build"] = 3  # the one that is not over
    if isinstance(case.body, dict):
        case.body.update({name: KNOWN[name] for name in case.body if name in KNOWN})
    return case


@pytest.mark.parametrize(("method", "path", "scope"), CASES)
def test_whatever_is_asked_is_answered_as_the_document_says(
    service: Service, method: str, path: str, scope: str
) -> None:
    service.now = lambda: 1_000_000.0
    app = signed(make(service)) if scope == "admin" else make(service)
    host = {"Host": OURS.removeprefix("http://")}
    schema = schemathesis.openapi.from_asgi("/api/v1/openapi.json", app, config=CONFIG, headers=host)
    headers = {"Authorization": f"Bearer {service.people.issue('ana', [scope])}"} if scope else {}
    operation = schema[path][method]
    good, bad = (operation.as_strategy(mode) for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE))
    seen = set()

    @settings(max_examples=EXAMPLES, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(st.one_of(good.map(informed), good, bad))
    def fuzz(case: schemathesis.Case) -> None:
        answer = case.call_and_validate(base_url=OURS, headers=headers, checks=CHECKS)
        seen.add(answer.status_code)

    fuzz()
    refused = path.startswith("/hooks/") or method == "post"
    assert (min(seen) < 300) == (scope == "admin" or not refused), f"{sorted(seen)}: it has not come far"


@pytest.mark.parametrize("path", DOCUMENT["paths"])
def test_methods_that_the_document_does_not_list_are_answered_405(service: Service, path: str) -> None:
    http = TestClient(make(service), base_url=OURS)
    listed = {method.upper() for method in DOCUMENT["paths"][path]}
    listed |= {"HEAD"} if "GET" in listed else set()
    where = path.format_map(KNOWN)
    for method in METHODS:
        answer = http.request(method, where)
        assert (answer.status_code == 405) == (method not in listed), method
        if answer.status_code == 405:
            assert set(answer.headers["allow"].split(", ")) == listed


def test_the_document_has_every_route_for_machines_and_every_state(service: Service) -> None:
    routes = {re.sub(r":\w+", "", route.path) for route in make(service)._app.routes}  # type: ignore[attr-defined]
    machines = {path.replace("{number}", "{build}") for path in routes if path.startswith(("/api/", "/hooks/"))}
    assert machines | {"/healthz", "/readyz", "/metrics"} == set(DOCUMENT["paths"])
    assert DOCUMENT["components"]["schemas"]["state"]["enum"] == list(STATES)


@settings(max_examples=40, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(seen=st.one_of(st.integers(0, 40).map(str), st.text(alphabet=st.characters(codec="latin-1"))))
def test_events_go_on_wherever_they_broke_off(service: Service, seen: str) -> None:
    headers = {"accept": "text/event-stream", b"last-event-id": seen.encode("latin-1")}
    text = TestClient(make(service), base_url=OURS).get("/api/v1/builds/1/log", headers=headers).text  # type: ignore[arg-type]
    said = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]
    whole = service.log(1).read_bytes()
    rest = whole[int(seen) :] if re.fullmatch("[0-9]{1,15}", seen) else whole
    assert [line for lines in said[:-1] for line in lines] == rest.decode().splitlines()
    assert said[-1]["state"] == "succeeded"
