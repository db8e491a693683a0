"""Credit before the block is made, and none while enough is queued."""

from __future__ import annotations

import pytest

from rlctl_agents.types.experience import SegmentBlock
from rlctl_agents.wire.experience.credit import Credits, Peer
from rlctl_agents.wire.sockets import Wire
from tests.wire.pair import STEPS, Clock, make_receiver, make_sender, offer, until

ROWS = 2 * STEPS  # of one block


def test_a_reservation_is_covered_once_credit_for_the_whole_block_is_there(wire: Wire, address: str) -> None:
    receiver, sender = make_receiver(wire, address), make_sender(wire, address)
    assert not sender.reserve(ROWS)
    until(lambda: sender.reserve(ROWS), lambda: sender.poll(0.001), lambda: receiver.poll(0.001))
    assert offer(sender)
    assert sender.pending == 0, "what was reserved for goes at once"


def test_of_two_that_reserve_the_last_credit_one_waits_until_the_others_rows_are_settled(
    wire: Wire, address: str
) -> None:
    receiver = make_receiver(wire, address, budget_rows=ROWS)
    first, second = make_sender(wire, address, "first"), make_sender(wire, address, "second")
    segments: list[SegmentBlock] = []

    def turn() -> None:
        first.poll(0.001)
        second.poll(0.001)
        segments.extend(receiver.poll(0.001))

    until(lambda: first.reserve(ROWS), turn)
    for _ in range(20):
        second.reserve(ROWS)
        turn()
    assert first.reserve(ROWS), "what somebody is going to use is not called back"
    assert not second.reserve(ROWS)
    assert offer(first)
    until(lambda: segments, turn)
    assert not second.reserve(ROWS)
    receiver.settle(segments[0], "consumed")
    until(lambda: second.reserve(ROWS), turn)


def test_a_reservation_outlives_the_receiver(wire: Wire, address: str) -> None:
    clock = Clock()
    old, sender = make_receiver(wire, address, "old"), make_sender(wire, address, clock=clock)
    until(lambda: sender.reserve(ROWS), lambda: sender.poll(0.001), lambda: old.poll(0.001))
    old.close()
    new = make_receiver(wire, address, "new")

    def turn() -> None:
        clock.now += 0.1
        sender.poll(0.001)
        new.poll(0.001)

    until(lambda: "new" in sender.ledgers and sender.reserve(ROWS), turn)
    assert offer(sender)
    assert sender.ledgers["new"].sent == ROWS


def test_nothing_is_given_out_while_the_queue_is_full() -> None:
    credits, peer, other = Credits(100, 10, queue_rows=20), Peer("a"), Peer("b")
    credits.hear(peer, sent=0, want=20, grant=0, block_rows=10)
    assert credits.deal()
    credits.hear(peer, sent=20, want=0, grant=peer.number)
    credits.queue(peer, 20)
    credits.hear(other, sent=0, want=10, grant=0, block_rows=10)
    assert credits.deal() == []
    credits.settle(peer, 1)
    assert credits.deal()[0] is other


def test_a_queue_shorter_than_a_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="queue_rows must be at least 10"):
        Credits(100, 10, queue_rows=5)
