"""`logs`: merged by time, filtered, harmless."""

import json
import signal

import pytest

from rlctl.backends.base import LogRecord
from tests.cli.conftest import Rlctl


@pytest.fixture
def talking(rlctl: Rlctl) -> Rlctl:
    rlctl.up()
    rlctl.time_s = 600
    rlctl.log("actor/1", "third", ago_s=10, level="WARNING")
    rlctl.log("actor/0", "first", ago_s=300, episodes=3)
    rlctl.log("learner/0", "second", ago_s=60, level="ERROR", exc="Traceback (most recent call last):\n  boom")
    return rlctl


def messages(rlctl: Rlctl, *arguments: str) -> list[str]:
    return [line["message"] for line in rlctl("logs", *arguments, "-o", "json").lines]


def test_records_of_all_replicas_are_merged_by_time(talking: Rlctl) -> None:
    result = talking("logs")
    assert result.code == 0
    assert result.out.splitlines() == [
        "04:05:00.000 actor/0     INFO    first episodes=3",
        "04:09:00.000 learner/0   ERROR   second",
        "    Traceback (most recent call last):",
        "      boom",
        "04:09:50.000 actor/1     WARNING third",
    ]


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["actor"], ["first", "third"]),
        (["actor/1"], ["third"]),
        (["--since", "2m"], ["second", "third"]),
        (["--since", "2026-11-21T04:08:00Z"], ["second", "third"]),
        (["--until", "5m"], ["first"]),
        (["--since", "2m", "--until", "30s"], ["second"]),
        (["--tail", "1"], ["third"]),
        (["--tail", "all"], ["first", "second", "third"]),
        (["--tail", "9" * 5000], ["first", "second", "third"]),
        (["--grep", "^s.*d$"], ["second"]),
        (["--level", "warning"], ["second", "third"]),
        (["--level", "ERROR", "learner"], ["second"]),
    ],
)
def test_filters_choose_records(talking: Rlctl, arguments: list[str], found: list[str]) -> None:
    assert messages(talking, *arguments) == found


def test_no_match_is_1_as_with_grep(talking: Rlctl) -> None:
    result = talking("logs", "--grep", "no such words")
    assert result.code == 1
    assert result.out == ""
    assert "no record" in result.err


def test_the_previous_life_is_another_log(talking: Rlctl) -> None:
    talking.backend.say("pole", LogRecord(talking.now(), "ERROR", "actor/1", "died"), previous=True)
    assert messages(talking, "--previous") == ["died"]
    assert "died" not in messages(talking)


def test_a_life_that_is_over_is_not_followed(talking: Rlctl) -> None:
    result = talking("logs", "--previous", "-f")
    assert (result.code, result.out) == (2, "")
    assert "leave out -f" in result.err


def test_follow_goes_on_with_what_is_said_until_the_run_is_over(talking: Rlctl) -> None:
    talking.at(605, lambda: talking.log("actor/0", "fourth"))
    assert messages(talking, "-f", "--tail", "1") == ["third", "fourth"]


def test_ctrl_c_ends_a_followed_log_with_130(talking: Rlctl) -> None:
    talking.at(605, lambda: signal.raise_signal(signal.SIGINT))
    assert talking("logs", "-f").code == 130


def test_escapes_of_a_process_do_not_reach_the_terminal(talking: Rlctl) -> None:
    talking.log("actor/0", "\x1b]0;owned\x07\x1b[31mred\x1b[0m\r\x9b2J", note="\x1b[2Jx")
    shown = talking("logs", "--tail", "1").out
    assert shown.endswith("actor/0     INFO    red note=x\n")


def test_json_has_what_was_said_unchanged_one_document_a_line(talking: Rlctl) -> None:
    talking.log("actor/0", "two\nlines \x1b[31m", a={"b": 1})
    line = talking("logs", "-o", "json", "--tail", "1").out
    assert line.count("\n") == 1
    assert json.loads(line) == {
        "apiVersion": "rlctl/v1",
        "time": "2026-11-21T04:10:00.000000Z",
        "level": "INFO",
        "process": "actor/0",
        "message": "two\nlines \x1b[31m",
        "extra": {"a": {"b": 1}},
    }


@pytest.mark.parametrize(
    "arguments",
    [
        ["actr"],
        ["actor/x"],
        ["actor/"],
        ["replay"],
        ["--grep", "("],
        ["--grep", "(?u)x"],
        ["--grep", "x{99999999999}"],
        ["--since", "1000000d"],
        ["--since", "yesterday"],
        ["--since", "1m", "--until", "2m"],
        ["--tail", "-1"],
        ["--level", "loud"],
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(talking: Rlctl, arguments: list[str]) -> None:
    assert talking("logs", *arguments).code == 2


def test_logs_answer_when_the_run_is_over(talking: Rlctl) -> None:
    talking("down")
    assert messages(talking) == ["first", "second", "third"]


@pytest.mark.parametrize(
    ("pod", "hint"),
    [("pole-learner-0", "rlctl logs learner/0"), ("pole-actor-0-7d9f8c6b54-x2x4q", "rlctl logs actor")],
)
def test_the_name_of_a_pod_gets_the_name_of_the_process(rlctl: Rlctl, pod: str, hint: str) -> None:
    result = rlctl("logs", pod)
    assert result.code == 2
    assert result.err.endswith(f"next: {hint}\n")
