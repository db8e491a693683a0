"""Weights that take far longer on their way than any process stands still for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlctl_agents.models.weights import digest
from rlctl_agents.roles import modelpool
from rlctl_agents.runtime.metrics import Metrics
from rlctl_agents.types.control import GetModel, PutModel
from rlctl_agents.types.experience import ModelRef
from rlctl_agents.weights import client
from rlctl_agents.weights.client import Follower, Model
from rlctl_agents.weights.publisher import Publisher
from rlctl_agents.wire.rpc.server import RpcServer
from rlctl_agents.wire.sockets import Wire
from tests.support.chain import opened_wire, private_folder
from tests.support.fakes import wait_until
from tests.wire.throttle import throttled

CLIENTS = 24
WEIGHTS = bytes(range(256)) * 6000
BYTES_PER_S = 10e6
"""All of them take 3.7 s."""
REF = ModelRef("main", 1, 1)


@pytest.fixture
def folder() -> Iterator[Path]:
    with private_folder() as folder:
        yield folder


class Served:
    """The product's pool, in a thread and a context of its own, behind a slow link."""

    def __init__(self, folder: Path) -> None:
        self.metrics = Metrics()
        self._wire, self._stop = Wire(), threading.Event()
        self.pool = modelpool.ModelServer(
            folder / "models", "pool", budget_bytes=10**8, publish=lambda _: None, metrics=self.metrics
        )
        handlers = {GetModel: self.pool.get, PutModel: self.pool.put}
        self._server = RpcServer(self._wire, f"ipc://{folder}/far", "pool", handlers, large=self.pool.large)  # type: ignore[arg-type]
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Served:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._wire.close()

    def counted(self, name: str) -> float:
        return self.metrics.values().counters[name]

    def _run(self) -> None:
        while not self._stop.is_set():
            self._server.serve(0.02)


def test_all_who_ask_at_once_get_weights_that_take_longer_than_anybody_waits_and_each_once(folder: Path) -> None:
    with Served(folder) as served, throttled(folder / "near", folder / "far", BYTES_PER_S), opened_wire() as wire:
        served.pool.put(PutModel(REF, 1, digest(WEIGHTS)), [memoryview(WEIGHTS)])
        stop, taken = threading.Event(), list[Model]()

        def follow(number: int) -> None:
            source = client.Pool(
                wire,
                {"rpc": f"ipc://{folder}/near", "notice": f"ipc://{folder}/notice"},
                "main",
                str(number),
                lambda: not stop.is_set(),
            )
            Follower(taken.append, "main", source).wait_for_any(lambda: not stop.is_set(), stop.wait)
            source.close()

        threads = [threading.Thread(target=follow, args=(number,)) for number in range(CLIENTS)]
        for thread in threads:
            thread.start()
        try:
            wait_until(lambda: len(taken) == CLIENTS, "everybody's weights", 30.0)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert {bytes(model.data) for model in taken} == {WEIGHTS}
        assert served.counted("pulls") == CLIENTS, "nothing is sent to be thrown away"


def test_a_put_that_takes_longer_than_a_dead_pool_is_waited_for_arrives(folder: Path) -> None:
    with Served(folder) as served, throttled(folder / "near", folder / "far", 4e6), opened_wire() as wire:
        at = {0: {"rpc": f"ipc://{folder}/near"}}
        publisher = Publisher(wire, "learner", pools=lambda: at, term=lambda: 1)
        publisher.start()
        try:
            publisher.put(REF, lambda: WEIGHTS * 8)
            wait_until(lambda: publisher.newest == REF, "the put", 30.0)
        finally:
            publisher.close()
        assert served.pool.announced() == REF
        assert served.counted("puts") == 1
        found, pieces = served.pool.get(GetModel("main"), ())
        assert found.sha256 == digest(WEIGHTS * 8)
        assert len(pieces) == 47, "no frame is so large that the heartbeat cuts it off on a slow link"
