"""One ModelPool to a hundred clients: how long until everybody has the new weights, and what it costs.

The pool is the product's, in a process of its own; clients are processes that wait for a notice and pull, as actors
do. What 10,000 would take is calculated from the measured bytes per second and CPU per byte, and from the network.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import struct
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.shared import plots, processes, store, tables
from benchmarks.shared.session import Session
from benchmarks.shared.stats import spread
from benchmarks.shared.store import Row
from rlctl_agents.roles.metrics import Metrics
from rlctl_agents.roles.modelpool import Pool
from rlctl_agents.types.control import GetModel, GotModel, PutModel, Said
from rlctl_agents.types.experience import ModelRef
from rlctl_agents.wire.classes import MODELPOOL
from rlctl_agents.wire.notice import NoticePublisher, NoticeSubscriber
from rlctl_agents.wire.rpc import RpcClient, RpcServer
from rlctl_agents.wire.sockets import Wire

TITLE = "Weights to many"
MEGABYTE = 1_000_000
DEADLINE_S = 60.0
PAUSE_S = 0.5
NETWORKS = {"1 GbE": 0.125e9, "10 GbE": 1.25e9, "25 GbE": 3.125e9}
"""Bytes per second."""
FAR, FAN_OUT = 10_000, 64

_fork = multiprocessing.get_context("fork")


def measure(session: Session) -> None:
    counts = session.choose((3,), (10, 100), (1, 10, 100))
    sizes = session.choose((1,), (5,), (5, 50))
    repeats = session.choose(2, 3, 5)
    cells = [(count, size, transport) for count in counts for size in sizes for transport in ("ipc", "tcp")]
    for number, (count, size, transport) in session.rounds(cells, session.choose(1, 1, 3)):
        keys = {"clients": count, "megabytes": size, "transport": transport, "round": number}
        session.cell(keys, partial(fan_out, count, size * MEGABYTE, transport, repeats))


def fan_out(count: int, size: int, transport: str, versions: int) -> dict[str, Any]:
    """Publish some versions one after the other; the median over them.

    Raises:
        TimeoutError: somebody did not get a version in time.
    """
    with tempfile.TemporaryDirectory(prefix="rlb-fan-") as folder, serving(Path(folder), transport, size) as pool:
        times = np.memmap(Path(folder) / "times", np.float64, "w+", shape=(count, versions + 1))
        with clients(count, pool.addresses, times):
            wire = Wire(None)
            client = RpcClient(wire, pool.addresses[0], "learner")
            found = []
            for version in range(versions + 1):
                before = processes.cpu_s([pool.pid])
                began = put(client, version, size)
                everybody_has(times[:, version])
                if version:  # before the first, everybody had to connect
                    found.append((times[:, version] - began, processes.cpu_s([pool.pid]) - before))
                time.sleep(PAUSE_S)
            client.close()
            wire.close()
            used = processes.memory([pool.pid])
    last = float(np.median([waited.max() for waited, _ in found]))
    return {
        "half_s": float(np.median([np.median(waited) for waited, _ in found])),
        "all_s": last,
        "mb_per_s": count * size / MEGABYTE / last,
        "cpu_s_per_gb": float(np.mean([cpu for _, cpu in found])) / (count * size / 1e9),
        "pool_pss_mib": used.pss_mib,
    }


class Served:
    """A pool that runs."""

    def __init__(self, pid: int, addresses: Sequence[str]) -> None:
        self.pid, self.addresses = pid, addresses


@contextmanager
def serving(folder: Path, transport: str, size: int) -> Iterator[Served]:
    """The product's pool in a process of its own, until the block ends."""
    stop = _fork.Event()
    ours, theirs = _fork.Pipe()
    child = _fork.Process(target=serve, args=(folder, transport, size, stop, theirs), daemon=True)
    child.start()
    assert child.pid is not None
    try:
        yield Served(child.pid, ours.recv_bytes().decode().split("\n"))
    finally:
        stop.set()
        child.join(10)
        child.kill()


def serve(folder: Path, transport: str, size: int, stop: Event, ready: Any) -> None:
    """As roles/modelpool.py does, without a manager."""
    wire = Wire(None)
    rpc, notice = (
        f"ipc://{folder}/{name}" if transport == "ipc" else "tcp://127.0.0.1:*" for name in ("rpc", "notice")
    )
    notices = NoticePublisher(wire, notice)
    pool = Pool(folder / "models", "pool", budget_bytes=8 * size, publish=notices.publish, metrics=Metrics())
    server = RpcServer(wire, rpc, "pool", {PutModel: pool.put, GetModel: pool.get}, MODELPOOL)
    ready.send_bytes(f"{server.address}\n{notices.address}".encode())
    while not stop.is_set():
        server.serve(0.1)
        pool.turn()
    os._exit(0)


@contextmanager
def clients(count: int, addresses: Sequence[str], times: NDArray[np.float64]) -> Iterator[None]:
    """So many processes that want every version."""
    stop = _fork.Event()
    children = [_fork.Process(target=want, args=(index, addresses, times, stop), daemon=True) for index in range(count)]
    for child in children:
        child.start()
    try:
        yield
    finally:
        stop.set()
        for child in children:
            child.join(5)
            child.kill()


def want(index: int, addresses: Sequence[str], times: NDArray[np.float64], stop: Event) -> None:
    """Pull whatever is announced; note when it is here, its checksum checked."""
    wire = Wire(None)
    client, notices = RpcClient(wire, addresses[0], f"client{index}"), NoticeSubscriber(wire, addresses[1], "main")
    have: ModelRef | None = None
    while not stop.is_set():
        if notices.latest() is None and have is not None:
            time.sleep(0.001)
            continue
        try:
            got, buffers = client.call(
                GetModel("main", have=have), GotModel, deadline_s=DEADLINE_S, keep_waiting=lambda: not stop.is_set()
            )
        except TimeoutError:
            break
        if got.state == "new" and got.ref is not None:
            assert struct.unpack("q", bytes(buffers[0][:8]))[0] == got.ref.version
            have = got.ref
            times[index, have.version] = time.monotonic()
        elif have is None:
            time.sleep(0.02)
    os._exit(0)


def put(client: RpcClient, version: int, size: int) -> float:
    """A new version; when it was sent."""
    data = struct.pack("q", version) + bytes(size - 8)
    sha256 = hashlib.sha256(data).hexdigest()
    began = time.monotonic()
    said, _ = client.call(
        PutModel(ModelRef("main", 1, version), 1, sha256), Said, [data], deadline_s=DEADLINE_S,
        keep_waiting=lambda: True,
    )  # fmt: skip
    if not said.ok:
        raise RuntimeError(said.why)
    return began


def everybody_has(times: NDArray[np.float64]) -> None:
    """Wait until nobody lacks a version."""
    deadline = time.monotonic() + DEADLINE_S
    while (np.asarray(times) == 0).any():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{int((np.asarray(times) == 0).sum())} of {times.size} did not get it")
        time.sleep(0.002)


def far(size: float, cpu_s_per_gb: float, bytes_per_s: float, fan_out: int = 0) -> float:
    """Seconds until FAR clients have it, bound by the network or by the pool's one core, whichever is slower.

    Args:
        fan_out: clients of each relay; 0: all pull from one pool. A relay takes the weights from the one above it
            whole, then hands them on.

    Example:
        5 MB over 1.25e9 bytes/s: 10,000 pull 50 GB, which takes 40 s.
    """
    per_client = size / min(bytes_per_s, 1e9 / cpu_s_per_gb if cpu_s_per_gb else float("inf"))
    if not fan_out:
        return FAR * per_client
    levels, reached = 0, 1
    while reached < FAR:
        levels, reached = levels + 1, reached * fan_out
    return levels * fan_out * per_client


def table(rows: list[Row]) -> list[str]:
    columns = ("half_s", "all_s", "mb_per_s", "cpu_s_per_gb", "pool_pss_mib")
    keys = sorted(
        {(int(row["megabytes"]), row["transport"], int(row["clients"])) for row in rows if row.get("clients")}
    )
    body = [
        [f"{clients} clients, {size} MB, {transport}", *(tables.measured(found, column) for column in columns)]
        for size, transport, clients in keys
        if (found := store.where(rows, megabytes=size, transport=transport, clients=clients))
    ]
    head = ["", "s until half have it", "until all have it", "MB/s", "pool CPU s/GB", "pool PSS MiB"]
    return [*tables.table(head, body), "", *calculated(rows)]


def calculated(rows: list[Row]) -> list[str]:
    """The table of what was not measured."""
    over_tcp = [row for row in store.where(rows, transport="tcp") if int(row["clients"]) >= FAN_OUT]
    costs = store.kept(over_tcp, "cpu_s_per_gb")
    if not costs:
        return ["10,000 clients are calculated from 64 clients and more over tcp, of which no cell counts."]
    cost = spread(costs).median
    body = [
        [f"{size} MB, {how}", *(tables.number(far(size * MEGABYTE, cost, speed, fan)) for speed in NETWORKS.values())]
        for size in sorted({int(row["megabytes"]) for row in over_tcp})
        for how, fan in (("one pool", 0), (f"a tree of relays, {FAN_OUT} each", FAN_OUT))
    ]
    return [
        f"**Calculated, not measured**: seconds until {FAR:,} clients have it, from {tables.number(cost)} CPU s per GB "
        "on one core of the pool. Relays are not part of rlctl yet: their line is arithmetic, with the cost of a pool.",
        "",
        *tables.table(["", *NETWORKS], body),
    ]


def plot(rows: list[Row], path: Path) -> None:
    made, (axes,) = plots.figure(1)
    curves = {}
    for transport in store.distinct(rows, "transport"):
        for size in store.distinct(rows, "megabytes"):
            found = store.where(rows, transport=transport, megabytes=size)
            points = sorted(
                (int(count), spread(values).median)
                for count in store.distinct(found, "clients")
                if (values := store.kept(store.where(found, clients=count), "all_s"))
            )
            if points:
                across, up = zip(*points, strict=True)
                curves[f"{size} MB, {transport}"] = (across, up)
    plots.lines(axes, curves, title="until everybody has the new weights", x="clients", y="seconds", log=True)
    plots.save(made, path)
