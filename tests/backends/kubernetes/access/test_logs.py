"""Log lines of the processes of a run, from the manager and from pods, as one stream."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from rlctl.backends.base import LogQuery, LogRecord
from rlctl.backends.kubernetes.access import logs
from rlctl.errors import UsageError
from tests.backends.kubernetes.access.test_listing import actors, core, pod, workload
from tests.backends.kubernetes.fakes.reads import NOW, Reads, run_state


def line(second: int, text: str, process: str = "actor/3", boot: str = "b1", level: str = "INFO") -> str:
    return json.dumps({
        "ts": f"2026-11-21T04:08:{second:02d}.000000Z", "level": level, "run": "pong",
        "role": process.partition("/")[0], "id": process, "boot": boot, "msg": text, "kv": {},
    })  # fmt: skip


class Manager:
    """Answers /logs; remembers what it was asked."""

    def __init__(
        self, *pages: Iterable[str], newer: Iterable[Iterable[str]] = (), lost: int = 0, begun_anew: bool = False
    ) -> None:
        self.pages = [list(page) for page in pages] or [[]]
        self.newer = [list(page) for page in newer]
        self.lost = lost
        self.begun_anew = begun_anew  # all that is newer is of another boot
        self.asked: list[dict[str, str]] = []

    def __call__(self, far: socket.socket, pod: str, port: int) -> None:
        target = far.recv(65536).split(b" ")[1].decode()
        asked = {name: values[0] for name, values in parse_qs(urlsplit(target).query).items()}
        self.asked.append(asked)
        if "after" in asked and self.begun_anew:
            lines = [line for page in self.newer for line in page]
            body: dict[str, Any] = {"lines": lines[int(asked["after"]) :], "next": len(lines), "page": ""}
        elif "after" in asked:
            lines = self.newer.pop(0) if self.newer else []
            body = {"lines": lines, "next": int(asked["after"]) + len(lines), "page": ""}
        else:
            number = int(asked.get("page", "actor=x:0").rpartition(":")[2])
            last = number + 1 >= len(self.pages)
            body = {"lines": self.pages[number], "next": 100, "page": "" if last else f"actor=x:{number + 1}"}
        boot = "second" if "after" in asked and self.begun_anew else "first"
        text = json.dumps({**body, "lost": self.lost, "boot": boot}).encode()
        far.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text) + text)


def read(api: Reads, told: list[str] | None = None, **query: Any) -> list[LogRecord]:
    return list(
        logs.read(
            api, run_state(), LogQuery(**query), warn=(told if told is not None else []).append,
            clock=lambda: NOW.timestamp(), wait=lambda seconds: None,
        )
    )  # fmt: skip


def cluster(manager: Manager | None, *more: Any) -> Reads:
    api = Reads(*core(), *more)
    api.serve = manager
    return api


def crashing(name: str = "pong-actor-0-0001", role: str = "actor") -> dict[str, Any]:
    found = pod(role, name, ready=False, waiting="CrashLoopBackOff", phase="Running", shard="0")
    ended = {"terminated": {"exitCode": 1, "reason": "Error", "finishedAt": "2026-11-21T04:08:43Z"}}
    found["status"]["containerStatuses"][0] |= {"lastState": ended, "restartCount": 5}
    return found


def with_crash() -> list[dict[str, Any]]:
    return [workload("Deployment", "actor", 1, 0, name="pong-actor-0", shard="0"), crashing()]


def test_what_the_manager_kept_is_read_page_by_page() -> None:
    api = cluster(Manager([line(1, "one"), line(2, "two")], [line(3, "three")]))

    assert [record.message for record in read(api)] == ["one", "two", "three"]


def test_a_record_is_whole() -> None:
    found = read(cluster(Manager([line(1, "one", level="WARNING")])))[0]

    assert (found.process, found.level, found.message) == ("actor/3", "WARNING", "one")
    assert found.time == datetime(2026, 11, 21, 4, 8, 1, tzinfo=UTC)
    assert found.extra["boot"] == "b1"


def test_the_manager_filters_as_it_is_asked() -> None:
    manager = Manager([])

    read(cluster(manager), role="actor", index=3, grep="a b", level="warn", tail=7, since=NOW, previous=True)

    assert manager.asked[0] == {
        "process": "actor/3", "grep": "a b", "level": "WARNING", "tail": "7", "since": NOW.isoformat(), "previous": "1",
    }  # fmt: skip


def test_a_pod_that_crashed_before_it_reported_speaks_through_the_api_server() -> None:
    api = cluster(Manager([line(1, "one"), line(9, "nine")]), *with_crash())
    api.logs["pong-actor-0-0001"] = ["Traceback (most recent call last):", '  File "x.py", line 1', "ValueError: no"]
    api.logs["pong-actor-0-0001"].insert(0, line(5, "five", process="actor/7"))

    found = read(api)

    assert [record.message.splitlines()[0] for record in found] == [
        "one", "five", "Traceback (most recent call last):", "nine",
    ]  # fmt: skip
    assert found[1].process == "actor/7"
    assert (found[2].process, found[2].level) == ("actor/7", "ERROR")


def test_a_line_that_both_have_is_told_once() -> None:
    api = cluster(Manager([line(1, "one"), line(2, "two")]), *with_crash())
    api.logs["pong-actor-0-0001"] = [line(2, "two"), line(3, "three")]

    assert [record.message for record in read(api)] == ["one", "two", "three"]


def test_a_record_after_text_without_a_line_end_is_told_once_too() -> None:
    api = cluster(Manager([line(1, "one"), line(2, "two")]), *with_crash())
    api.logs["pong-actor-0-0001"] = ["step {" + line(2, "two"), "step {" + line(3, "three")]

    found = read(api)

    assert [record.message for record in found if record.message != "step {"] == ["one", "two", "three"]
    assert {record.process for record in found if record.message == "step {"} == {"actor/3"}


CRASH = ["Traceback (most recent call last):", '  File "x.py", line 1', "ValueError: no"]


def test_the_same_crash_of_two_pods_is_told_twice() -> None:
    other = crashing("pong-actor-0-0002")
    api = cluster(Manager([]), *with_crash(), other)
    api.logs |= {
        name: [line(4, "up", f"actor/{index}", f"b{index}"), *CRASH]
        for index, name in enumerate(("pong-actor-0-0001", "pong-actor-0-0002"))
    }

    found = [record for record in read(api) if record.level == "ERROR"]

    assert [(record.process, record.message) for record in found] == [
        ("actor/0", "\n".join(CRASH)), ("actor/1", "\n".join(CRASH)),
    ]  # fmt: skip


def test_raw_text_of_another_process_is_left_out_when_one_is_named() -> None:
    other = crashing("pong-actor-0-0002")
    api = cluster(Manager([]), *with_crash(), other)
    api.logs |= {
        "pong-actor-0-0001": ["raw of 7", line(4, "up", "actor/7")],
        "pong-actor-0-0002": [line(4, "up", "actor/8"), "raw of 8"],
    }

    assert [record.message for record in read(api, role="actor", index=7)] == ["raw of 7", "up"]


def test_following_tells_the_second_crash_of_a_pod_and_only_what_is_new_of_a_log() -> None:
    up, api = line(4, "up", "actor/7"), Reads(*with_crash())
    crashed = api.objects[1]["status"]["containerStatuses"][0]
    looks = [(5, ["raw", up, *CRASH]), (5, [up, *CRASH, "more"]), (6, CRASH), (6, CRASH)]

    def look(seconds: float = 0) -> None:
        if looks:
            crashed["restartCount"], api.logs["pong-actor-0-0001"] = looks.pop(0)

    look()
    found = logs.read(api, run_state(), LogQuery(follow=True), clock=lambda: NOW.timestamp(), wait=look)

    assert [record.message for record in found] == ["raw", "up", "\n".join(CRASH), "more", "\n".join(CRASH)]


def test_the_last_lines_until_a_time_are_sought_in_all_that_a_pod_has() -> None:
    api = cluster(Manager([]), *with_crash())
    api.logs["pong-actor-0-0001"] = [line(second, f"at {second}") for second in range(9)]

    found = read(api, until=datetime(2026, 11, 21, 4, 8, 2, tzinfo=UTC), tail=2)

    assert [record.message for record in found] == ["at 1", "at 2"]


def test_the_last_lines_are_those_of_all_together() -> None:
    api = cluster(Manager([line(1, "one"), line(2, "two")]), *with_crash())
    api.logs["pong-actor-0-0001"] = [line(3, "three", process="actor/7")]

    assert [record.message for record in read(api, tail=2)] == ["two", "three"]


def test_the_life_before_is_read_from_pods_that_were_started_again() -> None:
    api = cluster(Manager([]), *with_crash())
    api.logs |= {"pong-actor-0-0001 previous": [line(4, "before")], "pong-actor-0-0001": [line(5, "now")]}

    assert [record.message for record in read(api, previous=True)] == ["before"]


@pytest.mark.parametrize(
    ("query", "left"),
    [
        ({"grep": "t[wh]"}, ["two", "three"]),
        ({"level": "ERROR"}, ["three"]),
        ({"since": datetime(2026, 11, 21, 4, 8, 2, tzinfo=UTC)}, ["two", "three"]),
        ({"until": datetime(2026, 11, 21, 4, 8, 2, tzinfo=UTC)}, ["one", "two"]),
        ({"role": "learner"}, ["two"]),
        ({"role": "actor", "index": 7}, ["one", "three"]),
    ],
)
def test_what_pods_say_is_filtered_too(query: dict[str, Any], left: list[str]) -> None:
    learner = crashing("pong-learner-0", "learner")
    api = Reads(workload("StatefulSet", "learner", 1, 0), learner, *with_crash())
    said = [line(1, "one", "actor/7"), line(3, "three", "actor/7", level="ERROR")]
    api.logs |= {"pong-actor-0-0001": said, "pong-learner-0": [line(2, "two", "learner/0")]}

    assert [record.message for record in read(api, **query)] == left


def test_without_a_manager_live_pods_are_read_and_that_is_said() -> None:
    api = Reads(*core()[2:])
    api.logs["pong-learner-0"] = ["no JSON at all"]
    told: list[str] = []

    found = read(api, told)

    assert [(record.process, record.message) for record in found] == [("learner/0", "no JSON at all")]
    assert told == ["the manager of run pong has no pod; this is only what live pods still have"]


def test_no_more_than_fifty_pods_are_read_and_that_is_said() -> None:
    api = cluster(Manager([]), *actors(1, 60, "CrashLoopBackOff"))
    for each in api.objects:
        if each["kind"] == "Pod" and each["status"]["phase"] == "Pending":
            each["status"]["containerStatuses"][0]["lastState"] = {"terminated": {"exitCode": 1}}
            api.logs[each["metadata"]["name"]] = [line(1, each["metadata"]["name"])]
    told: list[str] = []

    assert len(read(api, told)) == 50
    assert told == ["reading 50 of 60 pods that are not well; name one role, as in rlctl logs learner"]


def test_lost_lines_are_told() -> None:
    told: list[str] = []

    read(cluster(Manager([line(1, "one")], lost=12)), told)

    assert told == ["12 lines were lost before the manager could store them"]


@pytest.mark.parametrize(
    "said",
    [
        "unable to retrieve container logs for containerd://0a1b2c",
        'failed to try resolving symlinks in path "/var/log/pods/x/0.log": lstat /var/log/pods/x/0.log: no such file',
    ],
)
def test_what_a_node_writes_instead_of_a_log_is_no_record(said: str) -> None:
    api = cluster(Manager([]), *with_crash())
    api.logs["pong-actor-0-0001"] = [said]

    assert read(api) == []


def test_a_wrong_expression_is_the_users_mistake() -> None:
    with pytest.raises(UsageError, match="not a regular expression"):
        read(cluster(Manager([])), grep="(")


def test_following_goes_on_until_the_run_is_gone() -> None:
    manager = Manager([line(1, "one")], newer=[[line(2, "two")], [line(4, "four"), line(3, "three")]])

    found = read(cluster(manager), follow=True)  # there is no record of the run: it ends at the first look

    assert [record.message for record in found] == ["one", "two", "three", "four"]
    assert [asked["after"] for asked in manager.asked[1:]] == ["100", "101", "103", "103", "103"]


def test_following_goes_on_with_the_first_line_of_another_boot_of_the_manager() -> None:
    manager = Manager([line(1, "one")], newer=[[line(2, "two"), line(3, "three")]], begun_anew=True)

    found = read(cluster(manager), follow=True)

    assert [record.message for record in found] == ["one", "two", "three"]
    assert [asked["after"] for asked in manager.asked[1:]] == ["100", "0", "2", "2", "2", "2"]


def test_following_ends_at_the_time_asked_for() -> None:
    manager = Manager([line(1, "one")], newer=[[line(2, "two")]])

    found = read(cluster(manager), follow=True, until=datetime(2026, 11, 21, 4, 9, tzinfo=UTC))

    assert [record.message for record in found] == ["one", "two"]


def test_a_run_that_was_taken_down_says_where_its_logs_are() -> None:
    told: list[str] = []

    found = logs.read(Reads(), run_state("stopped"), LogQuery(), warn=told.append)

    assert list(found) == []
    assert told == ["run pong is stopped: its logs lie on its volume, and rlctl up SPEC shows them again"]
