"""Log records of many files: merged, filtered, followed, in bounded memory."""

from __future__ import annotations

import json
import os
import re
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rlctl.backends.base import LogQuery, LogRecord
from rlctl.backends.local.access.logfiles import LONGEST_LINE
from rlctl.backends.local.access.logs import read
from rlctl.errors import UsageError

START = datetime(2026, 11, 21, 3, 0, 0, tzinfo=UTC)


def line(second: float, message: str, level: str = "INFO", boot: str = "b1", **more: str) -> str:
    ts = (START + timedelta(seconds=second)).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return json.dumps({"ts": ts, "level": level, "boot": boot, "msg": message, "kv": {"n": 1}, **more}) + "\n"


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return tmp_path


def found(logs: Path, query: LogQuery | None = None) -> list[LogRecord]:
    return list(read(logs, query or LogQuery(), live=lambda: False, wait=lambda: None, clock=lambda: 0.0))


def messages(logs: Path, **query: object) -> list[str]:
    return [record.message for record in found(logs, replace(LogQuery(), **query))]  # type: ignore[arg-type]


def test_processes_are_merged_by_time(logs: Path) -> None:
    (logs / "actor-0.log").write_text(line(1, "a") + line(4, "d"))
    (logs / "actor-10.log").write_text(line(2, "b") + line(5, "e"))
    (logs / "learner-0.log").write_text(line(3, "c"))
    (logs / "supervisord.log").write_text("not a role's\n")
    assert messages(logs) == ["a", "b", "c", "d", "e"]
    first = found(logs)[0]
    assert (first.process, first.level, first.time) == ("actor/0", "INFO", START + timedelta(seconds=1))
    assert first.extra == {"n": 1, "boot": "b1"}


def test_rotated_files_come_first_and_are_one_log(logs: Path) -> None:
    (logs / "actor-0.log.2").write_text(line(1, "a"))
    (logs / "actor-0.log.1").write_text(line(2, "b"))
    (logs / "actor-0.log").write_text(line(3, "c"))
    assert messages(logs) == ["a", "b", "c"]
    (logs / "actor-0.log").unlink()
    assert messages(logs) == ["a", "b"], "in the middle of a rotation"


def test_a_role_or_one_replica_can_be_asked_for(logs: Path) -> None:
    for name in ("actor-0", "actor-1", "learner-0"):
        (logs / f"{name}.log").write_text(line(1, name))
    assert messages(logs, role="actor") == ["actor-0", "actor-1"]
    assert messages(logs, role="actor", index=1) == ["actor-1"]


def test_a_raw_line_takes_the_time_of_the_record_before_it(logs: Path) -> None:
    (logs / "actor-0.log").write_text(line(1, "a") + "printed\n" + line(3, "c"))
    (logs / "actor-1.log").write_text(line(2, "b"))
    assert messages(logs) == ["a", "printed", "b", "c"]
    printed = found(logs)[1]
    assert printed.time == START + timedelta(seconds=1)
    assert printed.level == "INFO"


def test_a_traceback_is_one_record_of_level_error(logs: Path) -> None:
    trace = 'Traceback (most recent call last):\n  File "x.py", line 1\n\nDuring handling of the above exception, another exception occurred:\n\nTraceback (most recent call last):\n  File "y.py"\nValueError: bad'  # noqa: E501
    (logs / "actor-0.log").write_text(line(1, "a") + trace + "\nprinted after\n" + line(2, "b"))
    assert messages(logs) == ["a", trace, "printed after", "b"]
    assert messages(logs, level="error") == [trace]
    assert messages(logs, grep="another exception") == [trace]
    assert messages(logs, tail=3) == [trace, "printed after", "b"]


def test_a_traceback_inside_a_json_line_belongs_to_its_record(logs: Path) -> None:
    (logs / "actor-0.log").write_text(line(1, "failed", "ERROR", exc="Traceback\nValueError: bad"))
    (record,) = found(logs, LogQuery(grep="ValueError"))
    assert record.extra["exc"] == "Traceback\nValueError: bad"
    assert record.message == "failed"


def test_a_record_after_text_without_a_line_end_is_found_and_the_text_is_one_of_its_own(logs: Path) -> None:
    (logs / "actor-0.log").write_text(
        "{" + line(1, "a") + "step 1 {step 2 " + line(2, "boom", "ERROR") + "{" + line(3, "new", boot="b2")
    )
    assert messages(logs) == ["{", "a", "step 1 {step 2 ", "boom", "{", "new"]
    assert messages(logs, level="error") == ["boom"]
    assert found(logs)[2].time == START + timedelta(seconds=1), "that of the record before"
    assert messages(logs, previous=True) == ["a", "step 1 {step 2 ", "boom", "{"]


def test_a_record_after_a_flood_without_a_line_end_is_found(logs: Path) -> None:
    (logs / "actor-0.log").write_text(line(1, "a") + "." * (3 * LONGEST_LINE) + line(2, "boom", "ERROR"))
    a, flood, boom = messages(logs)
    assert (a, boom) == ("a", "boom")
    assert 0 < len(flood) < LONGEST_LINE
    assert messages(logs, level="error", tail=5) == ["boom"]


def test_raw_text_before_any_record_has_the_time_of_the_first(logs: Path) -> None:
    (logs / "actor-0.log").write_text("early\n" + line(5, "a"))
    assert [record.time for record in found(logs)] == [START + timedelta(seconds=5)] * 2
    (logs / "actor-0.log").write_text("only raw\n")
    os.utime(logs / "actor-0.log", (1e9, 1e9))
    assert found(logs)[0].time == datetime.fromtimestamp(1e9, UTC)


@pytest.mark.parametrize(
    "grep", ["^plain", "words$", r"\Aplain words\Z", "(?i)PLAIN", "plain.words", "(?s)Trace.*bad", "a|b"]
)
def test_anchors_and_flags_mean_the_same_however_the_file_is_searched(logs: Path, grep: str) -> None:
    trace = "Traceback (most recent call last):\n  x\nValueError: bad"
    texts = [line(1, "other").rstrip(), "plain words", trace, line(2, "other").rstrip()]
    (logs / "actor-0.log").write_text("\n".join(texts))
    wanted = [record for record, text in zip(found(logs), texts, strict=True) if re.search(grep, text)]
    assert found(logs, LogQuery(grep=grep)) == wanted
    assert wanted


def test_level_means_at_least(logs: Path) -> None:
    levels = ["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]
    (logs / "actor-0.log").write_text("".join(line(second, level, level) for second, level in enumerate(levels)))
    assert messages(logs, level="warning") == levels[2:]
    with pytest.raises(UsageError, match="--level"):
        messages(logs, level="loud")


@pytest.mark.parametrize("query", [{"level": "error"}, {"grep": "boom"}])
def test_a_traceback_over_two_files_is_whole_and_has_its_time(logs: Path, query: dict[str, str]) -> None:
    trace = ["Traceback (most recent call last):", '  File "x.py", line 1, in <module>', "ValueError: boom"]
    (logs / "actor-0.log.3").write_text(line(1, "a"))
    (logs / "actor-0.log.2").write_text(line(7, "b"))
    (logs / "actor-0.log.1").write_text("\n".join(trace[:2]) + "\n")
    (logs / "actor-0.log").write_text(trace[2] + "\n" + line(9, "c"))
    (only,) = found(logs, replace(LogQuery(), **query))  # type: ignore[arg-type]
    assert only.message == "\n".join(trace)
    assert only.time == START + timedelta(seconds=7)


@pytest.mark.parametrize("separators", [(",", ":"), (" , ", " : "), (", ", ": ")])
def test_levels_are_found_however_the_line_is_spaced(logs: Path, separators: tuple[str, str]) -> None:
    said = [json.loads(line(n, level, level)) for n, level in enumerate(("INFO", "WARN", "ERROR", "CRITICAL"))]
    said.append({**said[0], "msg": 'says "level": "ERROR"'})
    (logs / "actor-0.log").write_text("".join(json.dumps(one, separators=separators) + "\n" for one in said))
    assert messages(logs, level="warning") == ["WARN", "ERROR", "CRITICAL"]
    assert messages(logs, level="critical") == ["CRITICAL"]


def test_since_and_until_are_inclusive(logs: Path) -> None:
    (logs / "actor-0.log").write_text("".join(line(second / 2, str(second)) for second in range(10)))
    since, until = START + timedelta(seconds=1), START + timedelta(seconds=2.5)
    assert messages(logs, since=since, until=until) == ["2", "3", "4", "5"]


def test_files_written_last_before_since_are_not_opened(logs: Path) -> None:
    (logs / "actor-0.log.1").write_text(line(100, "in a file that claims to be old"))
    os.utime(logs / "actor-0.log.1", (START.timestamp(), START.timestamp()))
    (logs / "actor-0.log").write_text(line(101, "new"))
    assert messages(logs, since=START + timedelta(seconds=50)) == ["new"]


def test_tail_counts_what_matches_over_all_processes(logs: Path) -> None:
    for index in range(3):
        (logs / f"actor-{index}.log").write_text(
            "".join(line(10 * number + index, f"{number}.{index}", boot="x" * 60) for number in range(3000))
        )
    assert messages(logs, tail=4) == ["2998.2", "2999.0", "2999.1", "2999.2"]
    assert messages(logs, tail=2, grep='"7[.]1"') == ["7.1"], "even when it lies far from the end"
    assert messages(logs, tail=0) == []


def test_previous_is_the_boot_before_the_present_one(logs: Path) -> None:
    (logs / "actor-0.log.1").write_text(line(1, "first", boot="b1") + line(2, "second", boot="b2"))
    (logs / "actor-0.log").write_text(line(3, "still second", boot="b2") + "last words\n" + line(4, "third", boot="b3"))
    (logs / "actor-1.log").write_text(line(3, "never restarted", boot="c1"))
    assert messages(logs, previous=True) == ["second", "still second", "last words"]
    assert messages(logs, previous=True, tail=1) == ["last words"]


def test_a_wrong_expression_is_refused(logs: Path) -> None:
    with pytest.raises(UsageError, match="regular expression"):
        messages(logs, grep="(")


@pytest.mark.parametrize(
    "wrong",
    ['{"ts": 5}', '{"ts": "yesterday", "msg": "x"}', '{"half": ', '{"ts":"2026-11-21T03:00:00Z","kv":7}', "{" * 5000],
)
def test_a_broken_json_line_is_raw_text(logs: Path, wrong: str) -> None:
    (logs / "actor-0.log").write_text(line(1, "a") + wrong + "\n" + line(2, "b"))
    assert messages(logs) == ["a", wrong, "b"]


def test_bytes_that_are_no_text_are_shown_as_such(logs: Path) -> None:
    (logs / "actor-0.log").write_bytes(line(1, "a").encode() + b"\xff\xfe\n" + b"no line end")
    assert messages(logs) == ["a", "\ufffd\ufffd", "no line end"]


def test_memory_stays_small_while_large_files_are_read(logs: Path) -> None:
    with (logs / "actor-0.log").open("w") as file:
        for second in range(16_000):
            file.write(line(second, "x" * 1_200))
        file.write("y" * (5 << 20) + "\n")  # one line, longer than anybody wants
    tracemalloc.start()
    count = sum(1 for _ in read(logs, LogQuery(), live=lambda: False, wait=lambda: None, clock=lambda: 0.0))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 16_001
    assert (logs / "actor-0.log").stat().st_size > 20 << 20
    assert peak < 8 << 20


class Writer:
    """Writes something at each pause of a follower, then ends the run."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        self._steps = list(steps)

    def wait(self) -> None:
        if self._steps:
            self._steps.pop(0)()

    def live(self) -> bool:
        return bool(self._steps)

    def follow(self, logs: Path, **query: object) -> Iterator[str]:
        asked = replace(LogQuery(follow=True), **query)  # type: ignore[arg-type]
        for record in read(logs, asked, live=self.live, wait=self.wait, clock=lambda: 0.0):
            yield record.message


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_following_goes_on_from_what_was_there_and_sees_new_processes(logs: Path) -> None:
    (logs / "actor-0.log").write_text(line(1, "a") + line(2, "b"))
    writer = Writer(
        lambda: append(logs / "actor-0.log", line(3, "c")),
        lambda: append(logs / "actor-1.log", line(4, "d")),
        lambda: append(logs / "actor-0.log", line(5, "e")),
    )
    assert list(writer.follow(logs, tail=1)) == ["b", "c", "d", "e"]


def test_following_survives_a_rotation_and_a_half_written_line(logs: Path) -> None:
    log = logs / "actor-0.log"
    log.write_text(line(1, "a") + line(2, "b")[:20])

    def rotate() -> None:
        append(log, line(3, "c"))
        log.rename(logs / "actor-0.log.1")
        log.write_text(line(4, "d"))

    writer = Writer(lambda: append(log, line(2, "b")[20:]), rotate, lambda: append(log, line(5, "e")))
    assert list(writer.follow(logs)) == ["a", "b", "c", "d", "e"]


def test_following_reads_files_that_were_rotated_away_during_a_long_pause(logs: Path) -> None:
    log = logs / "actor-0.log"
    log.write_text(line(1, "a"))

    def flood() -> None:
        append(log, line(2, "b"))
        log.rename(logs / "actor-0.log.2")
        (logs / "actor-0.log.1").write_text(line(3, "c"))
        log.write_text(line(4, "d"))

    writer = Writer(flood, lambda: append(log, line(5, "e")), lambda: None, lambda: None)
    assert list(writer.follow(logs)) == ["a", "b", "c", "d", "e"]


def test_a_followed_record_after_a_flood_without_a_line_end_comes_though_it_is_written_in_two_parts(
    logs: Path,
) -> None:
    log = logs / "actor-0.log"
    log.write_text(line(1, "a"))
    boom = line(2, "boom", "ERROR")
    writer = Writer(
        lambda: append(log, "." * (2 * LONGEST_LINE) + boom[:60]), lambda: append(log, boom[60:]), lambda: None
    )
    assert list(writer.follow(logs, level="ERROR")) == ["boom"]


def test_a_followed_traceback_comes_whole_at_the_next_pause(logs: Path) -> None:
    log = logs / "actor-0.log"
    log.write_text(line(1, "a"))
    trace = 'Traceback (most recent call last):\n  File "x.py"\nValueError: bad'
    writer = Writer(lambda: append(log, trace + "\n"), lambda: None, lambda: append(log, line(2, "b")))
    assert list(writer.follow(logs)) == ["a", trace, "b"]


def test_followed_records_are_filtered_too(logs: Path) -> None:
    log = logs / "actor-0.log"
    log.write_text(line(1, "a", "ERROR"))
    writer = Writer(
        lambda: append(log, line(2, "b") + line(3, "c", "ERROR")), lambda: append(log, line(4, "d", "ERROR"))
    )
    assert list(writer.follow(logs, level="ERROR", grep="[ac]")) == ["a", "c"]


def test_following_a_run_that_has_ended_ends_with_what_is_there(logs: Path) -> None:
    (logs / "actor-0.log").write_text(line(1, "a") + "no line end")
    assert list(Writer().follow(logs)) == ["a", "no line end"]
