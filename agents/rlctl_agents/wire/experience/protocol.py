"""The four messages of the experience channel, frame 0 of each (docs/wire.md)."""

from __future__ import annotations

import hashlib
from typing import Annotated, TypeVar

import msgspec

from rlctl_agents.types.experience import Schema
from rlctl_agents.wire.codec import MAX_FIELDS, PROTOCOL, ArrayHead, Buffer, Count, Name, Rejected, decode

HELLO_EVERY_S = 1.0
"""A sender that has not heard from its receiver for so long says hello again."""
CREDIT_VALID_S = 4.0
"""A sender that has heard nothing, or has not looked, for so long forgets its credit."""
FORGET_AFTER_S = 6.0
"""A receiver that has heard nothing for so long gives a sender's credit to others, which the sender has forgotten."""


class SenderHello(msgspec.Struct, array_like=True, frozen=True, tag="hello"):
    """sender -> receiver: its identity and totals. Answered by a grant or a refusal."""

    protocol: Count
    run: Name
    boot: Name  # of the sender
    receiver: Name  # boot of the receiver, "" when not known yet: the totals below are of no meaning to it then
    term: Count
    schema: Name  # digest of the schema
    grant: Count  # number of the newest grant heeded
    sequence: Count  # of the next block
    produced: Count  # the ledger
    dropped: Count
    sent: Count
    want: Count  # rows that wait for credit
    block_rows: Count  # rows of the largest block so far; 0: none yet
    ticket: Name = ""  # from the lease of this boot


class BlockMessage(msgspec.Struct, array_like=True, frozen=True, tag="block"):
    """sender -> receiver: a block of segments; its large arrays follow in frames 1, 2, ..."""

    protocol: Count
    run: Name
    boot: Name
    receiver: Name
    term: Count
    sequence: Count
    grant: Count
    produced: Count
    dropped: Count
    sent: Count  # this block included
    want: Count  # rows that wait behind this block
    policy: Name
    lineage: Count
    version: Count
    stream: bytes  # int64, little-endian, one per stream
    row0: bytes  # the same
    arrays: Annotated[list[ArrayHead], msgspec.Meta(max_length=MAX_FIELDS + 1)]
    build: Name = ""  # of the environment that the rows come from; "": not known


class Grant(msgspec.Struct, array_like=True, frozen=True, tag="grant"):
    """receiver -> sender: you may send until `sent` reaches `limit`. A later grant replaces an earlier one."""

    protocol: Count
    receiver: Name
    number: Count  # grows with every change
    limit: Count  # rows, as a total since the first block to this receiver
    seen: Count  # rows of yours that I know about, come or lost
    least: Count  # oldest version that a block which is begun now may hold rows of; 0: any


class Refusal(msgspec.Struct, array_like=True, frozen=True, tag="refusal"):
    """receiver -> sender: nothing of yours is taken, and why. Keeps its first four fields in every version."""

    protocol: Count
    receiver: Name
    reason: Name
    text: str


class _Prefix(msgspec.Struct, array_like=True, frozen=True):
    kind: str
    protocol: int


_TO_RECEIVER: msgspec.msgpack.Decoder[SenderHello | BlockMessage] = msgspec.msgpack.Decoder(SenderHello | BlockMessage)
_TO_SENDER: msgspec.msgpack.Decoder[Grant | Refusal] = msgspec.msgpack.Decoder(Grant | Refusal)
_PREFIX = msgspec.msgpack.Decoder(_Prefix)
encode = msgspec.msgpack.Encoder().encode
M = TypeVar("M", SenderHello | BlockMessage, Grant | Refusal)


def to_receiver(data: Buffer) -> SenderHello | BlockMessage:
    """Decode frame 0 of a sender's message.

    Raises:
        Rejected: `protocol` for another version, `decode` for anything else.
    """
    return _decode(_TO_RECEIVER, data, "sender", "receiver")


def to_sender(data: Buffer) -> Grant | Refusal:
    """Decode frame 0 of a receiver's message.

    Raises:
        Rejected: as `to_receiver`.
    """
    return _decode(_TO_SENDER, data, "receiver", "sender")


def schema_digest(schema: Schema) -> str:
    """16 hex digits that differ when anything about the schema does."""
    return hashlib.sha256(msgspec.msgpack.encode(schema)).hexdigest()[:16]


def _decode(decoder: msgspec.msgpack.Decoder[M], data: Buffer, other: str, own: str) -> M:
    try:
        message = decode(decoder, data)
    except Rejected:
        version = decode(_PREFIX, data).protocol  # raises the same when it is no message of any version
        if version != PROTOCOL:
            raise _other_version(version, other, own) from None
        raise
    if message.protocol != PROTOCOL:
        raise _other_version(message.protocol, other, own)
    return message


def _other_version(version: int, other: str, own: str) -> Rejected:
    return Rejected("protocol", f"the {other} speaks version {version} of the protocol, the {own} version {PROTOCOL}")
