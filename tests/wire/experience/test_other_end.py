"""Sender and receiver that find another at the other end: a new boot, another address, term, run or schema."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlctl_agents.types.experience import Field, Schema, SegmentBlock
from rlctl_agents.wire.experience.protocol import CREDIT_VALID_S
from rlctl_agents.wire.sockets import Wire
from tests.wire.pair import STEPS, Clock, carry, make_receiver, make_sender, offer, until

ROWS = 2 * STEPS  # of the blocks that `offer` makes


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
    segments: list[SegmentBlock] = []

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
    segments: list[SegmentBlock] = []
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
    waited: list[SegmentBlock] = []
    until(
        lambda: sender.pending == 0 and len(waited) == 2,
        lambda: sender.poll(0.0),
        lambda: waited.extend(receiver.poll(0.001)),
    )
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
