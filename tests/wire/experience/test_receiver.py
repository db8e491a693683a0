"""A receiver of messages that no honest sender of ours would send."""

from __future__ import annotations

import re
import threading
import time

import msgspec
import pytest

from rlctl_agents.types.experience import SegmentBlock
from rlctl_agents.wire.codec import PROTOCOL, Rejected
from rlctl_agents.wire.experience.protocol import FORGET_AFTER_S, Grant, Refusal, to_sender
from rlctl_agents.wire.experience.receiver import (
    BARRED_S,
    HELD_S,
    HELLOS,
    HELLOS_PER_S,
    QUARANTINE_AFTER,
    ExperienceReceiver,
)
from rlctl_agents.wire.sockets import Wire
from tests.wire.pair import LIMIT_S, STEPS, Clock, RawSender, carry, make_receiver, make_sender, until

ROWS = 2 * STEPS


def test_a_gap_in_the_sequence_is_counted_as_lost(wire: Wire, address: str) -> None:
    receiver, raw = make_receiver(wire, address), RawSender(wire, address)
    raw.greet(receiver, want=5 * ROWS)
    for sequence in (0, 3):
        raw.say(raw.block(sequence))
    until(lambda: receiver.accounts["raw"].received == 2 * ROWS, lambda: receiver.poll(0.001))
    assert receiver.accounts["raw"].lost == 2 * ROWS


def test_the_loss_of_the_last_blocks_shows_at_the_next_hello(wire: Wire, address: str) -> None:
    receiver, raw = make_receiver(wire, address), RawSender(wire, address)
    raw.greet(receiver)
    raw.say(raw.hello(sequence=3, produced=3 * ROWS, sent=3 * ROWS, want=0))
    until(lambda: receiver.accounts["raw"].lost == 3 * ROWS, lambda: receiver.poll(0.001))


def test_what_was_settled_between_two_looks_is_given_out_in_one_grant(wire: Wire, address: str) -> None:
    receiver, raw = make_receiver(wire, address, budget_rows=2 * ROWS), RawSender(wire, address)
    raw.greet(receiver, want=5 * ROWS)
    for sequence in (0, 1):
        raw.say(raw.block(sequence, want=5 * ROWS))
    segments: list[SegmentBlock] = []
    until(lambda: len(segments) == 2, lambda: segments.extend(receiver.poll(0.001)))
    for segment in segments:
        receiver.settle(segment, "consumed")
    limits: list[int] = []
    while 4 * ROWS not in limits:
        answer = raw.hear(receiver)
        assert isinstance(answer, Grant)
        limits.append(answer.limit)
    assert 3 * ROWS not in limits


def test_a_hello_is_answered_with_the_credit_that_it_asks_for(wire: Wire, address: str) -> None:
    receiver, raw = make_receiver(wire, address), RawSender(wire, address)
    raw.say(raw.hello(want=ROWS))
    answer = raw.hear(receiver)
    assert isinstance(answer, Grant)
    assert answer.limit >= ROWS


def test_a_block_that_comes_twice_is_delivered_once(wire: Wire, address: str) -> None:
    receiver, raw = make_receiver(wire, address), RawSender(wire, address)
    raw.greet(receiver, want=5 * ROWS)
    for sequence in (0, 1, 0, 1, 1):
        raw.say(raw.block(sequence))
    segments = []
    until(lambda: receiver.rejected.get("duplicate") == 3, lambda: segments.extend(receiver.poll(0.001)))
    assert [segment.header.sequence for segment in segments] == [0, 1]
    assert receiver.accounts["raw"].received == 2 * ROWS


def test_a_block_beyond_the_credit_is_not_taken(wire: Wire, address: str) -> None:
    receiver, raw = make_receiver(wire, address, budget_rows=2 * ROWS), RawSender(wire, address)
    limit = raw.greet(receiver, want=2 * ROWS).limit
    for sequence in range(limit // ROWS + 2):
        raw.say(raw.block(sequence))
    until(lambda: receiver.rejected.get("credit") == 2, lambda: receiver.poll(0.001))
    assert receiver.outstanding == limit


def test_a_block_of_a_forgotten_sender_is_not_taken_and_ends_as_lost(wire: Wire, address: str) -> None:
    clock = Clock()
    receiver, raw = make_receiver(wire, address, clock=clock), RawSender(wire, address)
    raw.greet(receiver)
    for _ in range(20):
        clock.now += 0.5
        receiver.poll(0.0)
    assert receiver.outstanding == 0
    raw.say(raw.block(0))
    until(lambda: receiver.rejected.get("credit") == 1, lambda: receiver.poll(0.001))
    raw.say(raw.hello(sequence=1, sent=ROWS, produced=ROWS))
    until(lambda: receiver.accounts["raw"].lost == ROWS, lambda: receiver.poll(0.001))


def test_blocks_without_hello_or_for_another_receiver_are_not_taken(wire: Wire, address: str) -> None:
    receiver, raw = make_receiver(wire, address), RawSender(wire, address)
    raw.say(raw.block(0))
    raw.say(raw.block(0, receiver="earlier"))
    raw.say(raw.block(0, run="other"))
    until(lambda: len(receiver.rejected) == 3, lambda: receiver.poll(0.001))
    assert receiver.rejected == {"unknown": 1, "receiver": 1, "run": 1}
    assert receiver.accounts == {}


def test_a_sender_of_another_version_is_told_both_versions(wire: Wire, address: str) -> None:
    receiver, raw = make_receiver(wire, address), RawSender(wire, address)
    for message in (["hello", 7, "something", "new"], ["hallo", 8], list(msgspec.to_builtins(raw.hello(protocol=9)))):
        raw.say(msgspec.msgpack.encode(message))
        refusal = raw.hear(receiver)
        assert isinstance(refusal, Refusal)
        assert refusal.reason == "protocol"
        assert re.fullmatch(rf"the sender speaks version \d of .*, the receiver version {PROTOCOL}", refusal.text)
        with pytest.raises(Rejected, match=r"the receiver speaks version \d of .*, the sender version"):
            to_sender(msgspec.msgpack.encode(message))
    assert receiver.rejected == {"protocol": 3}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"stream": b"123"}, "streams"),
        ({"stream": b""}, "streams"),
        ({"row0": b"\0" * 8}, "streams"),
        ({"sent": ROWS + 1}, "ledger"),
        ({"sent": 0}, "ledger"),
        ({"sequence": 5, "sent": 2 * ROWS}, "ledger"),
        ({"arrays": []}, "fields"),
        ({"sequence": -1}, "decode"),
        ({"term": 2**63}, "decode"),
        ({"boot": "x" * 1000}, "decode"),
    ],
)
def test_a_header_that_contradicts_itself_is_rejected(
    wire: Wire, address: str, changes: dict[str, object], reason: str
) -> None:
    receiver, raw = make_receiver(wire, address), RawSender(wire, address)
    raw.greet(receiver)
    raw.say(msgspec.structs.replace(raw.block(), **changes))
    until(lambda: receiver.rejected, lambda: receiver.poll(0.001))
    assert receiver.rejected == {reason: 1}
    assert receiver.queued == 0


def test_a_hello_that_claims_huge_blocks_gets_nothing(wire: Wire, address: str) -> None:
    receiver, raw = make_receiver(wire, address), RawSender(wire, address)
    raw.say(raw.hello(block_rows=2**50, want=2**50))
    assert isinstance(raw.hear(receiver), Refusal)
    raw.say(raw.hello(block_rows=0, want=2**50))
    answer = raw.hear(receiver)
    assert isinstance(answer, Grant)
    assert answer.limit <= 64
    assert receiver.outstanding <= 64


def test_a_connection_with_many_malformed_messages_is_not_looked_at_any_more(wire: Wire, address: str) -> None:
    receiver, raw = make_receiver(wire, address), RawSender(wire, address)
    sender = make_sender(wire, address)
    for _ in range(QUARANTINE_AFTER + 5):
        raw.say(b"garbage")
    until(lambda: sum(receiver.rejected.values()) == QUARANTINE_AFTER + 5, lambda: receiver.poll(0.001))
    assert receiver.rejected == {"decode": QUARANTINE_AFTER, "quarantined": 5}
    assert len(carry(sender, receiver, 5)) == 5, "others are not concerned"


def test_a_message_of_too_many_frames_is_rejected_whole(wire: Wire, address: str) -> None:
    receiver, raw = make_receiver(wire, address), RawSender(wire, address)
    raw.greet(receiver)
    raw.say(raw.block(0), *[b"x"] * 500)
    raw.say(raw.hello(), b"x")
    raw.say(raw.block(0), b"x")
    until(lambda: receiver.rejected.get("frames") == 3, lambda: receiver.poll(0.001))
    raw.say(raw.block(0))
    until(lambda: receiver.queued == ROWS, lambda: receiver.poll(0.001))


def test_rejections_are_logged_once_in_ten_seconds(wire: Wire, address: str, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    receiver = make_receiver(wire, address, clock=clock)
    raw = RawSender(wire, address)
    for _ in range(5):
        raw.say(b"garbage")
    until(lambda: receiver.rejected.get("decode") == 5, lambda: receiver.poll(0.001))
    assert len(caplog.records) == 1
    clock.now += 10
    raw.say(b"garbage")
    until(lambda: len(caplog.records) == 2, lambda: receiver.poll(0.001))
    assert "6 so far" in caplog.text


def test_accounts_of_senders_long_gone_make_room(wire: Wire, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlctl_agents.wire.experience.receiver.MAX_SENDERS", 3)
    clock = Clock()
    receiver = make_receiver(wire, address, clock=clock)

    def greets(boot: str) -> RawSender:
        raw = RawSender(wire, address, boot)
        raw.say(raw.hello())
        return raw

    for number in range(3):
        greets(str(number)).hear(receiver)
    greets("early")
    until(lambda: receiver.rejected == {"senders": 1}, lambda: receiver.poll(0.001))
    for _ in range(20):
        clock.now += 0.5
        receiver.poll(0.0)
    greets("late")
    until(lambda: "late" in receiver.accounts, lambda: receiver.poll(0.001))
    assert sorted(receiver.accounts) == ["1", "2", "late"]
    for _ in range(20):
        clock.now += 0.5
        receiver.poll(0.0)
    back = RawSender(wire, address, "0")
    back.say(back.hello(receiver="receiver", grant=7, sequence=3, produced=3 * ROWS, sent=3 * ROWS))
    answer = back.hear(receiver)
    assert isinstance(answer, Grant)
    assert answer.number > 7, "or it would be ignored"
    assert answer.limit > 3 * ROWS


def test_whoever_wakes_a_receiver_ends_its_wait(wire: Wire, address: str) -> None:
    receiver = make_receiver(wire, address)
    waker = threading.Thread(target=receiver.wake)
    began = time.monotonic()
    waker.start()
    assert receiver.poll(LIMIT_S) == []
    assert time.monotonic() - began < LIMIT_S / 2
    waker.join()


def test_waking_a_receiver_thousands_of_times_costs_no_waiting_and_one_wait(wire: Wire, address: str) -> None:
    receiver = make_receiver(wire, address)
    for _ in range(5000):
        receiver.wake()
    assert receiver.poll(LIMIT_S) == []
    began = time.monotonic()
    receiver.poll(0.02)
    assert time.monotonic() - began >= 0.02


def test_waking_a_closed_receiver_does_nothing(wire: Wire, address: str) -> None:
    receiver = make_receiver(wire, address)
    receiver.close()
    receiver.wake()
    assert receiver.accounts == {}


def test_a_connection_speaks_for_one_boot(wire: Wire, address: str) -> None:
    receiver, raw = make_receiver(wire, address), RawSender(wire, address)
    raw.greet(receiver)
    for number in range(QUARANTINE_AFTER + 5):
        raw.say(raw.hello(boot=f"other {number}"))
    raw.say(raw.block(boot="other"))
    until(lambda: sum(receiver.rejected.values()) == QUARANTINE_AFTER + 6, lambda: receiver.poll(0.001))
    assert receiver.rejected == {"boot": QUARANTINE_AFTER, "quarantined": 6}
    assert list(receiver.accounts) == ["raw"]
    assert len(carry(make_sender(wire, address), receiver, 5)) == 5, "others are not concerned"


def test_a_boot_may_come_over_another_connection(wire: Wire, address: str) -> None:
    receiver = make_receiver(wire, address)
    first, again = RawSender(wire, address), RawSender(wire, address)
    first.greet(receiver, want=5 * ROWS)
    first.say(first.block(0))
    until(lambda: receiver.queued == ROWS, lambda: receiver.poll(0.001))
    again.say(again.block(1))  # its connection was lost and made again, and it had credit left
    until(lambda: receiver.queued == 2 * ROWS, lambda: receiver.poll(0.001))
    assert receiver.rejected == {}


def test_of_hellos_without_end_a_few_are_looked_at(wire: Wire, address: str) -> None:
    clock = Clock()
    receiver, raw = make_receiver(wire, address, clock=clock), RawSender(wire, address)
    for _ in range(int(HELLOS) + 50):
        raw.say(raw.hello())
    until(lambda: receiver.rejected == {"hellos": 50}, lambda: receiver.poll(0.001))
    clock.now += 1.0
    for _ in range(int(HELLOS_PER_S) + 5):
        raw.say(raw.hello())
    until(lambda: receiver.rejected == {"hellos": 55}, lambda: receiver.poll(0.001))


def test_blocks_allow_as_many_hellos_as_an_honest_sender_says(wire: Wire, address: str) -> None:
    receiver, raw = make_receiver(wire, address, clock=Clock()), RawSender(wire, address)
    raw.greet(receiver, want=5 * ROWS)
    for number in range(int(HELLOS)):
        raw.say(raw.block(number, want=5 * ROWS))
        raw.say(raw.hello(grant=10**6, sequence=number + 1, produced=10**6, sent=(number + 1) * ROWS))
        raw.say(raw.hello(grant=10**6, sequence=number + 1, produced=10**6, sent=(number + 1) * ROWS))
        until(lambda number=number: receiver.accounts["raw"].received == (number + 1) * ROWS,
              lambda: [receiver.settle(one, "consumed") for one in receiver.poll(0.001)])  # fmt: skip
    assert receiver.rejected == {}


def of_two(wire: Wire, address: str, clock: Clock) -> tuple[ExperienceReceiver, RawSender, RawSender]:
    """A receiver with credit for one block, which the first of two senders holds while the other waits for some."""
    receiver = make_receiver(wire, address, budget_rows=ROWS, clock=clock)
    holder, waiter = RawSender(wire, address, "holder"), RawSender(wire, address, "waiter")
    assert holder.greet(receiver).limit == ROWS
    waiter.say(waiter.hello())
    assert waiter.hear(receiver) == Grant(PROTOCOL, "receiver", 0, 0, 0, 0)
    return receiver, holder, waiter


def alive(receiver: ExperienceReceiver, clock: Clock, seconds: float, *senders: RawSender, **said: object) -> None:
    """Time goes by, and these say hello each second."""
    for _ in range(round(seconds)):
        clock.now += 1.0
        for one in senders:
            one.say(one.hello(**said))
            one.hear(receiver)
        receiver.poll(0.0)


def test_credit_that_is_not_used_while_others_wait_is_called_back_and_given_to_them(wire: Wire, address: str) -> None:
    clock = Clock()
    receiver, holder, waiter = of_two(wire, address, clock)
    alive(receiver, clock, HELD_S - 1.0, holder, waiter)
    assert receiver.accounts["holder"].ledger.sent == 0
    assert receiver.outstanding == ROWS
    alive(receiver, clock, 2.0, waiter, holder)
    assert receiver.rejected == {}
    holder.say(holder.hello(grant=2))  # heeds it
    answer = holder.hear(receiver)
    assert isinstance(answer, Grant)
    assert answer.limit == 0, "and others are served first"
    waiter.say(waiter.hello())
    until(lambda: isinstance(said := waiter.hear(receiver), Grant) and said.limit == ROWS)


def test_a_call_back_that_is_not_heeded_takes_the_credit_all_the_same(wire: Wire, address: str) -> None:
    clock = Clock()
    receiver, holder, waiter = of_two(wire, address, clock)
    alive(receiver, clock, HELD_S + 2.0, holder, waiter)
    alive(receiver, clock, FORGET_AFTER_S + 2.0, holder, waiter)
    until(lambda: receiver.outstanding == ROWS, lambda: receiver.poll(0.001))
    holder.say(holder.block(0))
    until(lambda: receiver.rejected.get("credit") == 1, lambda: receiver.poll(0.001))
    waiter.say(waiter.block(0))
    until(lambda: receiver.queued == ROWS, lambda: receiver.poll(0.001))


def test_a_sender_that_is_barred_gets_credit_again_after_a_while(wire: Wire, address: str) -> None:
    clock = Clock()
    receiver, holder, waiter = of_two(wire, address, clock)
    alive(receiver, clock, HELD_S + 2.0, holder, waiter)
    alive(receiver, clock, FORGET_AFTER_S + 2.0, holder, grant=2)  # the other is gone
    assert receiver.outstanding == ROWS, "once is free: it may be a slow simulator"
    for _ in range(round(HELD_S) + 2):
        alive(receiver, clock, 1.0, holder, grant=3)
        waiter.say(waiter.hello())
        waiter.hear(receiver)
    alive(receiver, clock, BARRED_S - 5.0, holder, grant=4)
    assert receiver.outstanding == 0, "and nobody has credit"
    alive(receiver, clock, 5.0, holder, grant=4)
    until(lambda: receiver.outstanding == ROWS, lambda: receiver.poll(0.001))


def newest_limit(raw: RawSender) -> int:
    """Of the grants that have come."""
    limit = -1
    while raw.socket.poll(50):
        answer = to_sender(raw.socket.recv())
        assert isinstance(answer, Grant), answer
        limit = answer.limit
    return limit


def test_credit_for_a_far_larger_block_is_recalled_as_soon_as_another_waits(wire: Wire, address: str) -> None:
    clock = Clock()
    receiver = make_receiver(wire, address, budget_rows=9 * ROWS, clock=clock)
    holder, waiter = RawSender(wire, address, "holder"), RawSender(wire, address, "waiter")
    assert holder.greet(receiver, want=1, block_rows=9 * ROWS).limit == 9 * ROWS
    alive(receiver, clock, 2.0, waiter)
    assert newest_limit(holder) == 0


def test_more_rows_than_were_ever_granted_are_no_loss(wire: Wire, address: str) -> None:
    receiver, raw = make_receiver(wire, address), RawSender(wire, address)
    granted = raw.greet(receiver).limit
    raw.say(raw.hello(sequence=9, produced=2**62, sent=granted + 1))
    until(lambda: receiver.rejected == {"ledger": 1}, lambda: receiver.poll(0.001))
    assert receiver.accounts["raw"].lost == 0
    raw.say(raw.hello(sequence=1, produced=granted, sent=granted))
    until(lambda: receiver.accounts["raw"].lost == granted, lambda: receiver.poll(0.001))


def test_credit_counts_as_held_only_while_the_receiver_looks(wire: Wire, address: str) -> None:
    clock = Clock()
    receiver, holder, _ = of_two(wire, address, clock)
    clock.now += HELD_S + 10.0  # stopped, or busy with something else
    holder.say(holder.hello(grant=1))
    answer = holder.hear(receiver)
    assert isinstance(answer, Grant)
    assert answer.limit == ROWS


def test_a_recall_counts_as_not_heeded_only_while_the_receiver_looks(
    wire: Wire, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    receiver, holder, _ = of_two(wire, address, clock)
    holder.say(holder.hello(want=0))  # nothing to send, so what it holds is called back
    until(lambda: holder.hear(receiver) == Grant(PROTOCOL, "receiver", 2, 0, 0, 0))
    clock.now += 0.5
    receiver.poll(0.0)
    clock.now += FORGET_AFTER_S + 1.0
    receiver.poll(0.0)  # the sender's answer may lie behind those of many others
    assert "uses no credit" not in caplog.text


def test_a_look_at_the_accounts_copies_those_that_have_changed(wire: Wire, address: str) -> None:
    receiver = make_receiver(wire, address, budget_rows=100 * ROWS)
    busy, quiet = RawSender(wire, address, "busy"), RawSender(wire, address, "quiet")
    for one in (busy, quiet):
        one.greet(receiver)
    before = receiver.accounts
    busy.say(busy.block(0))
    until(lambda: receiver.queued == ROWS, lambda: receiver.poll(0.001))
    after = receiver.accounts
    assert (before["busy"].queued, after["busy"].queued) == (0, ROWS)
    assert after["quiet"] is before["quiet"]
