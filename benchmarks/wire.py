"""CPU of the experience channel beside plain ZeroMQ: `python benchmarks/wire.py [seconds per case] [variants]`.

Two processes on this machine. "plain" sends the same frames with nothing around them: no header, no checks, no credit.
"curve" is this channel with keys over tcp on loopback, "zstd" with compression. Pong's observations are frames of
random play, so that compression means something. CPU includes libzmq's own thread. Figures are per end.
"""

from __future__ import annotations

import os
import resource
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import zmq

from rlctl_agents import envs
from rlctl_agents.types.experience import Array, Arrays, Field, ModelRef, Schema
from rlctl_agents.wire.experience import ExperienceReceiver, ExperienceSender
from rlctl_agents.wire.keys import ACTOR, CORE, Keys
from rlctl_agents.wire.sockets import Wire

STEPS = 20


class Variant(NamedTuple):
    """A way to send."""

    name: str
    plain: bool = False
    tcp: bool = False
    curve: bool = False
    compress: bool = False


VARIANTS = (
    Variant("plain ipc", plain=True),
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
    version = np.zeros((STEPS, streams), np.int64)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not sender.offer(
            model=ModelRef("main", 0, 1), stream=range(streams), row0=[0] * streams, version=version, fields=arrays
        ):
            sender.poll(0.1)
    sender.flush(5.0)


def take(wire: Wire, address: str, agreed: Schema, streams: int, ready: Callable[[str], object]) -> int:
    rows = STEPS * streams
    receiver = ExperienceReceiver(
        wire, address, run="run", boot="receiver", schema=agreed, budget_rows=16 * rows, term=1
    )
    ready(receiver.address)
    count, last = 0, time.monotonic()
    while not count or time.monotonic() - last < 0.5:
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
    ready(address)
    count, last = 0, time.monotonic()
    while not count or time.monotonic() - last < 0.5:
        if socket.poll(100):
            frames = socket.recv_multipart(copy=False)
            np.frombuffer(frames[2].buffer, np.uint8)
            count, last = count + 1, time.monotonic()
    return count


def keys() -> tuple[Keys, Keys]:
    """Of a learner and of an actor."""
    (server, server_secret), (core, core_secret), (actor, actor_secret) = (zmq.curve_keypair() for _ in range(3))
    admitted = {core.decode(): CORE, actor.decode(): ACTOR}
    return Keys(CORE, core, core_secret, server, server_secret, admitted), Keys(ACTOR, actor, actor_secret, server)


def measure(case: str, variant: Variant, seconds: float, folder: str, arrays: Arrays) -> None:
    agreed, streams = CASES[case]
    megabytes = sum(array.nbytes for array in arrays.values()) / 1e6
    learner, actor = keys() if variant.curve else (None, None)
    started, go = os.pipe()
    figures, tell = os.pipe()
    child = os.fork()
    if child == 0:
        address = os.read(started, 256).decode()
        before = cpu_s()
        if variant.plain:
            send_plain(address, arrays, seconds)
        else:
            send(Wire(actor), address, agreed, arrays, seconds, variant.compress)
        os.write(tell, struct.pack("d", cpu_s() - before))
        os._exit(0)
    address = "tcp://127.0.0.1:*" if variant.tcp else f"ipc://{folder}/socket"
    before, began = cpu_s(), time.monotonic()

    def ready(at: str) -> None:
        os.write(go, at.encode())

    count = take_plain(address, ready) if variant.plain else take(Wire(learner), address, agreed, streams, ready)
    used, wall = cpu_s() - before, time.monotonic() - began - 0.5
    (sent,) = struct.unpack("d", os.read(figures, 8))
    os.waitpid(child, 0)
    gigabytes = count * megabytes / 1e3
    print(
        f"{case:21} {variant.name:10} {megabytes:7.3f} MB {count / wall:7.0f} msg/s",
        f"{gigabytes / wall * 1e3:6.0f} MB/s  us/msg {sent / count * 1e6:7.1f} / {used / count * 1e6:7.1f}",
        f"CPU s/GB {sent / gigabytes:5.2f} / {used / gigabytes:5.2f}",
        sep="  ",
        flush=True,
    )


def main(seconds: float, words: list[str]) -> None:
    chosen = [variant for variant in VARIANTS if not words or set(variant.name.split()) & set(words)]
    for case, (agreed, streams) in CASES.items():
        arrays = fields(agreed, streams)
        for variant in (*chosen, *chosen):
            with tempfile.TemporaryDirectory() as ours:
                measure(case, variant, seconds, ours, arrays)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 3.0, sys.argv[2:])
