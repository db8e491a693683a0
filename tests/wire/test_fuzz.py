"""Whatever arrives is either taken, with its rows accounted for, or counted as rejected; and memory stays bounded."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlctl_agents.wire.codec import BlockCodec, Rejected
from rlctl_agents.wire.experience.protocol import BlockMessage, to_receiver
from rlctl_agents.wire.sockets import Wire
from tests.support.samples import size
from tests.wire.pair import SCHEMA, RawSender, carry, make_receiver, make_sender, until

REASONS = frozenset(
    [
        "frames",
        "decode",
        "protocol",
        "run",
        "schema",
        "size",
        "term",
        "ledger",
        "senders",
        "receiver",
        "unknown",
        "streams",
        "duplicate",
        "credit",
        "fields",
        "dtype",
        "shape",
        "codec",
        "bool",
        "quarantined",
    ]
)
scalar = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=20)
plain = st.recursive(
    scalar | st.binary(max_size=200),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=30,
)


def _well_formed() -> list[bytes]:
    raw = RawSender.__new__(RawSender)  # without a connection
    raw.boot = "raw"
    return [msgspec.msgpack.encode(message) for message in (raw.block(0), raw.hello())]


WELL_FORMED = _well_formed()


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A well-formed message with bits flipped, cut short, or something put in."""
    data = bytearray(draw(st.sampled_from(WELL_FORMED)))
    for _ in range(draw(st.integers(0, 6))):
        data[draw(st.integers(0, len(data) - 1))] ^= 1 << draw(st.integers(0, 7))
    if draw(st.booleans()):
        del data[draw(st.integers(0, len(data) - 1)) :]
    if draw(st.booleans()):
        at = draw(st.integers(0, len(data)))
        data[at:at] = draw(st.binary(max_size=40) | st.sampled_from([b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"]))
    return bytes(data)


@st.composite
def misstated(draw: st.DrawFn) -> bytes:
    """A well-formed message in which some values are others."""
    message: list[Any] = msgspec.msgpack.decode(draw(st.sampled_from(WELL_FORMED)))
    for _ in range(draw(st.integers(1, 3))):
        part = message
        while draw(st.booleans()) and (lists := [item for item in part if isinstance(item, list) and item]):
            part = draw(st.sampled_from(lists))
        part[draw(st.integers(0, len(part) - 1))] = draw(plain)
    return msgspec.msgpack.encode(message)


heads = st.binary(max_size=300) | plain.map(msgspec.msgpack.encode) | damaged() | misstated()


@given(st.lists(st.tuples(heads, st.lists(st.binary(max_size=100), max_size=12)), min_size=1, max_size=4))
@settings(
    max_examples=size(50, 150),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_any_message_is_taken_or_counted(wire: Wire, address: str, messages: list[tuple[bytes, list[bytes]]]) -> None:
    receiver = make_receiver(wire, address)
    raw = RawSender(wire, address)
    raw.say(raw.hello())
    taken = 0

    def handled() -> int:
        account = receiver.accounts.get("raw")
        return sum(receiver.rejected.values()) + taken + (account is not None)

    def receive() -> None:
        nonlocal taken
        taken += len(receiver.poll(0.001))

    until(handled, receive)
    for head, frames in messages:
        raw.say(head, *frames)
    raw.say(b"the end")
    until(lambda: receiver.rejected.get("decode") or receiver.rejected.get("quarantined"), receive)
    receive()
    assert set(receiver.rejected) <= REASONS
    for account in receiver.accounts.values():
        assert account.received == account.queued + account.fenced
    assert receiver.outstanding <= 64
    raw.socket.close(0)
    receiver.close()


@given(heads)
@settings(max_examples=size(200, 600), deadline=None, derandomize=True)
def test_decoding_ends_in_a_message_or_a_rejection(head: bytes) -> None:
    reason = "codec"
    try:
        message = to_receiver(head)
        if isinstance(message, BlockMessage):
            BlockCodec(SCHEMA).unpack(len(message.stream) // 8, message.arrays, [])
    except Rejected as error:
        reason = error.reason
    assert reason in REASONS


@pytest.mark.parametrize(
    "head",
    [
        b"\x91" * 1_000_000,
        b"\xdd\xff\xff\xff\xff" * 10,
        b"\x92\xa5block\xdd\xff\xff\xff\xff",
        b"\x92\xa5block\xc6\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\x92\xa5hello" + b"\x81\x01" * 100_000,
    ],
    ids=["deep", "lists", "list in block", "bytes in block", "map", "deep maps"],
)
def test_a_length_or_depth_that_is_only_claimed_takes_no_memory(head: bytes) -> None:
    tracemalloc.start()
    with pytest.raises(Rejected):
        to_receiver(head)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200_000


def test_honest_senders_are_served_beside_one_that_talks_nonsense(wire: Wire, address: str) -> None:
    receiver, sender, raw = make_receiver(wire, address), make_sender(wire, address), RawSender(wire, address)
    for number in range(50):
        raw.say(bytes([number]) * number, *[b"x"] * (number % 5))
    assert len(carry(sender, receiver, 20)) == 20
