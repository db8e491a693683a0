"""The receiver's budget: what holds it, which senders get a share of it, and when it comes back."""

from __future__ import annotations

import pytest

from rlctl_agents.wire.experience.protocol import CREDIT_VALID_S, FORGET_AFTER_S, HELLO_EVERY_S
from rlctl_agents.wire.sockets import Wire
from tests.wire.pair import STEPS, Clock, RawSender, carry, make_receiver, make_sender, offer, until

ROWS = 2 * STEPS  # of the blocks that `offer` makes


def test_rows_that_are_not_settled_hold_the_budget(wire: Wire, address: str) -> None:
    receiver, sender = make_receiver(wire, address, budget_rows=3 * ROWS), make_sender(wire, address)
    segments = carry(sender, receiver, 3, settle=False)
    for _ in range(50):
        offer(sender)
        assert not receiver.poll(0.001)
    assert receiver.outstanding == receiver.queued == 3 * ROWS
    receiver.settle(segments[0], "consumed")
    until(lambda: receiver.poll(0.001), lambda: sender.poll(0.0))


def test_one_sender_gets_one_block_however_small_the_budget(wire: Wire, address: str) -> None:
    receiver, sender = make_receiver(wire, address, budget_rows=1), make_sender(wire, address)
    assert len(carry(sender, receiver, 4)) == 4


def test_a_batch_that_ends_inside_a_large_block_is_filled(wire: Wire, address: str) -> None:
    receiver = make_receiver(wire, address, budget_rows=ROWS, batch_size=ROWS - 2)
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


def test_a_grant_that_lay_unread_while_the_sender_was_away_is_asked_for_again(wire: Wire, address: str) -> None:
    clock = Clock()
    receiver, sender = make_receiver(wire, address), make_sender(wire, address, clock=clock)
    carry(sender, receiver, 1)
    clock.now += HELLO_EVERY_S
    sender.poll(0.0)  # says hello
    until(lambda: sender._socket.poll(1), lambda: receiver.poll(0.001))
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

    until(lambda: not any(sender.pending for sender in senders), step)
    until(lambda: sum(account.consumed for account in receiver.accounts.values()) == 400 * ROWS, step)
    assert not receiver.rejected
