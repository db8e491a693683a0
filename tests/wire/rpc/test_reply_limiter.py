from __future__ import annotations

from rlctl_agents.wire.rpc.reply_limiter import AT_ONCE, EACH, SLOW_S, SLOWEST, WAITING_EACH, ReplyLimiter
from tests.wire.pair import Clock


class Tracker:
    done = False


def busy(clock: Clock) -> tuple[ReplyLimiter[str], list[Tracker]]:
    turns, trackers = ReplyLimiter[str](clock), [Tracker() for _ in range(AT_ONCE)]
    for tracker in trackers:
        assert turns.free()
        turns.began(tracker, int(2 * SLOWEST))  # type: ignore[arg-type]
    return turns, trackers


def test_only_a_few_are_sent_something_at_once_and_the_next_one_goes_when_one_is_done() -> None:
    turns, trackers = busy(Clock())
    turns.wait(("", "a"), "a's")
    turns.wait(("", "b"), "b's")
    assert turns.next() is None
    trackers[3].done = True
    assert turns.next() == "a's"


def test_who_asks_again_keeps_its_place_with_the_newer_request() -> None:
    turns, trackers = busy(Clock())
    for client, request in (("a", "old"), ("b", "b's"), ("a", "new")):
        turns.wait(("", client), request)
    for tracker in trackers:
        tracker.done = True
    assert [turns.next(), turns.next(), turns.next()] == ["new", "b's", None]


def test_nobody_waits_for_ever_for_a_receiver_that_takes_nothing() -> None:
    clock = Clock()
    turns, _ = busy(clock)
    turns.wait(("", "a"), "a's")
    clock.now += SLOW_S
    assert turns.next() is None, "over the slowest link it would not be there yet"
    clock.now += 2.0
    assert turns.next() == "a's"


def test_what_has_arrived_is_forgotten_though_nobody_asks_for_a_turn() -> None:
    turns, trackers = busy(Clock())
    for tracker in trackers:
        tracker.done = True
    turns.began(Tracker(), 1)  # type: ignore[arg-type]
    assert len(turns._under_way) == 1


def test_callers_at_one_address_that_read_nothing_leave_turns_to_those_at_others() -> None:
    turns, trackers = ReplyLimiter[str](Clock()), [Tracker() for _ in range(EACH)]
    for tracker in trackers:
        turns.began(tracker, 1, "10.0.0.7")  # type: ignore[arg-type]
    assert not turns.free("10.0.0.7")
    assert turns.free("10.0.0.8")
    turns.wait(("actor", "a"), "a's", "10.0.0.7")
    turns.wait(("actor", "b"), "b's", "10.0.0.8")
    assert [turns.next(), turns.next()] == ["b's", None]
    trackers[0].done = True
    assert turns.next() == "a's"


def test_callers_that_never_read_hold_their_turns_at_their_address_and_no_others() -> None:
    clock = Clock()
    turns = ReplyLimiter[str](clock)
    trackers = [Tracker() for _ in range(AT_ONCE)]
    for number, tracker in enumerate(trackers):
        turns.began(tracker, 1, f"10.0.0.{number // EACH}")  # type: ignore[arg-type]
    turns.wait(("actor", "a"), "a's", "10.0.0.0")
    turns.wait(("actor", "b"), "b's", "10.0.1.0")
    assert turns.next() is None
    clock.now += SLOW_S + 1.0
    assert [turns.next(), turns.next()] == ["b's", None], "what they have not read is in memory still"
    trackers[0].done = True
    assert turns.next() == "a's"


def test_callers_at_one_address_leave_room_for_requests_of_others() -> None:
    turns = ReplyLimiter[int](Clock())
    for number in range(WAITING_EACH + 5):
        turns.wait(("actor", str(number)), number, "10.0.0.7")
    turns.wait(("actor", "other"), -1, "10.0.0.8")
    found = list(iter(turns.next, None))
    assert found == [*range(WAITING_EACH), -1]
