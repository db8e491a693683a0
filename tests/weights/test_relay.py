"""Modelpools below the first one: they follow the pool above, keep what they have, and never go back."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

from rlctl.spec.layout import Layout
from rlctl.spec.roles import FAN_OUT
from rlctl.spec.schema import Spec
from rlctl_agents.roles import modelpool
from rlctl_agents.runtime.addresses import Addresses
from rlctl_agents.runtime.metrics import Metrics
from rlctl_agents.runtime.process import Process
from rlctl_agents.types.control import (
    Channels,
    GetModel,
    GotModel,
    Hello,
    KeepModel,
    KeepReply,
    Lease,
    Orders,
    PutModel,
    Reply,
    Report,
)
from rlctl_agents.types.experience import ModelRef
from rlctl_agents.weights import client
from rlctl_agents.weights.memory_store import PINNED, VERSIONS
from rlctl_agents.weights.relay import Relay
from rlctl_agents.wire.classes import MODELPOOL
from rlctl_agents.wire.notice import NoticePublisher, NoticeSubscriber
from rlctl_agents.wire.rpc.client import RemoteError, RpcClient
from rlctl_agents.wire.rpc.server import RpcServer
from rlctl_agents.wire.sockets import Wire
from tests.manager.world import Time, described, ref, spec
from tests.support.chain import opened_wire, private_folder
from tests.support.fakes import Manager, Pool, Served, process_of, running, wait_until
from tests.wire.keyring import Keyring

SPEC = spec()
BELOW = FAN_OUT + 1
"""The first pool that takes its weights from number 1."""


class Tree(Manager):
    """A manager that names peers to each pool as the real one does."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.index = None
        self.addresses = Addresses(f"ipc://{folder}/{{role}}-{{index}}.{{channel}}", Time())
        self.above: Channels | None = None  # named to all pools instead
        self.index_of: dict[str, int] = {}  # by boot

    def _hello(self, hello: Hello, buffers: Sequence[memoryview]) -> tuple[Lease, Sequence[memoryview]]:
        lease, out = super()._hello(hello, buffers)
        self.index_of[hello.boot] = lease.index
        self.addresses.alive([("modelpool", index) for index in range(BELOW + 1)])
        bind = self.addresses.bind(hello.role, lease.index)
        return replace(lease, bind=bind, peers=self._peers_of(hello.role, lease.index)), out

    def _report(self, report: Report, buffers: Sequence[memoryview]) -> tuple[Orders, Sequence[memoryview]]:
        orders, out = super()._report(report, buffers)
        return replace(orders, peers=self._peers_of(report.role, self.index_of[report.boot])), out

    def _peers_of(self, role: str, index: int) -> dict[str, Channels]:
        return self.addresses.peers(role, index) if self.above is None else {"modelpool/0": self.above}


class World:
    """Modelpools of the product, each in a thread of its own, and the clients that bring and fetch weights."""

    def __init__(self, folder: Path, wire: Wire, stack: ExitStack) -> None:
        self.folder, self.wire, self._stack = folder, wire, stack
        self.manager = stack.enter_context(Tree(folder))
        self.processes: dict[int, Process] = {}
        self._lives: dict[int, AbstractContextManager[list[BaseException]]] = {}
        self._clients: dict[int, RpcClient] = {}

    def start(self, *indexes: int, settings: Spec = SPEC) -> None:
        for index in indexes:
            process = process_of("modelpool", self.manager, settings, name=f"modelpool-{index}", volume=self.folder)
            life = running(modelpool.main, process)
            life.__enter__()
            self.processes[index], self._lives[index] = process, life
            self._stack.callback(self.end, index)

    def end(self, index: int) -> None:
        life = self._lives.pop(index, None)
        if life is not None:
            life.__exit__(None, None, None)

    def put(self, version: int, lineage: int = 1, *, policy: str = "main", at: int = 0) -> Reply:
        data = weights(version, lineage, policy)
        put = PutModel(ModelRef(policy, lineage, version), 1, hashlib.sha256(data).hexdigest())
        return self._client(at).call(put, Reply, [data], deadline_s=60)[0]

    def get(
        self, at: int, policy: str = "main", version: int | None = None, lineage: int = 0
    ) -> tuple[ModelRef | None, bytes]:
        asked = GetModel(policy, version=version, lineage=lineage)
        got, buffers = self._client(at).call(asked, GotModel, deadline_s=60)
        if not buffers:
            return None, b""
        assert hashlib.sha256(buffers[0]).hexdigest() == got.sha256
        return got.ref, bytes(buffers[0])

    def ask(self, at: int, request: KeepModel, reply: type[KeepReply], buffers: list[bytes]) -> KeepReply:
        return self._client(at).call(request, reply, buffers, deadline_s=60)[0]

    def reaches(self, at: int, version: int, lineage: int = 1, policy: str = "main") -> None:
        wanted = ModelRef(policy, lineage, version), weights(version, lineage, policy)
        wait_until(lambda: self.get(at, policy) == wanted, f"version {version} at modelpool {at}")

    def counted(self, at: int, name: str) -> float:
        return self.processes[at].metrics.values().counters.get(name, 0.0)

    def _client(self, at: int) -> RpcClient:
        if at not in self._clients:
            address = self.manager.addresses.bind("modelpool", at)["rpc"]
            self._clients[at] = RpcClient(self.wire, address, "test")
        return self._clients[at]


def weights(version: int, lineage: int = 1, policy: str = "main") -> bytes:
    return f"{policy} {lineage} {version} ".encode() * 1000


@pytest.fixture
def world() -> Iterator[World]:
    with private_folder() as folder, opened_wire() as wire, ExitStack() as stack:
        Layout(folder).make()
        yield World(folder, wire, stack)


def test_what_is_put_into_the_first_pool_reaches_the_last_one_byte_for_byte_and_is_announced(world: World) -> None:
    world.start(0, 1, BELOW)
    heard = NoticeSubscriber(world.wire, world.manager.addresses.bind("modelpool", BELOW)["notice"], "main")
    world.put(1)
    world.reaches(BELOW, 1)
    world.put(2)
    world.reaches(1, 2)
    world.reaches(BELOW, 2)
    wait_until(lambda: heard.latest() == ref(2), "its notice")
    assert world.processes[BELOW].pulse.ready
    assert world.counted(1, "puts") == 2
    assert world.counted(0, "pulls") == 2, "only the pool right below asks, and once for each"


def test_the_manager_hears_what_each_pool_holds(world: World) -> None:
    world.start(0, 1)
    world.put(7)
    told: dict[int, ModelRef | None] = {}

    def everybody_holds_it() -> bool:
        indexes = world.manager.index_of
        told.update({indexes[one.boot]: one.model for one in world.manager.reports[-4:]})
        return told == {0: ref(7), 1: ref(7)}

    wait_until(everybody_holds_it, "reports")


def test_learners_bring_weights_to_the_first_pool_alone(world: World) -> None:
    world.start(1)
    with pytest.raises(RemoteError, match="PutModel is no request"):
        world.put(1, at=1)


def test_a_relay_that_is_started_anew_gets_the_newest_at_once(world: World) -> None:
    world.start(0, 1)
    world.put(5)
    world.reaches(1, 5)
    world.end(1)
    world.start(1)
    world.reaches(1, 5)


def test_while_the_pool_above_is_gone_a_relay_serves_what_it_has_and_then_goes_on(world: World) -> None:
    world.start(0, 1, BELOW)
    world.put(5)
    world.reaches(BELOW, 5)
    world.end(0)
    world.end(1)
    assert world.get(BELOW) == (ref(5), weights(5))
    world.start(1)  # it has nothing, nor has anybody above it
    wait_until(lambda: world.get(1) == (None, b""), "an empty pool")
    assert not world.processes[1].pulse.ready
    assert world.get(BELOW) == (ref(5), weights(5))
    world.start(0)
    world.put(6)
    world.reaches(BELOW, 6)


def test_a_relay_never_goes_back_unless_the_lineage_is_newer(world: World) -> None:
    world.start(0, 1)
    world.put(100, lineage=2)
    world.reaches(1, 100, lineage=2)
    world.end(0)
    world.start(0)
    asked = world.counted(0, "pulls")
    world.put(900, lineage=1)  # a learner that has not heard of its restore, and a pool that forgot
    wait_until(lambda: world.processes[0].pulse.ready, "the pool above")
    world.put(3, lineage=3)
    world.reaches(1, 3, lineage=3)
    assert world.counted(1, "puts") == 2, "what was older was never taken"
    assert world.counted(0, "pulls") - asked == 1


def test_a_relay_follows_every_policy_of_the_run(world: World) -> None:
    settings = spec(policies={"main": {}, "other": {}})
    world.start(0, 1, settings=settings)
    world.put(1)
    world.put(8, policy="other")
    world.reaches(1, 1)
    world.reaches(1, 8, policy="other")
    world.put(9, policy="other")
    world.reaches(1, 9, policy="other")
    assert world.get(1) == (ref(1), weights(1))


def test_what_the_first_pool_keeps_for_good_can_be_had_from_a_relay(world: World) -> None:
    world.start(0, 1)
    world.put(1)
    data = weights(1)
    kept = KeepModel(ref(1), hashlib.sha256(data).hexdigest(), described(ref(1)))
    assert world.ask(0, kept, KeepReply, [data]).file
    last = 3 * (VERSIONS + PINNED)
    for version in range(2, last + 1):
        world.put(version)
    world.reaches(1, last)
    assert world.get(1, version=1, lineage=1) == (ref(1), weights(1))
    # which others stay depends on what the relay was in time for, and on what either pool told the manager of
    stay = [version for version in range(2, last + 1) if world.get(1, version=version)[0]]
    assert len(stay) <= 2 * (VERSIONS + PINNED), "the others go"


def test_a_relay_goes_to_another_pool_when_the_manager_names_one(world: World) -> None:
    world.start(0, 1, BELOW)
    world.put(1)
    world.reaches(BELOW, 1)
    world.end(1)
    world.manager.above = world.manager.addresses.bind("modelpool", 0)
    world.put(2)
    world.reaches(BELOW, 2)


def test_a_relay_leaves_a_pool_that_never_answers_as_soon_as_the_manager_names_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "PULL_S", 60.0)
    asked, gate, taken = threading.Event(), threading.Event(), list[client.Model]()

    def never(get: GetModel, buffers: object) -> tuple[GotModel, list[bytes]]:
        asked.set()
        gate.wait(60.0)
        return GotModel("missing", "deaf"), []

    with private_folder() as folder, opened_wire() as wire, Pool(folder) as other, ExitStack() as stack:
        other.models[ref(1)] = hashlib.sha256(weights(1)).hexdigest(), weights(1)
        other.newest = ref(1)
        deaf = Served(f"ipc://{folder}/deaf", "deaf", {GetModel: never})
        deaf.start()
        stack.callback(deaf.close)
        stack.callback(gate.set)
        above: dict[int, Channels] = {0: {"rpc": f"ipc://{folder}/deaf", "notice": f"ipc://{folder}/notice"}}
        relay = Relay(wire, "test", "main", above=lambda: dict(above), take=taken.append)
        relay.start()
        stack.callback(relay.close)
        assert asked.wait(60.0)
        above[0] = {"rpc": f"ipc://{folder}/pool", "notice": f"ipc://{folder}/notice"}
        wait_until(lambda: bool(taken), "the weights of the other", 20.0)


def test_weights_that_are_damaged_on_the_way_are_not_served_and_asked_for_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "POLL_S", (0.05, 0.1))
    with Pool(world.folder) as above:
        world.manager.above = {"rpc": f"ipc://{world.folder}/pool", "notice": f"ipc://{world.folder}/notice"}
        world.start(1)
        above.models[ref(1)] = hashlib.sha256(weights(1)).hexdigest(), b"something else"
        above.newest = ref(1)
        wait_until(lambda: world.counted(1, "rejected.checksum") >= 2, "a second try")
        assert world.get(1) == (None, b"")
        above.models[ref(1)] = hashlib.sha256(weights(1)).hexdigest(), weights(1)
        world.reaches(1, 1)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_modelpool_does_not_go_on_when_nobody_follows_any_more() -> None:
    def fails(model: client.Model) -> None:
        raise OSError("a fault of ours")

    with private_folder() as folder, opened_wire() as wire, Pool(folder) as above:
        at = {"rpc": f"ipc://{folder}/pool", "notice": f"ipc://{folder}/notice"}
        above.models[ref(1)] = hashlib.sha256(weights(1)).hexdigest(), weights(1)
        above.newest = ref(1)
        relay = Relay(wire, "test", "main", above=lambda: {0: at}, take=fails)
        relay.start()

        def ended() -> bool:
            try:
                relay.require_life()
            except RuntimeError as error:
                return str(error) == "main is not followed any more"
            return False

        wait_until(ended, "its end")


def test_a_relay_takes_weights_with_the_keys_that_a_modelpool_has(tmp_path: Path) -> None:
    ring, taken, stop = Keyring(tmp_path), list[client.Model](), threading.Event()
    with ExitStack() as stack:
        above, below = (Wire.of(ring.of("core"), "127.0.0.1") for _ in range(2))
        stack.callback(below.close)
        stack.callback(above.close)
        notices = NoticePublisher(above, "tcp://127.0.0.1:*")
        pool = modelpool.ModelServer(tmp_path, "above", budget_bytes=10**6, publish=notices.publish, metrics=Metrics())
        server = RpcServer(above, "tcp://127.0.0.1:*", "above", {GetModel: pool.get}, MODELPOOL)

        def serve() -> None:
            while not stop.is_set():
                server.serve(0.02)
                pool.turn()

        thread = threading.Thread(target=serve)
        thread.start()
        stack.callback(thread.join)
        stack.callback(stop.set)
        at = {"rpc": server.address, "notice": notices.address}
        relay = Relay(below, "below", "main", above=lambda: {0: at}, take=taken.append)
        relay.start()
        stack.callback(relay.close)
        data = weights(1)
        pool.put(PutModel(ref(1), 1, hashlib.sha256(data).hexdigest()), [memoryview(data)])
        wait_until(lambda: bool(taken), "the weights")
        assert [(one.ref, bytes(one.data)) for one in taken] == [(ref(1), data)]
