"""A death in words."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from rlctl.backends.local.process.causes import describe, signal_name, startup_s
from rlctl.backends.local.process.restart_policy import Death


def line(message: str, level: str = "INFO", ts: str = "2026-11-21T03:54:09.123456Z") -> str:
    return json.dumps({"ts": ts, "level": level, "msg": message})


def told(tmp_path: Path, death: Death, log: str = "", supervisor: str = "", *, oom: bool = False) -> str:
    (tmp_path / f"{death.name}.log").write_text(log)
    (tmp_path / "supervisord.log").write_text(supervisor)
    return describe(death, tmp_path, started=0.0, error="out of file descriptors", out_of_memory=oom).text


def test_exit_code_age_and_last_error_make_one_sentence(tmp_path: Path) -> None:
    log = "\n".join([line("starts"), line("EnvError: step returned NaN reward (pong, seed 41)", "ERROR"), line("bye")])
    assert told(tmp_path, Death("actor-7", 1, 192.4), log) == (
        "actor 7 exited 1 after 00:03:12: EnvError: step returned NaN reward (pong, seed 41)"
    )


def test_sigkill_is_named_with_what_it_may_mean(tmp_path: Path) -> None:
    said = "INFO exited: actor-1 (terminated by SIGSEGV; not expected)\n"
    said += "WARN exited: actor-0 (terminated by SIGKILL; not expected)\n"
    assert told(tmp_path, Death("actor-0", -1, 5.0), supervisor=said) == (
        "actor 0 was killed by signal 9 (out of memory, or another process's kill) after 00:00:05"
    )
    assert "the kernel ran out of memory" in told(tmp_path, Death("actor-0", -1, 5.0), supervisor=said, oom=True)
    assert "signal 11 (SIGSEGV: a fault in native code)" in told(tmp_path, Death("actor-1", -1, 5.0), supervisor=said)


def test_a_signal_that_nobody_logged_is_still_a_signal(tmp_path: Path) -> None:
    assert "was killed by a signal" in told(tmp_path, Death("actor-0", -1, 5.0))


def test_the_newest_signal_counts() -> None:
    lines = [
        "exited: actor-0 (terminated by SIGKILL; not expected)",
        "exited: actor-0 (terminated by SIGBUS (core dumped); x)",
    ]
    assert signal_name("actor-0", lines) == "SIGBUS"


def test_a_process_that_could_not_be_started_says_why(tmp_path: Path) -> None:
    assert told(tmp_path, Death("actor-0", None, 0.0)) == "actor 0 could not be started: out of file descriptors"


def test_a_death_is_told_with_the_last_lines_as_a_person_reads_them(tmp_path: Path) -> None:
    (tmp_path / "actor-0.log").write_text("\n".join(line(str(number)) for number in range(50)))
    report = describe(Death("actor-0", 1, 1.0), tmp_path, started=0.0, error="", out_of_memory=False)
    assert len(report.last_lines) == 20
    assert report.last_lines[-1].endswith("INFO 49")


def test_a_process_without_a_log_is_told_too(tmp_path: Path) -> None:
    report = describe(Death("learner-0", 1, 3725.0), tmp_path, started=0.0, error="", out_of_memory=False)
    assert report.text == "learner 0 exited 1 after 01:02:05"
    assert report.last_lines == ()


def test_startup_ends_with_the_lease_of_this_life_and_not_of_the_one_before(tmp_path: Path) -> None:
    granted = line("lease granted", ts="2026-11-21T04:00:20Z")
    path = tmp_path / "actor-0.log"
    began = datetime(2026, 11, 21, 4, 0, 0, tzinfo=UTC).timestamp()
    path.write_text("\n".join([line("started", ts="2026-11-21T04:00:01Z"), granted, line("EnvError: bad", "ERROR")]))
    assert startup_s("actor-0", tmp_path, began) == 20.0
    assert startup_s("actor-0", tmp_path, began + 25) is None
    assert startup_s("actor-1", tmp_path, began) is None, "it has no log"


def test_an_environment_that_prints_without_a_line_end_hides_neither_the_lease_nor_the_error(tmp_path: Path) -> None:
    began = datetime(2026, 11, 21, 4, 0, 0, tzinfo=UTC).timestamp()
    path = tmp_path / "actor-0.log"
    path.write_text("loading {" + line("lease granted", ts="2026-11-21T04:00:20Z") + "\n.")
    assert startup_s("actor-0", tmp_path, began) == 20.0
    flood = "." * 300_000
    assert told(tmp_path, Death("actor-0", 1, 5.0), flood + line("EnvError: bad", "ERROR") + "\n") == (
        "actor 0 exited 1 after 00:00:05: EnvError: bad"
    )


def test_the_manager_is_there_when_it_listens(tmp_path: Path) -> None:
    (tmp_path / "manager-0.log").write_text(line("listening", ts="2026-11-21T04:00:02Z"))
    began = datetime(2026, 11, 21, 4, 0, 0, tzinfo=UTC).timestamp()
    assert startup_s("manager-0", tmp_path, began) == 2.0


def test_who_has_said_too_much_for_its_lease_to_be_seen_has_joined(tmp_path: Path) -> None:
    began = datetime(2026, 11, 21, 4, 0, 0, tzinfo=UTC).timestamp()
    said = line("a step was slow", ts="2026-11-21T04:00:30Z") + "\n"
    (tmp_path / "actor-0.log").write_text(line("lease granted", ts="2026-11-21T04:00:02Z") + "\n" + said * 6000)
    assert startup_s("actor-0", tmp_path, began) == 0.0
