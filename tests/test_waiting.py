"""Waits have a bound, and say what they wait for."""

from __future__ import annotations

from rlctl.waiting import Waiting


def test_a_wait_says_every_ten_seconds_what_it_waits_for_until_its_bound() -> None:
    now, said = [0.0], list[str]()
    patience = Waiting(25.0, said.append, clock=lambda: now[0])
    left = []
    for now[0] in (0.0, 4.0, 10.0, 20.0, 25.0):
        left.append(patience.left_s("supervisord (pid 7)"))
    assert left == [10.0, 6.0, 10.0, 5.0, 0.0]
    assert said == [f"waiting for supervisord (pid 7) since {since} s, 25 s at most" for since in (10, 20)]


def test_progress_moves_the_bound_of_a_wait() -> None:
    now, said = [0.0], list[str]()
    waiting = Waiting(8.0, said.append, clock=lambda: now[0])
    now[0] = 7.0
    waiting.moved()
    now[0] = 12.0
    assert not waiting.over("pods")
    now[0] = 15.0
    assert waiting.over("pods")
    assert said == ["waiting for pods since 12 s, 15 s at most"]


def test_until_returns_what_was_seen_last_when_the_time_is_over() -> None:
    now, slept, looks = [0.0], list[float](), iter([0, 0, 7, 8])

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    def waiting() -> Waiting:
        return Waiting(1.5, clock=lambda: now[0], sleep=sleep)

    assert waiting().until(lambda: next(looks), 1.0) == 7
    assert slept == [1.0, 0.5]
    assert waiting().until(lambda: 0, 1.0) == 0
    assert slept[2:] == [1.0, 0.5]
