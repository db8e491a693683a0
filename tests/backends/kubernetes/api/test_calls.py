"""The calls of the API as HTTP: what is repeated, for how long, and what a server's no becomes."""

from __future__ import annotations

import itertools
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from rlctl.backends.kubernetes.api import retries
from rlctl.backends.kubernetes.api.calls import Calls
from rlctl.backends.kubernetes.api.exchange import Answer, NoAnswer
from rlctl.backends.kubernetes.api.interface import ApiError, Expired, FieldConflict, Key
from rlctl.backends.kubernetes.api.watch import follow
from rlctl.errors import BackendUnreachable

KEY = Key("ConfigMap", "a")
THING = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"x": "1"}}
Step = tuple[int, Any] | tuple[int, Any, dict[str, str]] | NoAnswer


class Script:
    """A connection that answers as planned, the last answer for ever."""

    context, namespace, server = "c", "rl", "https://s:6443"

    def __init__(self, *steps: Step) -> None:
        self.steps = list(steps)
        self.sent: list[tuple[str, str, Any]] = []
        self.clock: Clock | None = None
        self.takes_s = 0.0  # until a body breaks off

    def send(self, method: str, path: str, *, body: bytes | None, content_type: str, read_timeout_s: float) -> Answer:
        self.sent.append((method, path, None if body is None else json.loads(body)))
        step = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        if isinstance(step, NoAnswer):
            raise step
        status, answer, *headers = step
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()

        def chunks() -> Iterator[bytes]:
            yield data[:7]
            if data[7:] == b"BROKEN":
                if self.clock:
                    self.clock.now += self.takes_s
                raise NoAnswer("broke off")
            yield data[7:]

        return Answer(status, headers[0] if headers else {}, chunks())

    def forward(self, pod: str, port: int) -> AbstractContextManager[socket.socket]:
        raise NoAnswer("no such port")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)


def calls_of(*steps: Step, clock: Clock | None = None) -> tuple[Calls, Script, Clock]:
    script, clock = Script(*steps), clock or Clock()
    return Calls(script, clock=clock, sleep=clock.sleep, jitter=lambda: 1.0), script, clock


def status(code: int, reason: str = "", message: str = "no", **more: Any) -> Step:
    return code, {"kind": "Status", "code": code, "reason": reason, "message": message, **more}


BUSY = (429, {"message": "too many requests", "reason": "TooManyRequests"}, {"retry-after": "3"})


def test_an_overloaded_server_is_asked_again_when_it_says_so() -> None:
    api, script, clock = calls_of(BUSY, BUSY, (200, THING))
    assert api.get(KEY) == THING
    assert clock.slept == [3.0, 3.0]
    assert [sent[0] for sent in script.sent] == ["GET"] * 3


@pytest.mark.parametrize("step", [status(500), status(503), NoAnswer("connection refused")])
@pytest.mark.parametrize("call", [
    lambda api: api.get(KEY), lambda api: api.apply(THING, manager="m"), lambda api: api.delete(KEY),
    lambda api: api.version(),
])  # fmt: skip
def test_what_can_be_repeated_is_repeated(call: Callable[[Calls], object], step: Step) -> None:
    api, script, _ = calls_of(step, step, (200, THING))
    call(api)
    assert len(script.sent) == 3


def test_pauses_grow_and_end_when_patience_does() -> None:
    api, _, clock = calls_of((200, THING), NoAnswer("timed out"))
    api.get(KEY)
    with pytest.raises(
        ApiError, match=r"the API server https://s:6443 \(context c\) does not answer: timed out"
    ) as error:
        api.get(KEY)
    assert error.value.status == 0
    assert error.value.exit_code == 4
    assert clock.slept[:5] == [0.25, 0.5, 1.0, 2.0, 4.0]
    assert retries.PATIENCE_S - 10 < clock.now <= retries.PATIENCE_S


def test_a_server_that_has_never_answered_is_given_up_sooner() -> None:
    api, _, clock = calls_of(NoAnswer("no route to host"))
    with pytest.raises(ApiError, match="no route to host"):
        api.get(KEY)
    assert clock.now <= retries.FIRST_PATIENCE_S


def test_one_command_repeats_only_so_often() -> None:
    answers = [BUSY[:2], (200, THING)] * 200
    api, script, _ = calls_of(*answers)
    with pytest.raises(ApiError, match="too many requests"):
        [api.get(KEY) for _ in range(200)]
    assert len(script.sent) == 2 * retries.RETRIES + 1


def test_a_server_that_is_overloaded_from_the_first_request_is_waited_for() -> None:
    slow = (429, {"message": "too many requests"}, {"retry-after": "10"})
    api, _, clock = calls_of(slow, slow, *[(429, {"message": "busy"}, {"retry-after": "1"})] * 3, (200, THING))
    assert api.get(KEY) == THING
    assert clock.now > retries.FIRST_PATIENCE_S


def test_a_server_that_stays_overloaded_is_waited_for_only_once() -> None:
    api, _, clock = calls_of(BUSY)
    for _ in range(3):
        with pytest.raises(ApiError, match="too many requests"):
            api.get(KEY)
    assert clock.now <= retries.PATIENCE_S + 2 * retries.FIRST_PATIENCE_S


def test_a_command_of_days_lives_through_an_outage_each_hour() -> None:
    outage = [NoAnswer("refused")] * 5 + [(200, THING)]
    api, _, clock = calls_of((200, THING), *outage * 100, (200, THING))
    for _ in range(101):
        assert api.get(KEY) == THING
        clock.now += 3600


def test_bodies_that_stall_end_with_the_patience_of_one_call() -> None:
    api, script, clock = calls_of((200, b'{"a": 1BROKEN'))
    script.takes_s, script.clock = 15.0, clock
    with pytest.raises(ApiError, match="does not answer: broke off"):
        api.get(KEY)
    assert clock.now <= retries.PATIENCE_S + 15.0


@pytest.mark.parametrize("code", [400, 401, 403, 409, 422])
def test_a_plain_no_is_not_asked_again(code: int) -> None:
    api, script, _ = calls_of(status(code, message="because"))
    with pytest.raises(ApiError, match="because") as error:
        api.apply(THING, manager="m")
    assert error.value.status == code
    assert len(script.sent) == 1


def test_what_is_absent_is_none_or_false() -> None:
    api, _, _ = calls_of(status(404, "NotFound"))
    assert api.get(KEY) is None
    assert api.delete(KEY) is False


def test_an_answer_that_breaks_off_is_asked_for_again() -> None:
    api, script, _ = calls_of((200, b'{"a": 1BROKEN'), (200, THING))
    assert api.get(KEY) == THING
    assert len(script.sent) == 2


def test_a_create_whose_answer_was_lost_is_recognised() -> None:
    api, script, _ = calls_of(
        NoAnswer("reset"), status(409, "AlreadyExists"), (200, {**THING, "metadata": {"name": "a", "uid": "1"}})
    )
    assert api.create(THING)["metadata"]["uid"] == "1"
    assert [method for method, *_ in script.sent] == ["POST", "POST", "GET"]


def test_a_create_of_somebody_else_is_not_taken_for_ours() -> None:
    api, _, _ = calls_of(NoAnswer("reset"), status(409, "AlreadyExists"), (200, {**THING, "data": {"x": "2"}}))
    with pytest.raises(ApiError) as error:
        api.create(THING)
    assert error.value.status == 409


def test_a_delete_whose_answer_was_lost_has_removed_it() -> None:
    api, _, _ = calls_of(NoAnswer("reset"), status(404))
    assert api.delete(KEY, uid="1") is True


def test_only_the_object_meant_is_removed() -> None:
    api, script, _ = calls_of(status(409, "Conflict", "Precondition failed"))
    assert api.delete(KEY, uid="1", propagation="Foreground", grace_s=5) is False
    assert script.sent[0][2] == {
        "apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Foreground", "preconditions": {"uid": "1"},
        "gracePeriodSeconds": 5,
    }  # fmt: skip


def test_conflicts_carry_field_and_owner() -> None:
    causes = [
        {"reason": "FieldManagerConflict", "field": ".spec.replicas",
         "message": 'conflict with "kubectl" with subresource "scale" using apps/v1'},
        {"reason": "FieldValueInvalid", "field": "spec"},
    ]  # fmt: skip
    api, _, _ = calls_of(status(409, "Conflict", "Apply failed with 1 conflict", details={"causes": causes}))
    with pytest.raises(ApiError) as error:
        api.apply(THING, manager="m")
    assert error.value.conflicts == (FieldConflict(".spec.replicas", "kubectl"),)


def test_expired_credentials_are_told_with_what_to_try() -> None:
    api, _, _ = calls_of(status(401, "Unauthorized", "Unauthorized"))
    with pytest.raises(ApiError, match=r"https://s:6443 \(context c\) does not accept your credentials") as error:
        api.get(KEY)
    assert "kubectl auth whoami" in error.value.hint


def test_an_answer_that_is_no_json_is_told() -> None:
    api, _, _ = calls_of((200, b"<html>login</html>"))
    with pytest.raises(ApiError, match="something else than JSON"):
        api.get(KEY)


def page(names: str, token: str = "", remaining: int | None = None) -> Step:
    metadata: dict[str, Any] = {"resourceVersion": "9"}
    metadata |= {"continue": token} if token else {}
    metadata |= {"remainingItemCount": remaining} if remaining is not None else {}
    return 200, {"metadata": metadata, "items": [{"metadata": {"name": name}} for name in names]}


def test_a_whole_list_comes_from_the_cache_in_pages() -> None:
    api, script, _ = calls_of(page("ab", "t"), page("c"))
    found = api.list("Pod", labels="x=y")
    assert [each["metadata"]["name"] for each in found.items] == ["a", "b", "c"]
    assert {each["kind"] for each in found.items} == {"Pod"}
    assert (found.resource_version, found.remaining) == ("9", 0)
    first, second = (path for _, path, _ in script.sent)
    assert first == "/api/v1/namespaces/rl/pods?labelSelector=x%3Dy&limit=500&resourceVersion=0"
    assert second.endswith("limit=500&continue=t")


def test_what_is_followed_is_never_listed_from_a_cache() -> None:
    api, script, _ = calls_of(page("a" * 500, "t"), page("b"))
    assert set(next(follow(api, "Deployment", labels="x=y"))) == {"a", "b"}
    assert "resourceVersion" not in "".join(path for _, path, _ in script.sent)


def test_a_limited_list_says_how_many_more_there_are() -> None:
    api, script, _ = calls_of(page("ab", "t", 7))
    found = api.list("Deployment", most=2)
    assert found.remaining == 7
    assert script.sent[0][1] == "/apis/apps/v1/namespaces/rl/deployments?limit=2"


def test_a_list_that_expires_between_pages_begins_again() -> None:
    api, script, _ = calls_of(page("ab", "t"), status(410, "Expired"), page("abc"))
    assert len(api.list("Pod").items) == 3
    assert len(script.sent) == 3


def lines(*events: Any) -> Step:
    return 200, b"".join(json.dumps(event).encode() + b"\n" for event in events)


def test_a_watch_yields_what_changes() -> None:
    event = {"type": "ADDED", "object": {"metadata": {"name": "a", "resourceVersion": "5"}}}
    api, script, _ = calls_of(lines(event, {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "8"}}}))
    found = list(api.watch("Pod", labels="x=y", resource_version="3", timeout_s=10))
    assert [each.what for each in found] == ["ADDED", "BOOKMARK"]
    assert found[0].object["kind"] == "Pod"
    assert "watch=true&allowWatchBookmarks=true&resourceVersion=3&timeoutSeconds=10" in script.sent[0][1]


@pytest.mark.parametrize("step", [
    status(410, "Expired", "too old"),
    lines({"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}}),
])  # fmt: skip
def test_a_watch_from_a_forgotten_moment_expires(step: Step) -> None:
    api, _, _ = calls_of(step)
    with pytest.raises(Expired):
        list(api.watch("Pod", resource_version="3", timeout_s=10))


def test_a_watch_that_breaks_off_just_ends() -> None:
    api, script, clock = calls_of((200, b'{"type"BROKEN'))
    script.takes_s, script.clock = 1.0, clock
    assert list(api.watch("Pod", resource_version="3", timeout_s=10)) == []
    assert clock.slept == []


@pytest.mark.parametrize("step", [(200, b""), (200, b'{"type"BROKEN')])
def test_a_watch_that_is_closed_at_once_becomes_a_list_now_and_then(step: Step) -> None:
    api, _, clock = calls_of(*[page("ab"), step] * 100)
    found = itertools.islice(follow(api, "Pod"), 40)
    assert all(set(known) == {"a", "b"} for known in found)
    assert clock.slept[:6] == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0]
    assert clock.now > 200


def test_apply_says_who_applies_and_checks_strictly() -> None:
    api, script, _ = calls_of((200, THING))
    api.apply(THING, manager="rlctl", force=True, dry_run=True, uid="1")
    method, path, body = script.sent[0]
    assert method == "PATCH"
    assert path == (
        "/api/v1/namespaces/rl/configmaps/a?fieldManager=rlctl&force=true&fieldValidation=Strict&dryRun=All"
    )
    assert body["metadata"] == {"name": "a", "uid": "1"}


def test_logs_of_a_container_that_has_none_are_no_lines() -> None:
    api, script, _ = calls_of(status(400, "BadRequest", "previous terminated container not found"))
    assert list(api.pod_log("p", within_s=5, previous=True, tail=5)) == []
    assert script.sent[0][1] == "/api/v1/namespaces/rl/pods/p/log?previous=true&tailLines=5"


def test_logs_come_line_by_line() -> None:
    api, _, _ = calls_of((200, b"one\ntwo\xff\nthree"))
    assert list(api.pod_log("p", within_s=5)) == ["one", "two\ufffd", "three"]


@pytest.mark.parametrize("step", [status(500, "InternalError", "dial tcp: i/o timeout"), NoAnswer("timed out")])
def test_a_log_that_has_to_come_soon_is_asked_for_once(step: Step) -> None:
    api, script, _ = calls_of((200, THING), step, (200, THING))
    assert api.get(Key("ConfigMap", "a"))
    with pytest.raises(ApiError):
        list(api.pod_log("p", within_s=1.5))
    assert len(script.sent) == 2
    assert api.get(Key("ConfigMap", "a")), "the server itself is well"


def test_a_port_that_cannot_be_reached_is_told() -> None:
    api, _, _ = calls_of((200, {}))
    with pytest.raises(ApiError, match="port 7190 of Pod p cannot be reached: no such port"), api.forward("p", 7190):
        pass


@pytest.mark.parametrize(("step", "answer"), [
    ((201, {"status": {"allowed": True}}), True), ((201, {"status": {}}), False), (status(403), None),
])  # fmt: skip
def test_rights_are_asked_for(step: Step, answer: bool | None) -> None:
    api, script, _ = calls_of(step)
    assert api.may("patch", "deployments", group="apps", subresource="scale") is answer
    assert script.sent[0][2]["spec"]["resourceAttributes"] == {
        "namespace": "rl", "verb": "patch", "resource": "deployments", "group": "apps", "subresource": "scale",
    }  # fmt: skip


def test_every_error_is_one_of_ours() -> None:
    assert issubclass(ApiError, BackendUnreachable)  # which whoever can do without the target catches
    assert (ApiError.exit_code, ApiError.reason) == (4, "unreachable")
