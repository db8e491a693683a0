"""A sender of impossible values: nothing of it is taken any more, and no other sender is worse off."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from rlctl_agents.types.experience import Arrays
from rlctl_agents.wire.experience.protocol import Grant, Refusal
from rlctl_agents.wire.experience.receiver import ExperienceReceiver
from rlctl_agents.wire.sockets import Wire
from tests.wire.pair import MODEL, STEPS, Clock, RawSender, carry, make_receiver, make_sender, quiesce, until

ROWS = 2 * STEPS


def check(version: np.ndarray[Any, np.dtype[np.int64]], newest: int, fields: Arrays) -> str:
    """Any observation below 0."""
    return "obs.position holds -1.0" if (fields["obs.position"] < 0).any() else ""


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def receiver(wire: Wire, address: str, clock: Clock) -> ExperienceReceiver:
    return make_receiver(wire, address, check=check, clock=clock)


def bad_block(raw: RawSender, sequence: int, **changes: object) -> Any:
    block = raw.block(sequence, **changes)
    heads = list(block.arrays)
    at = next(index for index, head in enumerate(heads) if head.name == "obs.position")
    values = np.full(heads[at].shape, -1.0, "float32").tobytes()
    heads[at] = type(heads[at])(*[*[getattr(heads[at], name) for name in heads[at].__struct_fields__[:-1]], values])
    return msgspec.structs.replace(block, arrays=heads)


def quarantined(wire: Wire, address: str, receiver: ExperienceReceiver, boot: str = "raw") -> RawSender:
    """A sender after one good block and one bad one."""
    raw = RawSender(wire, address, boot)
    raw.greet(receiver, want=3 * ROWS)
    raw.say(raw.block(0, want=2 * ROWS))
    taken: list[Any] = []
    until(lambda: taken, lambda: taken.extend(receiver.poll(0.001)))
    receiver.settle(taken[0], "consumed")
    raw.say(bad_block(raw, 1))
    until(lambda: receiver.accounts[boot].fault, lambda: receiver.poll(0.001))
    return raw


def refusal(raw: RawSender, receiver: ExperienceReceiver) -> Refusal:
    while isinstance(answer := raw.hear(receiver), Grant):
        pass
    return answer


def test_rows_of_a_bad_block_are_received_and_invalid_and_nobody_gets_to_see_them(
    wire: Wire, address: str, receiver: ExperienceReceiver
) -> None:
    quarantined(wire, address, receiver)
    account = receiver.accounts["raw"]
    assert (account.received, account.consumed, account.invalid, account.queued) == (2 * ROWS, ROWS, ROWS, 0)
    assert account.fault == "obs.position holds -1.0"
    assert receiver.queued == 0


def test_the_sender_hears_why(wire: Wire, address: str, receiver: ExperienceReceiver) -> None:
    said = refusal(quarantined(wire, address, receiver), receiver)
    assert said.reason == "values"
    assert said.text == "quarantined until it is started anew: obs.position holds -1.0"


def test_good_blocks_of_a_quarantined_sender_are_invalid_too(
    wire: Wire, address: str, receiver: ExperienceReceiver
) -> None:
    raw = quarantined(wire, address, receiver)
    raw.say(raw.block(2))
    until(lambda: receiver.accounts["raw"].received == 3 * ROWS, lambda: receiver.poll(0.001))
    account = receiver.accounts["raw"]
    assert account.invalid == 2 * ROWS
    assert account.ledger.sent == account.received + account.lost


def test_a_quarantined_sender_gets_no_credit_however_often_it_asks(
    wire: Wire, address: str, receiver: ExperienceReceiver
) -> None:
    raw = quarantined(wire, address, receiver)
    assert receiver.outstanding == 0, "what it had not used has come back"
    for _ in range(3):
        refusal(raw, receiver)
        raw.say(raw.hello(sequence=2, produced=2 * ROWS, sent=2 * ROWS, want=9 * ROWS))
    assert refusal(raw, receiver).reason == "values"
    assert receiver.outstanding == 0


def test_others_go_on_with_the_whole_budget(wire: Wire, address: str, clock: Clock) -> None:
    receiver = make_receiver(wire, address, check=check, clock=clock, budget_rows=2 * ROWS, batch_size=2 * ROWS)
    quarantined(wire, address, receiver)
    honest = make_sender(wire, address, "honest", clock=clock)
    assert len(carry(honest, receiver, 6)) == 6
    quiesce(honest, receiver, clock, lambda: receiver.poll(0.001))
    account = receiver.accounts["honest"]
    assert (account.received, account.consumed, account.fault) == (6 * ROWS, 6 * ROWS, "")


def test_the_same_actor_under_a_new_boot_is_heard_again(wire: Wire, address: str, receiver: ExperienceReceiver) -> None:
    quarantined(wire, address, receiver, "first-boot")
    anew = RawSender(wire, address, "second-boot")
    assert anew.greet(receiver, want=ROWS).limit >= ROWS
    anew.say(anew.block(0))
    until(lambda: receiver.accounts["second-boot"].queued == ROWS, lambda: receiver.poll(0.001))


def test_the_check_is_told_of_which_weights_a_block_is(wire: Wire, address: str) -> None:
    told: list[tuple[int, list[str]]] = []

    def remember(version: np.ndarray[Any, np.dtype[np.int64]], newest: int, fields: Arrays) -> str:
        told.append((newest, sorted(fields)))
        return ""

    receiver = make_receiver(wire, address, check=remember)
    carry(make_sender(wire, address), receiver, 1)
    assert told == [
        (MODEL.version, ["action.0", "action.1", "core.h", "first", "obs.camera", "obs.position", "reward"])
    ]
