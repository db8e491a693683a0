"""The experience channel beside plain ZeroMQ of the same bytes.

Two processes on this machine. "plain" sends the same frames with nothing around them: no header, no checks, no credit.
"curve" is this channel with keys over tcp on loopback, "zstd" with compression. Blocks are what the product sends:
Pong's frames are of random play and sent once. Within a cell, short transfers of a fixed number of messages take turns
with plain ones; ratios are medians over these pairs. CPU includes libzmq's own thread and the connection.
"""

from __future__ import annotations

import os
import resource
import signal
import struct
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import zmq
from numpy.typing import NDArray

from benchmarks.shared import plots, store, tables
from benchmarks.shared.session import Session
from benchmarks.shared.stats import spread
from benchmarks.shared.store import Row
from rlctl_agents import envs
from rlctl_agents.types.experience import Array, Arrays, Field, ModelRef, Schema
from rlctl_agents.wire.codec import INLINE_BYTES
from rlctl_agents.wire.experience import ExperienceReceiver, ExperienceSender
from rlctl_agents.wire.keys import ACTOR, CORE, Keys
from rlctl_agents.wire.sockets import Wire

TITLE = "The wire beside plain ZeroMQ"
SILENT_S = 20.0
"""A sender that says nothing for so long never will."""
TRANSFER_S = 300
"""No transfer takes longer."""


class Variant(NamedTuple):
    """A way to send."""

    name: str
    tcp: bool = False
    curve: bool = False
    compress: bool = False
    plain: bool = False


VARIANTS = (
    Variant("ipc"),
    Variant("tcp", tcp=True),
    Variant("curve", tcp=True, curve=True),
    Variant("curve zstd", tcp=True, curve=True, compress=True),
)


class Case(NamedTuple):
    """Blocks of a transfer: schema, streams and number of messages."""

    schema: Schema
    streams: int
    messages: int


def schema(steps: int, obs: Field) -> Schema:
    """As that of impala."""
    small = [
        Field("first", "bool", (), "row+1"),
        Field("action", "int64", (), "row"),
        Field("reward", "float32", (), "row"),
        *(Field(name, "bool", (), "row") for name in ("terminated", "truncated", "valid")),
        Field("log_prob", "float32", (), "row"),
    ]
    return Schema(steps, (obs, *small))


CART, FRAMES = Field("obs", "float32", (4,), "row+1"), Field("obs", "uint8", (4, 84, 84), "row+1", frames=4)
CASES = {
    "cartpole, 16 streams": Case(schema(20, CART), 16, 2000),
    "cartpole, 256 streams": Case(schema(32, CART), 256, 300),
    "pong, 8 streams": Case(schema(20, FRAMES), 8, 100),
    "pong, 32 streams": Case(schema(20, FRAMES), 32, 30),
}
"""The second and the last are the blocks of `peers`."""


def cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def pong(steps: int, streams: int) -> Array:
    """[steps + 4, streams, 84, 84] frames of random play, some way into the game."""
    env = envs.make("ALE/Pong-v5", envs=streams, seeds=list(range(streams)), preset="atari")
    rng = np.random.default_rng(0)
    decisions = env.reset()
    stacks = []
    for step in range(60 + steps + 1):
        if step >= 60:
            stacks.append(decisions.obs["obs"].copy())
        decisions = env.step(decisions.slot, {"action": rng.integers(0, 6, streams)})
    env.close()
    return np.concatenate([np.moveaxis(stacks[0], 1, 0), [stack[:, -1] for stack in stacks[1:]]])


class Blocks(NamedTuple):
    """One block, sent again and again."""

    schema: Schema
    version: NDArray[np.int64]
    fields: Arrays

    @property
    def streams(self) -> int:
        return self.version.shape[1]

    @property
    def size(self) -> int:
        """Bytes of its arrays."""
        return self.version.nbytes + sum(array.nbytes for array in self.fields.values())


def blocks(case: Case) -> Blocks:
    agreed, streams = case.schema, case.streams
    fields: Arrays = {field.name: np.ones(agreed.block_shape(field, streams), field.dtype) for field in agreed.fields}
    if agreed.fields[0].frames:
        fields["obs"] = pong(agreed.unroll_length, streams)
    return Blocks(agreed, np.zeros((agreed.unroll_length, streams), np.int64), fields)


def send(
    wire: Wire,
    address: str,
    block: Blocks,
    messages: int,
    compress: bool,
    ticket: str,
    arrived: Callable[[], object],
) -> None:
    sender = ExperienceSender(
        wire, address, run="run", boot="sender", schema=block.schema, term=1, ticket=ticket, compress=compress
    )
    model, stream, row0 = ModelRef("main", 0, 1), range(block.streams), [0] * block.streams
    for _ in range(messages):
        while not sender.offer(model=model, stream=stream, row0=row0, version=block.version, fields=block.fields):
            sender.poll(0.1)
    while sender.pending:
        sender.poll(0.1)
    arrived()
    sender.close()


def take(wire: Wire, address: str, block: Blocks, messages: int, ready: Callable[[str], object]) -> None:
    """Returns with the last message.

    Raises:
        RuntimeError: messages were refused.
        TimeoutError: nothing came for a long time.
    """
    rows = block.version.size
    receiver = ExperienceReceiver(
        wire, address, run="run", boot="receiver", schema=block.schema, budget_rows=16 * rows, term=1
    )
    ready(receiver.address)
    while messages > 0:
        segments = receiver.poll(SILENT_S)
        for segment in segments:
            receiver.settle(segment, "consumed")
        messages -= len(segments)
        if receiver.rejected:
            raise RuntimeError(f"messages were refused: {receiver.rejected}")
        if not segments:
            raise TimeoutError(f"nothing came for {SILENT_S:g} s, {messages} messages were still to come")


def send_plain(address: str, block: Blocks, messages: int, arrived: Callable[[], object]) -> None:
    socket: zmq.Socket[bytes] = zmq.Context().socket(zmq.DEALER)
    socket.setsockopt(zmq.SNDHWM, 16)
    socket.connect(address)
    arrays = [block.version, *block.fields.values()]
    head = b"".join(array.tobytes() for array in arrays if array.nbytes < INLINE_BYTES)
    large = [array.reshape(-1).view(np.uint8).data for array in arrays if array.nbytes >= INLINE_BYTES]
    for _ in range(messages):
        socket.send_multipart([head, *large], copy=False)
    arrived()
    socket.close(0)


def take_plain(address: str, messages: int, ready: Callable[[str], object]) -> None:
    """As `take`."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.setsockopt(zmq.RCVHWM, 16)
        socket.setsockopt(zmq.LINGER, 0)
        socket.bind(address)
        ready(socket.get_string(zmq.LAST_ENDPOINT))
        for number in range(messages):
            if not socket.poll(SILENT_S * 1000):
                raise TimeoutError(f"nothing came for {SILENT_S:g} s, {messages - number} messages were still to come")
            for frame in socket.recv_multipart(copy=False)[1:]:
                np.frombuffer(frame.buffer, np.uint8)


def keys() -> tuple[Keys, Keys]:
    """Of a learner and of an actor."""
    (server, server_secret), (core, core_secret), (actor, actor_secret) = (zmq.curve_keypair() for _ in range(3))
    admitted = {core.decode(): CORE, actor.decode(): ACTOR}
    return Keys(CORE, core, core_secret, server, server_secret, admitted), Keys(ACTOR, actor, actor_secret, server)


class Transfer(NamedTuple):
    """Times of a transfer; `wall_s` is up to the last message."""

    wall_s: float
    sender_cpu_s: float
    receiver_cpu_s: float

    @property
    def cpu_s(self) -> float:
        return self.sender_cpu_s + self.receiver_cpu_s


def transfer_of(block: Blocks, variant: Variant, messages: int) -> Transfer:
    """Send the same block so many times from a process of its own.

    Raises:
        RuntimeError: messages were refused, or the sender ended without its figures.
        TimeoutError: nothing came for a long time.
    """
    learner, actor = keys() if variant.curve else (None, None)
    told, tell = os.pipe()  # to the sender: the address, and that the last message is here
    figures, say = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(TRANSFER_S)  # if this process is killed, no other ends that one
        try:
            os.close(tell)
            address = os.read(told, 256).decode()
            before, arrived = cpu_s(), partial(os.read, told, 1)
            if variant.plain:
                send_plain(address, block, messages, arrived)
            else:
                ticket = learner.ticket("run", "sender", 0) if learner is not None else ""
                send(Wire(actor), address, block, messages, variant.compress, ticket, arrived)
            os.write(say, struct.pack("d", cpu_s() - before))
        finally:
            os._exit(0)
    os.close(told)
    os.close(say)
    began = used = 0.0

    def ready(address: str) -> None:
        nonlocal began, used
        began, used = time.monotonic(), cpu_s()
        os.write(tell, address.encode())

    try:
        with tempfile.TemporaryDirectory() as folder, closing(Wire(learner)) as wire:
            address = "tcp://127.0.0.1:*" if variant.tcp else f"ipc://{folder}/socket"
            if variant.plain:
                take_plain(address, messages, ready)
            else:
                take(wire, address, block, messages, ready)
            used, wall = cpu_s() - used, time.monotonic() - began
            os.write(tell, b".")
            words = os.read(figures, 8)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(tell)
        os.close(figures)
    if len(words) != 8:
        raise RuntimeError("the sender ended without its figures")
    return Transfer(wall, struct.unpack("d", words)[0], used)


def beside_plain(case: Case, variant: Variant, block: Blocks, repeats: int) -> dict[str, float]:
    """One cell: as many transfers as `repeats`, each with a plain one before or after it."""
    plain = Variant("plain", tcp=variant.tcp, plain=True)
    pairs = []
    for number in range(repeats):
        order = (plain, variant) if number % 2 else (variant, plain)
        found = {one: transfer_of(block, one, case.messages) for one in order}
        pairs.append((found[variant], found[plain]))
    gigabytes = case.messages * block.size / 1e9
    ours, theirs = zip(*pairs, strict=True)

    def median(values: Iterable[float]) -> float:
        return float(np.median(list(values)))

    return {
        "mb_per_s": median(gigabytes * 1e3 / one.wall_s for one in ours),
        "mb_per_s_plain": median(gigabytes * 1e3 / one.wall_s for one in theirs),
        "mb_beside_plain": median(other.wall_s / one.wall_s for one, other in pairs),
        "cpu_s_per_gb_sender": median(one.sender_cpu_s / gigabytes for one in ours),
        "cpu_s_per_gb_receiver": median(one.receiver_cpu_s / gigabytes for one in ours),
        "cpu_s_per_gb_plain": median(one.cpu_s / gigabytes for one in theirs),
        "cpu_beside_plain": median(one.cpu_s / other.cpu_s for one, other in pairs),
        "cpu_us_per_message": median(one.cpu_s / case.messages * 1e6 for one in ours),
    }


def measure(session: Session) -> None:
    names = list(CASES)[: session.choose(1, None, None)]
    variants = VARIANTS[: session.choose(1, 2, None)]
    repeats = session.choose(2, 3, 7)
    made = {name: blocks(CASES[name]) for name in names}
    cells = [
        (name, variant) for name in names for variant in variants
        if not variant.compress or CASES[name].schema.fields[0].frames  # nothing else is compressed
    ]  # fmt: skip
    for number, (name, variant) in session.rounds(cells, session.choose(1, 1, 3)):
        keys_ = {"case": name, "variant": variant.name, "round": number, "bytes": made[name].size}
        session.cell(keys_, partial(beside_plain, CASES[name], variant, made[name], repeats))


def table(rows: list[Row]) -> list[str]:
    columns = {
        "mb_per_s": "MB/s",
        "mb_per_s_plain": "plain",
        "mb_beside_plain": "ratio",
        "cpu_s_per_gb_sender": "CPU s/GB, sender",
        "cpu_s_per_gb_receiver": "receiver",
        "cpu_s_per_gb_plain": "plain, both",
        "cpu_beside_plain": "ratio of CPU",
        "cpu_us_per_message": "CPU us a message",
    }
    body = [
        [f"{case}, {int(found[0]['bytes']):,} bytes: {variant.name}", *(tables.measured(found, one) for one in columns)]
        for case in CASES
        for variant in VARIANTS
        if (found := store.where(rows, case=case, variant=variant.name))
    ]
    goal = (
        "Goal: within 15 % of plain ZeroMQ of the same bytes over the same transport: at least 0.85x its MB/s, at most "
    )
    return [goal + "1.15x its CPU.", "", *tables.table(["", *columns.values()], body)]


def plot(rows: list[Row], path: Path) -> None:
    cases = [case for case in CASES if store.where(rows, case=case)]
    made, axes = plots.figure(max(1, len(cases)))
    for one, case in zip(axes, cases, strict=False):
        values = {
            variant.name: store.kept(store.where(rows, case=case, variant=variant.name), "cpu_beside_plain")
            for variant in VARIANTS
        }
        plots.bars(
            one, {name: spread(some) for name, some in values.items() if some}, title=case,
            unit="CPU of both ends, as a multiple of plain ZeroMQ's",
        )  # fmt: skip
    plots.save(made, path)
