"""A target that does not say how the processes are, and one that lets a verb wait."""

from collections.abc import Iterator

import pytest

from rlctl.backends.base import Applied
from rlctl.errors import BackendUnreachable
from tests.cli.conftest import STATUS, Rlctl
from tests.support.memory import MemoryBackend

FROZEN = BackendUnreachable(
    "supervisord (pid 4711) does not answer within 3 s: a signal has stopped it",
    hint="kill -CONT 4711",
    objects=("supervisord",),
)


def test_status_tells_the_rest_within_three_seconds_with_the_problem_and_the_next_command(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl.backend.freeze("pole", FROZEN)
    result = rlctl("status")
    assert result.code == 0
    assert rlctl.time_s <= 3
    assert result.out.startswith(STATUS["verdict"]["text"] + "\n")
    assert f"problem: {FROZEN.message}\n   next: kill -CONT 4711\n" in result.out
    assert result.out.count("problem:") == 1
    actors = next(line for line in result.out.splitlines() if line.startswith("actor  "))
    assert actors.split() == ["actor", "?/2", "unknown", "0", "-"]
    assert rlctl("status", "--check").code == 1


def test_status_says_that_figures_are_old_when_the_manager_is_silent_too(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl.backend.freeze("pole", FROZEN)
    rlctl.backend.silence("pole")
    shown = rlctl("status").out
    assert shown.startswith("the manager does not answer; figures are what it said last\n")
    assert "76,800 env steps" in shown


def test_who_stays_with_the_run_is_told_once_and_hears_nothing_of_processes_nobody_sees(rlctl: Rlctl) -> None:
    rlctl.at(1, rlctl.report)
    rlctl.at(3, lambda: rlctl.backend.freeze("pole", FROZEN))
    result = rlctl("up", rlctl.spec, "--timeout", "30s")
    assert result.code == 6
    assert result.err.count(f"problem: {FROZEN.message}; next: kill -CONT 4711") == 1
    assert "actor 0/2 running" not in result.err
    assert "slowest: supervisord (no answer)" in result.err


def test_a_run_that_cannot_be_seen_is_not_ready(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl.backend.freeze("pole", FROZEN)
    result = rlctl("wait", "--for", "ready", "--timeout", "15s")
    assert result.code == 6
    assert "waiting for ready, running; slowest: supervisord (no answer)" in result.err


def away(rlctl: Rlctl, since_s: float, until_s: float) -> None:
    """A target that does not answer at all for a while."""
    rlctl.at(since_s, lambda: setattr(rlctl.backend, "unreachable", True))
    rlctl.at(until_s, lambda: setattr(rlctl.backend, "unreachable", False))


@pytest.mark.parametrize("verb", ["wait", "up"])
def test_a_target_that_is_away_for_four_minutes_ends_no_command_that_waits(rlctl: Rlctl, verb: str) -> None:
    rlctl.up()
    away(rlctl, 5, 245)
    rlctl.at(300, lambda: rlctl.backend.finish("pole", "eval_return 480 >= 475"))
    result = rlctl("wait", "pole", "--timeout", "12h") if verb == "wait" else rlctl("up", rlctl.spec)
    assert result.code == 0
    assert result.err.count("the target does not answer") == 1


def test_a_target_that_stays_away_ends_a_wait_after_five_minutes(rlctl: Rlctl) -> None:
    rlctl.up()
    away(rlctl, 5, 5000)
    assert rlctl("wait", "pole", "--timeout", "12h").code == 4
    assert 300 <= rlctl.time_s < 315


def test_a_wait_for_a_target_that_is_away_keeps_to_its_own_time(rlctl: Rlctl) -> None:
    rlctl.up()
    away(rlctl, 5, 5000)
    result = rlctl("wait", "pole", "--timeout", "60s")
    assert (result.code, rlctl.time_s < 65) == (6, True)
    assert "asked again for 300 s at most" in result.err


class Slow(MemoryBackend):
    """A target that has to be waited for."""

    def restart(self, run: str, role: str) -> Iterator[Applied]:
        self.waiting("waiting for supervisord (pid 4711) since 10 s, 60 s at most")
        yield from super().restart(run, role)


def test_whom_a_verb_waits_for_is_said_on_standard_error(rlctl: Rlctl) -> None:
    rlctl.backend = Slow(now=rlctl.now)
    rlctl.up()
    result = rlctl("restart", "learner", "-o", "json")
    assert result.err.startswith("waiting for supervisord (pid 4711) since 10 s, 60 s at most\n")
    assert result.json["applied"]
    assert "waiting" not in rlctl("restart", "learner", "-q").err
