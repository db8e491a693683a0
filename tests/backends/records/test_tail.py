"""The end of a log in words."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from rlctl.backends.records.tail import last_error, readable


def line(message: str, level: str = "INFO", ts: str = "2026-11-21T03:54:09.123456Z", **more: str) -> str:
    return json.dumps({"ts": ts, "level": level, "msg": message, **more})


def test_the_exception_of_a_record_belongs_to_the_error() -> None:
    record = line("update failed", "ERROR", exc="Traceback (most recent call last):\n  File x\nValueError: loss is NaN")
    assert last_error([record], 0.0) == "update failed: ValueError: loss is NaN"


def test_an_exception_that_the_message_names_already_is_not_said_twice() -> None:
    record = line("EnvError: NaN reward", "ERROR", exc="Traceback\nrlctl_agents.envs.base.EnvError: NaN reward")
    assert last_error([record], 0.0) == "EnvError: NaN reward"


def test_the_last_line_of_a_raw_traceback_is_the_error() -> None:
    lines = [
        line("starts"),
        "Traceback (most recent call last):",
        '  File "x.py"',
        "ModuleNotFoundError: No module named 'x'",
    ]
    assert last_error(lines, 0.0) == "ModuleNotFoundError: No module named 'x'"


def test_half_of_a_pair_of_surrogates_can_be_stored() -> None:
    assert readable([line("half \ud83d")])[0].encode().endswith(b"half ?")


@pytest.mark.parametrize("text", ["step 3 ", "{", '{"score": 1}', '{"ts": "2026-11-21T03:54:09Z", "level": "', "..é.."])
def test_a_record_after_text_without_a_line_end_is_the_error_and_the_text_is_shown(text: str) -> None:
    record = line("EnvError: NaN reward", "ERROR")
    assert last_error([text + record], 0.0) == "EnvError: NaN reward"
    assert readable([text + record]) == [text, "03:54:09 ERROR EnvError: NaN reward"]


def test_a_record_that_is_quoted_within_text_or_within_another_record_is_none() -> None:
    record = line("EnvError: NaN reward", "ERROR")
    assert last_error([f"it said {record} before"], 0.0) == ""
    other = json.dumps({"ts": "2026-11-21T03:54:09Z", "level": "INFO", "msg": record, "kv": json.loads(record)})
    assert last_error([other], 0.0) == ""
    assert len(readable([other])) == 1


def test_an_error_of_an_earlier_life_is_not_blamed() -> None:
    old = line("out of memory", "ERROR", ts="2026-11-21T03:00:00Z")
    new = line("starts", ts="2026-11-21T04:00:00Z")
    started = datetime(2026, 11, 21, 3, 40, tzinfo=UTC).timestamp()
    assert last_error([old, new], started) == ""


def test_a_later_life_without_any_record_blames_its_own_raw_error_only() -> None:
    old = line("out of memory", "ERROR", ts="2026-11-21T03:00:00Z")
    started = datetime(2026, 11, 21, 3, 40, tzinfo=UTC).timestamp()
    assert last_error([old, "ImportError: no torch"], started) == "ImportError: no torch"


def test_lines_are_readable_and_cannot_steer_a_terminal() -> None:
    lines = readable([line("hello\x1b[2J", exc="Traceback\nValueError: x"), "raw \x07text", "x" * 9000])
    assert lines[:4] == ["03:54:09 INFO hello [2J", "Traceback", "ValueError: x", "raw  text"]
    assert len(lines[4]) == 500
