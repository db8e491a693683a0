"""One ModelPool, or a tree of them, to a hundred clients: time until every client has the new weights, and its cost.

The pools are the product's, each in a process of its own, those below the first one with its relays; clients are
processes that follow with the product's client, as actors do: they wait for a notice, pull, and wait for their turn.
The time for 10,000 is calculated from the measured bytes per second and CPU per byte, and from the network.
"""

from __future__ import annotations

import hashlib
import math
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
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from benchmarks.shared import plots, processes, store, tables
from benchmarks.shared.session import Session
from benchmarks.shared.stats import spread
from benchmarks.shared.store import Row
from rlctl.spec.roles import FAN_OUT, serving
from rlctl_agents.roles.modelpool import ModelServer
from rlctl_agents.runtime.metrics import Metrics
from rlctl_agents.types.control import Channels, GetModel, PutModel, Reply
from rlctl_agents.types.experience import ModelRef
from rlctl_agents.weights import client
from rlctl_agents.weights.client import Follower, Model
from rlctl_agents.weights.relay import Relay
from rlctl_agents.wire.classes import MODELPOOL
from rlctl_agents.wire.notice import NoticePublisher
from rlctl_agents.wire.rpc.bulk import BulkClient, in_pieces
from rlctl_agents.wire.rpc.server import Handler, RpcServer
from rlctl_agents.wire.sockets import Wire

TITLE = "Weights to many"
MEGABYTE = 1_000_000
DEADLINE_S = 60.0
"""Deadline of the measurement. Clients have those of the product."""
LISTEN_S = 0.1
"""Longest wait for a notice, and between two questions for weights that outlast the wait of a client."""
PAUSE_S = 0.5
NETWORKS = {"1 GbE": 0.125e9, "10 GbE": 1.25e9, "25 GbE": 3.125e9}
"""Bytes per second."""
FAR, MANY = 10_000, 64
TREES = (5, 9, 64)
"""Modelpools of the trees that are calculated."""

_fork = multiprocessing.get_context("fork")


def measure(session: Session) -> None:
    counts = session.choose((3,), (10, 100), (1, 10, 100))
    sizes = session.choose((1,), (5,), (5, 50))
    repeats = session.choose(2, 3, 5)
    cells = [(count, size, transport, 1) for count in counts for size in sizes for transport in ("ipc", "tcp")]
    tree = session.choose(3, 5, 5)
    cells += [(max(counts), size, transport, tree) for size in sizes for transport in ("ipc", "tcp")]
    for number, (count, size, transport, pools) in session.rounds(cells, session.choose(1, 1, 3)):
        keys = {"clients": count, "megabytes": size, "transport": transport, "pools": pools, "round": number}
        session.cell(keys, partial(fan_out, count, size * MEGABYTE, transport, pools, repeats))


def fan_out(count: int, size: int, transport: str, pools: int, versions: int) -> dict[str, Any]:
    """Publish some versions one after the other; the median over them.

    Args:
        pools: modelpools; clients are shared out over those that actors would pull from.

    Raises:
        TimeoutError: a client did not get a version in time.
    """
    with tempfile.TemporaryDirectory(prefix="rlb-fan-") as name, tree_of(Path(name), transport, size, pools) as served:
        times = np.memmap(Path(name) / "times", np.float64, "w+", shape=(count, versions + 1))
        leaves = [served[number].channels for number in serving(pools)]
        with clients(count, leaves, times):
            wire = Wire(None)
            client = BulkClient(wire, served[0].channels["rpc"], "learner")
            found = []
            for version in range(versions + 1):
                before = cpu_s(served)
                began = put(client, version, size)
                everybody_has(times[:, version])
                if version:  # before the first, every client had to connect
                    found.append((times[:, version] - began, cpu_s(served) - before))
                time.sleep(PAUSE_S)
            client.close()
            wire.close()
            used = processes.memory([pool.pid for pool in served])
    last = float(np.median([waited.max() for waited, _ in found]))
    cpu = np.mean([spent for _, spent in found], axis=0)  # of each pool, for one version
    return {
        "half_s": float(np.median([np.median(waited) for waited, _ in found])),
        "all_s": last,
        "mb_per_s": count * size / MEGABYTE / last,
        "cpu_s_per_gb": float(cpu.sum()) / (count * size / 1e9),
        "busiest_cpu_s": float(cpu.max()),
        "pool_pss_mib": used.pss_mib,
    }


class Served(NamedTuple):
    """A pool that runs."""

    pid: int
    channels: Channels


def cpu_s(served: Sequence[Served]) -> NDArray[np.float64]:
    """CPU seconds of each pool so far."""
    return np.array([processes.cpu_s([pool.pid]) for pool in served])


@contextmanager
def tree_of(folder: Path, transport: str, size: int, pools: int) -> Iterator[list[Served]]:
    """So many of the product's pools, each in a process of its own, until the block ends."""
    stop = _fork.Event()
    children: list[Any] = []
    served: list[Served] = []
    try:
        for number in range(pools):
            above = served[(number - 1) // FAN_OUT].channels if number else None
            ours, theirs = _fork.Pipe()
            at = f"ipc://{folder}/{number}." if transport == "ipc" else ""
            child = _fork.Process(target=serve, args=(folder, at, above, size, stop, theirs), daemon=True)
            child.start()
            children.append(child)
            rpc, notice = ours.recv_bytes().decode().split("\n")
            served.append(Served(child.pid, {"rpc": rpc, "notice": notice}))
        yield served
    finally:
        stop.set()
        for child in children:
            child.join(10)
            child.kill()


def serve(folder: Path, at: str, above: Channels | None, size: int, stop: Event, ready: Any) -> None:
    """As roles/modelpool.py does, without a manager.

    Args:
        at: beginning of its addresses; "": a port of the loopback that the system chooses.
        above: the pool from which it takes its weights; None: another process brings them.
    """
    wire = Wire(None)
    rpc, notice = (f"{at}{name}" if at else "tcp://127.0.0.1:*" for name in ("rpc", "notice"))
    notices = NoticePublisher(wire, notice)
    pool = ModelServer(folder / "models", "pool", budget_bytes=8 * size, publish=notices.publish, metrics=Metrics())
    handlers: dict[type[Struct], Handler] = {PutModel: pool.put, GetModel: pool.get}
    server = RpcServer(wire, rpc, "pool", handlers, MODELPOOL, large=pool.large)
    if above is not None:
        Relay(wire, "pool", "main", above=lambda: {0: above}, take=pool.take).start()
    ready.send_bytes(f"{server.address}\n{notices.address}".encode())
    while not stop.is_set():
        server.serve(0.1)
        pool.turn()
    os._exit(0)


@contextmanager
def clients(count: int, pools: Sequence[Channels], times: NDArray[np.float64]) -> Iterator[None]:
    """So many processes that want every version, each from one of the pools."""
    stop = _fork.Event()
    children = [
        _fork.Process(target=want, args=(index, pools[index % len(pools)], times, stop), daemon=True)
        for index in range(count)
    ]
    for child in children:
        child.start()
    try:
        yield
    finally:
        stop.set()
        for child in children:
            child.join(5)
            child.kill()


def want(index: int, pool: Channels, times: NDArray[np.float64], stop: Event) -> None:
    """Follow, as an actor does; note when a version is here."""
    wire = Wire(None)

    def take(model: Model) -> None:
        assert struct.unpack("q", model.data[:8])[0] == model.ref.version
        times[index, model.ref.version] = time.monotonic()

    def goes_on() -> bool:
        return not stop.is_set()

    source = client.Pool(wire, pool, "main", f"client{index}", goes_on)
    follower = Follower(take, "main", source)
    follower.wait_for_any(goes_on, time.sleep)
    while goes_on():
        follower.refresh()
        source.wait_for_notice(LISTEN_S)
    os._exit(0)


def put(client: BulkClient, version: int, size: int) -> float:
    """Put a new version; returns the time at which it was sent."""
    data = struct.pack("q", version) + bytes(size - 8)
    sha256 = hashlib.sha256(data).hexdigest()
    began = time.monotonic()
    client.ask(PutModel(ModelRef("main", 1, version), 1, sha256), in_pieces(data))
    said, _ = client.answer(Reply, DEADLINE_S)
    if not said.ok:
        raise RuntimeError(said.why)
    return began


def everybody_has(times: NDArray[np.float64]) -> None:
    """Wait until no client lacks a version."""
    deadline = time.monotonic() + DEADLINE_S
    while (np.asarray(times) == 0).any():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{int((np.asarray(times) == 0).sum())} of {times.size} did not get it")
        time.sleep(0.002)


def far(size: float, cpu_s_per_gb: float, bytes_per_s: float, pools: int = 1) -> float:
    """Seconds until FAR clients have it, bound by the network or by a pool's one core, whichever is slower.

    Args:
        pools: modelpools, each on a machine of its own. A relay takes the weights from the one above it whole, then
            hands them on to all that ask it; the last client counts.

    Example:
        5 MB over 1.25e9 bytes/s: 10,000 pull 50 GB, which takes 40 s from one pool. Of 9, the first gives them to 8,
        and each of these to 1,250: 1,258 times 4 ms, 5 s.
    """
    per_client = size / min(bytes_per_s, 1e9 / cpu_s_per_gb if cpu_s_per_gb else float("inf"))
    leaves, sent = serving(pools), 0
    above = leaves[-1]
    while above:
        above = (above - 1) // FAN_OUT
        sent += min(FAN_OUT, pools - 1)
    return (sent + math.ceil(FAR / len(leaves))) * per_client


def table(rows: list[Row]) -> list[str]:
    columns = ("half_s", "all_s", "mb_per_s", "cpu_s_per_gb", "busiest_cpu_s", "pool_pss_mib")
    keys = sorted(
        {
            (int(row["megabytes"]), row["transport"], int(row["clients"]), int(row["pools"]))
            for row in rows
            if row.get("clients")
        }
    )
    body = [
        [
            f"{clients} clients, {size} MB, {transport}, {named(pools)}",
            *(tables.measured(found, column) for column in columns),
        ]
        for size, transport, clients, pools in keys
        if (found := store.where(rows, megabytes=size, transport=transport, clients=clients, pools=pools))
    ]
    head = [
        "", "s until half have it", "until all have it", "MB/s", "CPU s/GB of all pools", "CPU s of the busiest pool",
        "PSS MiB of all pools",
    ]  # fmt: skip
    return [
        "Pools and clients share the cores of this machine, so here a tree saves no time. What it saves is the CPU of "
        "the busiest pool, that of one version: on nodes of their own, this is what bounds them.",
        "",
        *tables.table(head, body),
        "",
        *calculated(rows),
    ]


def named(pools: int) -> str:
    return "one pool" if pools == 1 else f"a tree of {pools}"


def calculated(rows: list[Row]) -> list[str]:
    """The table of calculated figures."""
    over_tcp = [row for row in store.where(rows, transport="tcp", pools=1) if int(row["clients"]) >= MANY]
    costs = store.kept(over_tcp, "cpu_s_per_gb")
    if not costs:
        return ["10,000 clients are calculated from 64 clients and more over tcp, of which no cell counts."]
    cost = spread(costs).median
    body = [
        [
            f"{size} MB, {named(pools)}",
            *(tables.number(far(size * MEGABYTE, cost, speed, pools)) for speed in NETWORKS.values()),
        ]
        for size in sorted({int(row["megabytes"]) for row in over_tcp})
        for pools in (1, *TREES)
    ]
    return [
        f"**Calculated, not measured**: seconds until {FAR:,} clients have it, from {tables.number(cost)} CPU s per GB "
        "on one core of each pool, unencrypted, every pool on a node of its own (`roles.modelpool.replicas`).",
        "",
        *tables.table(["", *NETWORKS], body),
    ]


def plot(rows: list[Row], path: Path) -> None:
    made, (axes,) = plots.figure(1)
    curves = {}
    for transport in store.distinct(rows, "transport"):
        for size in store.distinct(rows, "megabytes"):
            found = store.where(rows, transport=transport, megabytes=size, pools=1)
            points = sorted(
                (int(count), spread(values).median)
                for count in store.distinct(found, "clients")
                if (values := store.kept(store.where(found, clients=count), "all_s"))
            )
            if points:
                across, up = zip(*points, strict=True)
                curves[f"{size} MB, {transport}"] = (across, up)
    plots.lines(axes, curves, title="until all have the new weights", x="clients", y="seconds", log=True)
    plots.save(made, path)
