from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlctl_agents.types.experience import Field, Ledger, Schema, Segment
from rlctl_agents.wire.protocol import CREDIT_VALID_S, FORGET_AFTER_S
from rlctl_agents.wire.sockets import Wire
from tests.wire.pair import (
    MODEL,
    STEPS,
    Clock,
    RawSender,
    carry,
    fields,
    make_receiver,
    make_sender,
    offer,
    quiesce,
    until,
    versions,
)

ROWS = 2 * STEPS  # of the blocks that `offer` makes


def test_a_block_arrives_as_it_left(wire: Wire, address: str) -> None:
    receiver, sender = make_receiver(wire, address), make_sender(wire, address)
    first, second = carry(sender, receiver, 2)
    header = second.header
    assert (header.run, header.term, header.boot, header.receiver, header.sequence) == (
        "run",
        1,
        "sender",
        "receiver",
        1,
    )
    assert (header.model, header.stream, header.row0) == (MODEL, [0, 1], [STEPS, STEPS])
    assert header.ledger == Ledger(produced=2 * ROWS, dropped=0, sent=2 * ROWS)
    assert first.rows == ROWS
    np.testing.assert_array_equal(first.version, versions(2))
    for name, array in fields(2).items():
        np.testing.assert_array_equal(first.fields[name], array)
        assert not first.fields[name].flags.writeable


@pytest.mark.parametrize("compress", [False, True])
def test_large_arrays_arrive_as_they_left_and_outlive_the_sockets(wire: Wire, address: str, compress: bool) -> None:
    schema = Schema(STEPS, (Field("obs", "uint8", (84, 84, 4), "row+1"),))
    receiver = make_receiver(wire, address, schema=schema)
    sender = make_sender(wire, address, schema=schema, compress=compress)
    assert offer(sender, schema=schema)
    segments: list[Segment] = []
    until(lambda: segments, lambda: sender.poll(0.0), lambda: segments.extend(receiver.poll(0.001)))
    sender.close()
    receiver.close()
    np.testing.assert_array_equal(segments[0].fields["obs"], fields(2, schema)["obs"])


def test_the_address_may_be_a_port_of_the_loopback(wire: Wire) -> None:
    receiver = make_receiver(wire, "tcp://127.0.0.1:*")
    carry(make_sender(wire, receiver.address), receiver, 3)


def test_numbers_that_are_none_are_not_the_wires_matter(wire: Wire, address: str) -> None:
    receiver, sender = make_receiver(wire, address), make_sender(wire, address)
    arrays = fields(2)
    arrays["reward"][:] = np.nan
    assert sender.offer(model=MODEL, stream=[0, 1], row0=[0, 0], version=versions(2), fields=arrays)
    segments: list[Segment] = []
    until(lambda: segments, lambda: sender.poll(0.0), lambda: segments.extend(receiver.poll(0.001)))
    assert np.isnan(segments[0].fields["reward"]).all()


def test_an_on_policy_sender_takes_no_more_than_its_queue_and_counts_what_it_took(wire: Wire, address: str) -> None:
    sender = make_sender(wire, address)  # nobody listens
    assert [offer(sender) for _ in range(4)] == [True, True, False, False]
    assert not sender.ready()
    assert sender.pending == 2 * ROWS
    assert sender.ledgers == {}
    receiver = make_receiver(wire, address)
    until(lambda: sender.pending == 0, lambda: sender.poll(0.0), lambda: receiver.poll(0.001))
    assert sender.ledgers == {"receiver": Ledger(2 * ROWS, 0, 2 * ROWS)}


def test_an_off_policy_sender_gives_up_the_oldest_and_counts_it(wire: Wire, address: str) -> None:
    sender = make_sender(wire, address, on_policy=False)
    for row0 in range(5):
        assert offer(sender, row0=row0)
    assert sender.pending == 2 * ROWS
    receiver = make_receiver(wire, address)
    segments: list[Segment] = []
    until(lambda: len(segments) == 2, lambda: sender.poll(0.0), lambda: segments.extend(receiver.poll(0.001)))
    assert [segment.header.row0[0] for segment in segments] == [3, 4]
    assert segments[-1].header.ledger == Ledger(produced=5 * ROWS, dropped=3 * ROWS, sent=2 * ROWS)


def test_a_receiver_that_does_not_listen_neither_delays_a_sender_nor_makes_it_grow(wire: Wire, address: str) -> None:
    schema = Schema(STEPS, (Field("obs", "uint8", (400, 400), "row"),))
    receiver = make_receiver(wire, address, schema=schema, budget_rows=4 * ROWS)
    sender = make_sender(wire, address, schema=schema, on_policy=False)
    until(lambda: sender.ledgers, lambda: offer(sender, schema=schema), lambda: receiver.poll(0.001))
    worst, before = 0.0, _resident_bytes()
    for _ in range(150):
        began = time.perf_counter()
        offer(sender, schema=schema)
        worst = max(worst, time.perf_counter() - began)
    assert sender.ledgers["receiver"].sent <= 4 * ROWS
    assert worst < 2.0, "a wait would be endless"
    assert _resident_bytes() - before < 40e6, "150 blocks are 192 MB"


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_rows_that_are_not_settled_hold_the_budget(wire: Wire, address: str) -> None:
    receiver, sender = make_receiver(wire, address, budget_rows=3 * ROWS), make_sender(wire, address)
    segments = carry(sender, receiver, 3, settle=False)
    end = time.monotonic() + 0.1
    while time.monotonic() < end:
        offer(sender)
        assert not receiver.poll(0.001)
    assert receiver.outstanding == receiver.queued == 3 * ROWS
    receiver.settle(segments[0], "consumed")
    until(lambda: receiver.poll(0.001), lambda: sender.poll(0.0))


def test_one_sender_gets_one_block_however_small_the_budget(wire: Wire, address: str) -> None:
    receiver, sender = make_receiver(wire, address, budget_rows=1), make_sender(wire, address)
    assert len(carry(sender, receiver, 4)) == 4


def test_a_batch_that_ends_inside_a_large_block_is_filled(wire: Wire, address: str) -> None:
    receiver = make_receiver(wire, address, budget_rows=ROWS, batch_rows=ROWS - 2)
    sender = make_sender(wire, address)
    (first,) = carry(sender, receiver, 1, settle=False)
    receiver.settle(first, "consumed", ROWS - 2)
    assert receiver.queued == 2
    (second,) = carry(sender, receiver, 1, settle=False)
    receiver.settle(first, "consumed")
    receiver.settle(second, "consumed", ROWS - 4)


def test_a_block_is_settled_in_parts_and_in_several_ways(wire: Wire, address: str) -> None:
    receiver, sender = make_receiver(wire, address), make_sender(wire, address)
    one, two = carry(sender, receiver, 2, settle=False)
    receiver.settle(one, "consumed", 3)
    receiver.settle(one, "stale", 4)
    receiver.settle(one, "invalid")
    receiver.settle(two, "fenced")
    account = receiver.accounts["sender"]
    assert (account.consumed, account.stale, account.invalid, account.fenced) == (3, 4, 1, ROWS)
    assert (account.received, account.queued, account.lost) == (2 * ROWS, 0, 0)
    with pytest.raises(ValueError, match="not settled"):
        receiver.settle(one, "consumed")


def test_more_rows_than_a_block_has_cannot_be_settled(wire: Wire, address: str) -> None:
    receiver, sender = make_receiver(wire, address), make_sender(wire, address)
    (segment,) = carry(sender, receiver, 1, settle=False)
    for rows in (ROWS + 1, 0, -1):
        with pytest.raises(ValueError, match="not settled"):
            receiver.settle(segment, "consumed", rows)


def test_a_restarted_receiver_starts_with_no_credit_given_and_unsent_blocks_stay(folder: Path, wire: Wire) -> None:
    address, clock = f"ipc://{folder}/socket", Clock()
    old = make_receiver(wire, address, boot="old", budget_rows=2 * ROWS)
    sender = make_sender(wire, address, clock=clock)
    carry(sender, old, 2, settle=False)
    assert offer(sender)
    assert offer(sender)
    old.close()
    clock.now += CREDIT_VALID_S
    new = make_receiver(wire, address, boot="new", budget_rows=2 * ROWS)
    segments: list[Segment] = []

    def exchange() -> None:
        clock.now += 0.1  # a hello on its way to the old one is said again
        sender.poll(0.0)
        segments.extend(new.poll(0.001))

    until(lambda: len(segments) == 2, exchange)
    assert [segment.header.sequence for segment in segments] == [0, 1]
    assert {boot: ledger.sent for boot, ledger in sender.ledgers.items()} == {"old": 2 * ROWS, "new": 2 * ROWS}
    assert sender.pending == 0


def test_a_receiver_that_takes_anothers_place_at_once_costs_no_more_than_the_credit(folder: Path, wire: Wire) -> None:
    address = f"ipc://{folder}/socket"
    old, sender = make_receiver(wire, address, boot="old"), make_sender(wire, address)
    carry(sender, old, 3)
    old.close()
    new = make_receiver(wire, address, boot="new")
    segments: list[Segment] = []
    until(
        lambda: len(segments) > 3,
        lambda: offer(sender),
        lambda: sender.poll(0.0),
        lambda: segments.extend(new.poll(0.001)),
    )
    assert not sender.refused
    assert sender.ledgers["old"].sent <= 64 + 3 * ROWS
    account = new.accounts["sender"]
    assert account.ledger.sent == account.received + account.lost


def test_waiting_blocks_follow_the_receiver_to_another_address(folder: Path, wire: Wire) -> None:
    sender = make_sender(wire, f"ipc://{folder}/nowhere")
    assert offer(sender)
    assert offer(sender)
    receiver = make_receiver(wire, f"ipc://{folder}/somewhere")
    sender.redirect(receiver.address)
    until(lambda: sender.pending == 0, lambda: sender.poll(0.0), lambda: receiver.poll(0.001))
    assert len(carry(sender, receiver, 2)) == 2


def test_a_sender_that_left_and_came_back_goes_on_where_it_was(folder: Path, wire: Wire) -> None:
    one = make_receiver(wire, f"ipc://{folder}/one", boot="one")
    two = make_receiver(wire, f"ipc://{folder}/two", boot="two")
    sender = make_sender(wire, one.address)
    carry(sender, one, 2)
    sender.redirect(two.address)
    carry(sender, two, 1)
    sender.redirect(one.address)
    (segment,) = carry(sender, one, 1)
    assert segment.header.sequence == 2
    assert one.accounts["sender"].lost == 0
    assert {boot: ledger.sent for boot, ledger in sender.ledgers.items()} == {"one": 3 * ROWS, "two": ROWS}


def test_flush_ends_when_the_receiver_knows_of_every_row(wire: Wire, address: str) -> None:
    receiver, sender = make_receiver(wire, address), make_sender(wire, address)
    assert sender.flush(0.0), "nothing to wait for"
    stop = threading.Event()

    def receive() -> None:
        while not stop.is_set():
            for segment in receiver.poll(0.01):
                receiver.settle(segment, "consumed")

    thread = threading.Thread(target=receive)
    thread.start()
    assert offer(sender)
    assert offer(sender)
    assert sender.flush(5.0)
    stop.set()
    thread.join()
    assert receiver.accounts["sender"].consumed == 2 * ROWS


def test_flush_gives_up_in_time_and_close_counts_the_rest_as_dropped(wire: Wire, address: str) -> None:
    sender = make_sender(wire, address)
    offer(sender)
    began = time.monotonic()
    assert not sender.flush(0.05)
    assert time.monotonic() - began < 0.5
    receiver = make_receiver(wire, address, budget_rows=1)
    until(lambda: sender.ledgers, lambda: sender.poll(0.0), lambda: receiver.poll(0.001))
    offer(sender)
    offer(sender)
    sender.close()
    assert sender.pending == 0
    (ledger,) = sender.ledgers.values()
    assert ledger.produced == ledger.sent + ledger.dropped


def test_a_silent_sender_is_forgotten_and_its_credit_goes_to_others(wire: Wire, address: str) -> None:
    clock = Clock()
    receiver = make_receiver(wire, address, budget_rows=ROWS, clock=clock)
    gone = RawSender(wire, address, "gone")
    assert gone.greet(receiver).limit == ROWS
    sender = make_sender(wire, address, clock=clock)
    offer(sender)
    for _ in range(20):
        sender.poll(0.0)
        assert not receiver.poll(0.002), "all credit is with another"
    for _ in range(int(FORGET_AFTER_S * 2) + 2):
        clock.now += 0.5
        sender.poll(0.0)
        receiver.poll(0.001)
    until(lambda: receiver.accounts["sender"].received, lambda: sender.poll(0.0), lambda: receiver.poll(0.001))
    assert "gone" in receiver.accounts


def test_a_sender_is_not_forgotten_because_the_receiver_was_away(wire: Wire, address: str) -> None:
    clock = Clock()
    receiver, sender = make_receiver(wire, address, clock=clock), make_sender(wire, address)
    carry(sender, receiver, 1)
    held = receiver.outstanding
    assert held
    clock.now += 100 * FORGET_AFTER_S  # a long update, nobody polled
    receiver.poll(0.0)
    assert receiver.outstanding == held


def test_a_sender_that_was_away_asks_again_before_it_sends(wire: Wire, address: str) -> None:
    clock = Clock()
    receiver, sender = make_receiver(wire, address), make_sender(wire, address, clock=clock)
    carry(sender, receiver, 1)
    clock.now += CREDIT_VALID_S
    assert offer(sender)
    assert sender.pending == ROWS
    until(lambda: sender.pending == 0, lambda: sender.poll(0.0), lambda: receiver.poll(0.001))


def test_credit_is_called_back_from_an_idle_sender_for_one_with_rows(wire: Wire, address: str) -> None:
    receiver = make_receiver(wire, address, budget_rows=4 * ROWS)
    idle, busy = make_sender(wire, address, boot="idle"), make_sender(wire, address, boot="busy")
    carry(idle, receiver, 1)
    until(lambda: receiver.outstanding == 4 * ROWS, lambda: idle.poll(0.0), lambda: receiver.poll(0.001))
    offer(busy)
    until(
        lambda: receiver.accounts.get("busy") and receiver.accounts["busy"].received,
        lambda: busy.poll(0.0),
        lambda: idle.poll(0.0),
        lambda: receiver.poll(0.001),
    )
    assert receiver.outstanding <= 4 * ROWS


def test_two_hundred_senders_share_a_budget_of_ten_blocks(wire: Wire, address: str) -> None:
    receiver = make_receiver(wire, address, budget_rows=10 * ROWS)
    senders = [make_sender(wire, address, boot=f"sender-{number}") for number in range(200)]
    for sender in senders:
        assert offer(sender)
        assert offer(sender)

    def step() -> None:
        for sender in senders:
            sender.poll(0.0)
        for segment in receiver.poll(0.0):
            assert receiver.outstanding <= 10 * ROWS
            receiver.settle(segment, "consumed")

    until(lambda: not any(sender.pending for sender in senders), step, limit_s=20.0)
    until(lambda: sum(account.consumed for account in receiver.accounts.values()) == 400 * ROWS, step)
    assert not receiver.rejected


def test_rows_of_an_older_term_are_fenced_and_their_sender_waits_for_the_new_term(wire: Wire, address: str) -> None:
    clock = Clock()
    receiver, sender = make_receiver(wire, address), make_sender(wire, address, clock=clock)
    carry(sender, receiver, 1)
    receiver.term = 2
    assert offer(sender)
    until(lambda: sender.refused, lambda: sender.poll(0.0), lambda: receiver.poll(0.001))
    assert "term 1" in sender.refused
    assert receiver.accounts["sender"].fenced == ROWS
    clock.now += 1.1
    until(lambda: receiver.rejected["term"] == 2, lambda: sender.poll(0.0), lambda: receiver.poll(0.001))
    assert receiver.outstanding == 0, "nothing is granted to the old term"
    sender.term = 2
    clock.now += 1.1
    assert [segment.header.term for segment in carry(sender, receiver, 2)] == [2, 2]
    assert not sender.refused


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"run": "other"}, "run other instead of run"),
        ({"schema": Schema(STEPS, (Field("obs", "int8", (), "row"),))}, "another environment or algorithm"),
        ({"term": 0}, "term 0, the run is at 1"),
    ],
)
def test_who_does_not_fit_is_refused_in_words_and_sends_nothing(
    wire: Wire, address: str, changes: dict[str, Any], words: str
) -> None:
    receiver, sender = make_receiver(wire, address), make_sender(wire, address, **changes)
    until(lambda: sender.refused, lambda: sender.poll(0.0), lambda: receiver.poll(0.001))
    assert words in sender.refused
    assert not any(ledger.sent for ledger in sender.ledgers.values())
    assert receiver.outstanding == 0


def test_the_ledgers_agree_after_any_traffic(wire: Wire, address: str) -> None:
    clock = Clock()
    receiver = make_receiver(wire, address, budget_rows=5 * ROWS, clock=clock)
    senders = {boot: make_sender(wire, address, boot=boot, clock=clock, on_policy=boot == "a") for boot in "abc"}
    rng = np.random.default_rng(3)

    def receive() -> None:
        for segment in receiver.poll(0.0):
            receiver.settle(segment, "consumed" if rng.random() < 0.7 else "stale")

    for _ in range(300):
        sender = senders["abc"[rng.integers(3)]]
        offer(sender, int(rng.integers(1, 4)))
        sender.poll(0.0)
        receive()

    def exchange() -> None:
        for sender in senders.values():
            sender.poll(0.0)
        receive()

    def arrived() -> bool:
        accounts = receiver.accounts
        return all(
            sender.pending == 0 and sender.ledgers["receiver"].sent == accounts[boot].received
            for boot, sender in senders.items()
        )

    until(arrived, exchange)
    for boot, sender in senders.items():
        quiesce(sender, receiver, clock, receive)
        ledger, account = sender.ledgers["receiver"], receiver.accounts[boot]
        assert ledger == account.ledger
        assert ledger.produced == ledger.sent + ledger.dropped
        assert ledger.sent == account.received == account.consumed + account.stale
        assert account.lost == account.queued == 0
