"""The four messages of the experience channel, frame 0 of each (docs/wire.md)."""

from __future__ import annotations

import hashlib
from typing import Annotated, TypeVar

import msgspec

from rlctl_agents.types.experience import MAX_FIELDS, Schema
from rlctl_agents.wire.codec import PROTOCOL, ArrayHead, Buffer, Count, Name, Rejected, decode

HELLO_EVERY_S = 1.0
"""Seconds without a message of its receiver after which a sender says hello again."""
CREDIT_VALID_S = 4.0
"""Seconds without a message of its receiver, or without a poll of its own, after which a sender's credit expires."""
FORGET_AFTER_S = 6.0
"""Seconds without a message of a sender after which its credit goes to others; at the sender it has expired by then."""


class SenderHello(msgspec.Struct, array_like=True, frozen=True, tag="hello"):
    """sender -> receiver: its identity and totals. Answered by a grant or a refusal."""

    protocol: Count
    run: Name
    boot: Name  # of the sender
    receiver: Name  # boot of the receiver, "" when not known yet: then the totals below mean nothing to it
    term: Count
    schema: Name  # digest of the schema
    grant: Count  # number of the newest grant acknowledged
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
    """receiver -> sender: it may send until `sent` reaches `limit`. A later grant replaces an earlier one."""

    protocol: Count
    receiver: Name
    number: Count  # grows with every change
    limit: Count  # rows, as a total since the first block to this receiver
    seen: Count  # rows of the sender that the receiver knows of, received or lost
    least: Count  # oldest version of rows in a block that is begun now; 0: any


class Refusal(msgspec.Struct, array_like=True, frozen=True, tag="refusal"):
    """receiver -> sender: its messages are refused, and why. Has the same first four fields in every version."""

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
    """Digest of a schema: 16 hex digits that differ when anything in it does."""
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
