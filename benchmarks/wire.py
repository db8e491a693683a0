"""CPU of the experience channel beside plain ZeroMQ: `python benchmarks/wire.py [seconds per case]`.

Two processes over a Unix socket. "plain" sends the same frames with nothing around them: no header, no checks, no
credit. CPU includes libzmq's own thread. Figures are per end.
"""

from __future__ import annotations

import os
import resource
import struct
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np
import zmq

from rlctl_agents.types.experience import Arrays, Field, ModelRef, Schema
from rlctl_agents.wire.experience import ExperienceReceiver, ExperienceSender
from rlctl_agents.wire.sockets import Wire

STEPS = 20


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


def fields(agreed: Schema, streams: int) -> Arrays:
    return {field.name: np.ones(agreed.array_shape(field, streams), field.dtype) for field in agreed.fields}


def send(address: str, agreed: Schema, streams: int, seconds: float) -> None:
    sender = ExperienceSender(Wire(), address, run="run", boot="sender", schema=agreed, term=1)
    arrays, version = fields(agreed, streams), np.zeros((STEPS, streams), np.int64)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not sender.offer(
            model=ModelRef("main", 0, 1), stream=range(streams), row0=[0] * streams, version=version, fields=arrays
        ):
            sender.poll(0.1)
    sender.flush(5.0)


def take(address: str, agreed: Schema, streams: int, ready: Callable[[], object]) -> int:
    rows = STEPS * streams
    receiver = ExperienceReceiver(
        Wire(), address, run="run", boot="receiver", schema=agreed, budget_rows=16 * rows, term=1
    )
    ready()
    count, last = 0, time.monotonic()
    while not count or time.monotonic() - last < 0.5:
        for segment in receiver.poll(0.1):
            count, last = count + 1, time.monotonic()
            receiver.settle(segment, "consumed")
    assert not receiver.rejected, receiver.rejected
    return count


def send_plain(address: str, agreed: Schema, streams: int, seconds: float) -> None:
    socket: zmq.Socket[bytes] = zmq.Context().socket(zmq.DEALER)
    socket.setsockopt(zmq.SNDHWM, 16)
    socket.connect(address)
    arrays = fields(agreed, streams)
    head = b"".join(array.tobytes() for name, array in arrays.items() if name != "obs")
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        socket.send_multipart([head, arrays["obs"].reshape(-1).view(np.uint8).data], copy=False)
    socket.close(5000)


def take_plain(address: str, agreed: Schema, streams: int, ready: Callable[[], object]) -> int:
    socket: zmq.Socket[bytes] = zmq.Context().socket(zmq.ROUTER)
    socket.setsockopt(zmq.RCVHWM, 16)
    socket.bind(address)
    ready()
    count, last = 0, time.monotonic()
    while not count or time.monotonic() - last < 0.5:
        if socket.poll(100):
            frames = socket.recv_multipart(copy=False)
            np.frombuffer(frames[2].buffer, np.uint8)
            count, last = count + 1, time.monotonic()
    return count


def measure(case: str, plain: bool, seconds: float, folder: str) -> None:
    agreed, streams = CASES[case]
    megabytes = sum(array.nbytes for array in fields(agreed, streams).values()) / 1e6
    address = f"ipc://{folder}/socket"
    started, go = os.pipe()
    figures, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(started, 1)
        before = cpu_s()
        (send_plain if plain else send)(address, agreed, streams, seconds)
        os.write(tell, struct.pack("d", cpu_s() - before))
        os._exit(0)
    before, began = cpu_s(), time.monotonic()
    count = (take_plain if plain else take)(address, agreed, streams, lambda: os.write(go, b"x"))
    used, wall = cpu_s() - before, time.monotonic() - began - 0.5
    (sent,) = struct.unpack("d", os.read(figures, 8))
    os.waitpid(child, 0)
    gigabytes = count * megabytes / 1e3
    print(
        f"{case:21} {'plain' if plain else 'rlctl':5} {megabytes:7.3f} MB {count / wall:7.0f} msg/s",
        f"{gigabytes / wall * 1e3:6.0f} MB/s  us/msg {sent / count * 1e6:7.1f} / {used / count * 1e6:7.1f}",
        f"CPU s/GB {sent / gigabytes:5.2f} / {used / gigabytes:5.2f}",
        sep="  ",
        flush=True,
    )


if __name__ == "__main__":
    for name in CASES:
        for is_plain in (True, False, True, False):
            with tempfile.TemporaryDirectory() as ours:
                measure(name, is_plain, float(sys.argv[1]) if len(sys.argv) > 1 else 3.0, ours)
