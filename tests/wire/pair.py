"""A schema, blocks, and the two ends of an experience channel in one thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import zmq

from rlctl_agents.types.experience import Arrays, Field, ModelRef, Schema, SegmentBlock
from rlctl_agents.wire.codec import PROTOCOL, BlockCodec
from rlctl_agents.wire.experience import ExperienceReceiver, ExperienceSender
from rlctl_agents.wire.experience.protocol import BlockMessage, Grant, Refusal, SenderHello, schema_digest, to_sender
from rlctl_agents.wire.sockets import Wire

STEPS = 4
SCHEMA = Schema(
    STEPS,
    (
        Field("obs.camera", "uint8", (3, 2), "row+1"),
        Field("obs.position", "float32", (2,), "row+1"),
        Field("first", "bool", (), "row+1"),
        Field("action.0", "int64", (), "row"),
        Field("action.1", "float64", (3,), "row"),
        Field("reward", "float32", (), "row"),
        Field("core.h", "float16", (5,), "segment"),
    ),
)
MODEL = ModelRef("main", 2, 7)


LIMIT_S = 60.0
"""So long a busy machine may take for what takes milliseconds; a wait that succeeds ends at once."""


class Clock:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def fields(streams: int, schema: Schema = SCHEMA, seed: int = 0) -> Arrays:
    """Random arrays as the schema says."""
    rng = np.random.default_rng(seed)
    return {
        field.name: rng.integers(0, 2, schema.array_shape(field, streams)).astype(field.dtype)
        for field in schema.fields
    }


def versions(streams: int, steps: int = STEPS) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.arange(steps * streams, dtype=np.int64).reshape(steps, streams)


def offer(sender: ExperienceSender, streams: int = 2, *, row0: int = 0, schema: Schema = SCHEMA) -> bool:
    return sender.offer(
        model=MODEL,
        stream=range(streams),
        row0=[row0] * streams,
        version=versions(streams, schema.unroll_length),
        fields=fields(streams, schema),
    )


def make_sender(wire: Wire, address: str, boot: str = "sender", **changes: Any) -> ExperienceSender:
    settings: dict[str, Any] = {"run": "run", "boot": boot, "schema": SCHEMA, "term": 1, **changes}
    return ExperienceSender(wire, address, **settings)


def make_receiver(wire: Wire, address: str, boot: str = "receiver", **changes: Any) -> ExperienceReceiver:
    settings: dict[str, Any] = {
        "run": "run",
        "boot": boot,
        "schema": SCHEMA,
        "term": 1,
        "budget_rows": 64,
        **changes,
    }
    return ExperienceReceiver(wire, address, **settings)


def until(done: Callable[[], object], *steps: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    """Run the steps again and again until `done`."""
    end = time.monotonic() + limit_s
    while not done():
        assert time.monotonic() < end, "it did not happen"
        for step in steps:
            step()


def carry(
    sender: ExperienceSender, receiver: ExperienceReceiver, blocks: int, *, settle: bool = True
) -> list[SegmentBlock]:
    """Offer so many blocks and take them at the other end."""
    segments: list[SegmentBlock] = []
    offered = 0
    end = time.monotonic() + LIMIT_S
    while len(segments) < blocks:
        assert time.monotonic() < end, f"{len(segments)} of {blocks} came; {sender.refused}"
        if offered < blocks and offer(sender, row0=offered * STEPS):
            offered += 1
        sender.poll(0.0)
        for segment in receiver.poll(0.001):
            segments.append(segment)
            if settle:
                receiver.settle(segment, "consumed")
    return segments


def quiesce(
    sender: ExperienceSender, receiver: ExperienceReceiver, clock: Clock, receive: Callable[[], object]
) -> None:
    """Exchange until the receiver has heard the sender's last word."""

    def agreed() -> bool:
        clock.now += 0.2  # towards the next hello
        account = receiver.accounts.get(sender._boot)
        return account is not None and sender.ledgers.get(receiver._boot) == account.ledger

    until(agreed, lambda: sender.poll(0.0), receive)


class RawSender:
    """Says whatever it is told to, well-formed or not."""

    def __init__(self, wire: Wire, address: str, boot: str = "raw") -> None:
        self.socket = wire.connect(zmq.DEALER, address)
        self.boot = boot

    def hello(self, **changes: object) -> SenderHello:
        hello = SenderHello(PROTOCOL, "run", self.boot, "receiver", 1, schema_digest(SCHEMA), 0, 0, 0, 0, 0, 8, 8)
        return msgspec.structs.replace(hello, **changes)

    def block(self, sequence: int = 0, *, streams: int = 2, **changes: object) -> BlockMessage:
        rows = (sequence + 1) * streams * STEPS
        heads, _ = BlockCodec(SCHEMA).pack(streams, versions(streams), fields(streams), compress=False)
        ids = np.arange(streams, dtype="<i8").tobytes()
        block = BlockMessage(
            PROTOCOL, "run", self.boot, "receiver", 1, sequence, 0, rows, 0, rows, 0, "main", 0, 1, ids, ids, heads
        )  # fmt: skip
        return msgspec.structs.replace(block, **changes)

    def say(self, message: msgspec.Struct | bytes, *frames: bytes) -> None:
        head = message if isinstance(message, bytes) else msgspec.msgpack.encode(message)
        self.socket.send_multipart([head, *frames])

    def hear(self, receiver: ExperienceReceiver, limit_s: float = LIMIT_S) -> Grant | Refusal:
        """The next answer."""
        end = time.monotonic() + limit_s
        while not self.socket.poll(1):
            assert time.monotonic() < end, "no answer"
            receiver.poll(0.0)
        return to_sender(self.socket.recv())

    def greet(self, receiver: ExperienceReceiver, **changes: object) -> Grant:
        """Say hello and ask for credit until there is some."""
        end = time.monotonic() + 2.0
        self.say(self.hello(**changes))
        while True:
            answer = self.hear(receiver)
            assert isinstance(answer, Grant), answer
            if answer.limit or time.monotonic() > end:
                return answer
