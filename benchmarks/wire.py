"""CPU of the experience channel beside plain ZeroMQ of the same bytes.

Two processes on this machine. "plain" sends the same frames with nothing around them: no header, no checks, no credit.
"curve" is this channel with keys over tcp on loopback, "zstd" with compression. Pong's observations are frames of
random play, so that compression means something. CPU includes libzmq's own thread. Figures are per end.
"""

from __future__ import annotations

import os
import resource
import struct
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import zmq

from benchmarks.shared import plots, store, tables
from benchmarks.shared.session import Session
from benchmarks.shared.stats import spread
from benchmarks.shared.store import Row
from rlctl_agents import envs
from rlctl_agents.types.experience import Array, Arrays, Field, ModelRef, Schema
from rlctl_agents.wire.experience import ExperienceReceiver, ExperienceSender
from rlctl_agents.wire.keys import ACTOR, CORE, Keys
from rlctl_agents.wire.sockets import Wire

TITLE = "The wire beside plain ZeroMQ"
STEPS = 20
QUIET_S = 0.5
"""Without a message for so long, the sender has ended."""
FIRST_S = 20.0
"""The first message takes no longer, or never comes."""


class Variant(NamedTuple):
    """A way to send."""

    name: str
    plain: bool = False
    tcp: bool = False
    curve: bool = False
    compress: bool = False


VARIANTS = (
    Variant("plain ipc", plain=True),
    Variant("plain tcp", plain=True, tcp=True),
    Variant("ipc"),
    Variant("tcp", tcp=True),
    Variant("tcp zstd", tcp=True, compress=True),
    Variant("curve", tcp=True, curve=True),
    Variant("curve zstd", tcp=True, curve=True, compress=True),
)


def schema(obs: Field) -> Schema:
    small = [
        Field("first", "bool", (), "row+1"),
        Field("action", "int64", (), "row"),
        Field("reward", "float32", (), "row"),
        *(Field(name, "bool", (), "row") for name in ("terminated", "truncated", "valid")),
        Field("log_prob", "float32", (), "row"),
    ]
    return Schema(STEPS, (obs, *small))


CASES = {
    "cartpole, 16 streams": (schema(Field("obs", "float32", (4,), "row+1")), 16),
    "pong, 8 streams": (schema(Field("obs", "uint8", (4, 84, 84), "row+1")), 8),
    "pong, 32 streams": (schema(Field("obs", "uint8", (4, 84, 84), "row+1")), 32),
}


def cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def pong(streams: int) -> Array:
    """[STEPS+1, streams, 4, 84, 84] observations of random play, some way into the game."""
    env = envs.make("ALE/Pong-v5", envs=streams, seeds=list(range(streams)), preset="atari")
    rng = np.random.default_rng(0)
    decisions = env.reset()
    frames = []
    for step in range(60 + STEPS + 1):
        if step >= 60:
            frames.append(decisions.obs["obs"].copy())
        decisions = env.step(decisions.slot, {"action": rng.integers(0, 6, streams)})
    env.close()
    return np.stack(frames)


def fields(agreed: Schema, streams: int) -> Arrays:
    arrays: Arrays = {field.name: np.ones(agreed.array_shape(field, streams), field.dtype) for field in agreed.fields}
    if agreed.fields[0].dtype == "uint8":
        arrays["obs"] = pong(streams)
    return arrays


def send(wire: Wire, address: str, agreed: Schema, arrays: Arrays, seconds: float, compress: bool) -> None:
    sender = ExperienceSender(wire, address, run="run", boot="sender", schema=agreed, term=1, compress=compress)
    streams = arrays["obs"].shape[1]
    version = np.zeros((agreed.segment_steps, streams), np.int64)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not sender.offer(
            model=ModelRef("main", 0, 1), stream=range(streams), row0=[0] * streams, version=version, fields=arrays
        ):
            sender.poll(0.1)
    sender.flush(5.0)


def take(wire: Wire, address: str, agreed: Schema, streams: int, ready: Callable[[str], object]) -> int:
    rows = agreed.segment_steps * streams
    receiver = ExperienceReceiver(
        wire, address, run="run", boot="receiver", schema=agreed, budget_rows=16 * rows, term=1
    )
    ready(receiver.address)
    count, last = 0, time.monotonic()
    while time.monotonic() - last < (QUIET_S if count else FIRST_S):
        for segment in receiver.poll(0.1):
            count, last = count + 1, time.monotonic()
            receiver.settle(segment, "consumed")
    assert not receiver.rejected, receiver.rejected
    wire.close()
    return count


def send_plain(address: str, arrays: Arrays, seconds: float) -> None:
    socket: zmq.Socket[bytes] = zmq.Context().socket(zmq.DEALER)
    socket.setsockopt(zmq.SNDHWM, 16)
    socket.connect(address)
    head = b"".join(array.tobytes() for name, array in arrays.items() if name != "obs")
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        socket.send_multipart([head, arrays["obs"].reshape(-1).view(np.uint8).data], copy=False)
    socket.close(5000)


def take_plain(address: str, ready: Callable[[str], object]) -> int:
    socket: zmq.Socket[bytes] = zmq.Context().socket(zmq.ROUTER)
    socket.setsockopt(zmq.RCVHWM, 16)
    socket.bind(address)
    ready(socket.get_string(zmq.LAST_ENDPOINT))
    count, last = 0, time.monotonic()
    while time.monotonic() - last < (QUIET_S if count else FIRST_S):
        if socket.poll(100):
            frames = socket.recv_multipart(copy=False)
            np.frombuffer(frames[2].buffer, np.uint8)
            count, last = count + 1, time.monotonic()
    socket.close(0)
    return count


def keys() -> tuple[Keys, Keys]:
    """Of a learner and of an actor."""
    (server, server_secret), (core, core_secret), (actor, actor_secret) = (zmq.curve_keypair() for _ in range(3))
    admitted = {core.decode(): CORE, actor.decode(): ACTOR}
    return Keys(CORE, core, core_secret, server, server_secret, admitted), Keys(ACTOR, actor, actor_secret, server)


class Transfer(NamedTuple):
    """What went over."""

    messages: int
    wall_s: float
    sender_cpu_s: float
    receiver_cpu_s: float


def transfer_of(agreed: Schema, arrays: Arrays, variant: Variant, seconds: float) -> Transfer:
    """Send the same block for that long from a process of its own.

    Raises:
        RuntimeError: nothing came, or the sender ended without its figures.
    """
    learner, actor = keys() if variant.curve else (None, None)
    started, go = os.pipe()
    figures, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(go)
        try:
            address = os.read(started, 256).decode()
            before = cpu_s()
            if variant.plain:
                send_plain(address, arrays, seconds)
            else:
                send(Wire(actor), address, agreed, arrays, seconds, variant.compress)
            os.write(tell, struct.pack("d", cpu_s() - before))
        finally:
            os._exit(0)
    os.close(started)
    os.close(tell)
    streams = arrays["obs"].shape[1]
    with tempfile.TemporaryDirectory() as folder:
        address = "tcp://127.0.0.1:*" if variant.tcp else f"ipc://{folder}/socket"
        before, began = cpu_s(), time.monotonic()

        def ready(at: str) -> None:
            os.write(go, at.encode())

        count = take_plain(address, ready) if variant.plain else take(Wire(learner), address, agreed, streams, ready)
        used, wall = cpu_s() - before, time.monotonic() - began - QUIET_S
    told = os.read(figures, 8)
    os.close(figures)
    os.close(go)
    os.waitpid(child, 0)
    if len(told) != 8 or not count:
        raise RuntimeError("nothing came, or the sender ended without a word")
    (sent,) = struct.unpack("d", told)
    return Transfer(count, wall, sent, used)


def transfer(case: str, variant: Variant, seconds: float, arrays: Arrays) -> dict[str, float]:
    """One cell."""
    found = transfer_of(CASES[case][0], arrays, variant, seconds)
    gigabytes = found.messages * sum(array.nbytes for array in arrays.values()) / 1e9
    return {
        "mb_per_s": gigabytes * 1e3 / found.wall_s,
        "messages_per_s": found.messages / found.wall_s,
        "cpu_s_per_gb_sender": found.sender_cpu_s / gigabytes,
        "cpu_s_per_gb_receiver": found.receiver_cpu_s / gigabytes,
        "cpu_s_per_gb": (found.sender_cpu_s + found.receiver_cpu_s) / gigabytes,
    }


def measure(session: Session) -> None:
    seconds = session.choose(0.5, 1.0, 5.0)
    names = session.choose(["cartpole, 16 streams"], list(CASES), list(CASES))
    arrays = {name: fields(*CASES[name]) for name in names}
    cells = [(name, variant) for name in names for variant in VARIANTS]
    for number, (name, variant) in session.rounds(cells, session.choose(1, 1, 5)):
        keys_ = {"case": name, "variant": variant.name, "round": number}
        session.cell(keys_, partial(transfer, name, variant, seconds, arrays[name]))


def table(rows: list[Row]) -> list[str]:
    lines = ["Goal: within 15 % of plain ZeroMQ over the same transport, in CPU seconds per GB.", ""]
    columns = ("mb_per_s", "cpu_s_per_gb_sender", "cpu_s_per_gb_receiver", "cpu_s_per_gb")
    body = [
        [f"{case}: {name}", *(tables.measured(found, column) for column in columns), beside_plain(rows, case, name)]
        for case in CASES
        for name in (variant.name for variant in VARIANTS)
        if (found := store.where(rows, case=case, variant=name))
    ]
    head = ["", "MB/s", "CPU s/GB, sender", "CPU s/GB, receiver", "CPU s/GB, both", "beside plain"]
    return lines + tables.table(head, body)


def beside_plain(rows: list[Row], case: str, name: str) -> str:
    """CPU per byte as a multiple of plain ZeroMQ's in the same round, over the same transport."""
    transport = "plain ipc" if name == "ipc" else "plain tcp"
    ratios = []
    for number in store.distinct(rows, "round"):
        ours, plain = (
            store.kept(store.where(rows, case=case, variant=one, round=number), "cpu_s_per_gb")
            for one in (name, transport)
        )
        if ours and plain:
            ratios.append(ours[0] / plain[0])
    if name.startswith("plain") or not ratios:
        return ""
    found = spread(ratios)
    return f"{tables.number(found.median)}x ({tables.number(found.low)}-{tables.number(found.high)})"


def plot(rows: list[Row], path: Path) -> None:
    cases = [case for case in CASES if store.where(rows, case=case)]
    made, axes = plots.figure(max(1, len(cases)))
    for one, case in zip(axes, cases, strict=False):
        values = {
            variant.name: store.kept(store.where(rows, case=case, variant=variant.name), "cpu_s_per_gb")
            for variant in VARIANTS
        }
        plots.bars(
            one, {name: spread(some) for name, some in values.items() if some}, title=case,
            unit="CPU seconds per GB, both ends",
        )  # fmt: skip
    plots.save(made, path)
