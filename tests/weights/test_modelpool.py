"""Weights in, weights out: fencing, memory, disk, and the wire."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl_agents.checkpoint.policy import unpack_policy
from rlctl_agents.roles.modelpool import NOTICE_AGAIN_S, SERVE_S, ModelServer
from rlctl_agents.runtime.metrics import Metrics
from rlctl_agents.runtime.process import serve
from rlctl_agents.types.control import GetModel, GotModel, KeepModel, KeepReply, PutModel, Reply
from rlctl_agents.types.experience import ModelRef
from rlctl_agents.weights import disk_store
from rlctl_agents.weights.client import Model
from rlctl_agents.weights.memory_store import PINNED, VERSIONS, LiveModels, RefusedModel
from rlctl_agents.wire.notice import NoticePublisher, NoticeSubscriber
from rlctl_agents.wire.rpc.bulk import BulkClient
from rlctl_agents.wire.rpc.client import RemoteError, RpcClient
from rlctl_agents.wire.rpc.server import LARGE_BYTES, RpcServer
from rlctl_agents.wire.sockets import Wire
from tests.manager.world import Time, described, ref
from tests.support.chain import opened_wire, private_folder
from tests.support.fakes import wait_until
from tests.support.power import Disk


def weights(version: int, size: int = 100) -> bytes:
    return version.to_bytes(4, "little") * (size // 4)


class World:
    """A pool with its notices written down."""

    def __init__(self, folder: Path, budget_bytes: int = 10**7) -> None:
        self.folder, self.budget_bytes, self.boots = folder, budget_bytes, 0
        self.time = Time()
        self.start()

    def start(self) -> None:
        self.boots += 1
        self.notices: list[ModelRef] = []
        self.metrics = Metrics()
        self.pool = ModelServer(
            self.folder, f"pool{self.boots}", budget_bytes=self.budget_bytes, publish=self.notices.append,
            metrics=self.metrics, clock=self.time,
        )  # fmt: skip

    def put(self, version: int, lineage: int = 1, *, term: int = 1, sha256: str = "", data: bytes = b"") -> Reply:
        data = data or weights(version)
        digest = sha256 or hashlib.sha256(data).hexdigest()
        said, _ = self.pool.put(PutModel(ref(version, lineage), term, digest), [memoryview(data)])
        return said

    def keep(self, version: int, data: bytes = b"") -> KeepReply:
        digest = hashlib.sha256(weights(version)).hexdigest()
        asked = KeepModel(ref(version), digest, described(ref(version)))
        return self.pool.keep(asked, [memoryview(data or weights(version))])[0]

    def get(
        self, have: ModelRef | None = None, version: int | None = None, lineage: int = 0
    ) -> tuple[GotModel, list[bytes]]:
        return self.pool.get(GetModel("main", have, version, lineage), [])


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_the_newest_weights_are_handed_out_to_who_has_older_ones(world: World) -> None:
    assert world.get()[0].state == "missing"
    assert world.put(7).ok
    got, (data,) = world.get()
    assert (got.state, got.ref, got.pool, data) == ("new", ref(7), "pool1", weights(7))
    assert got.sha256 == hashlib.sha256(weights(7)).hexdigest()
    assert world.get(have=ref(7)) == (GotModel("not_modified", "pool1", ref(7), got.sha256), [])
    assert world.get(have=ref(6))[0].state == "new"


def test_everybody_gets_the_same_object(world: World) -> None:
    world.put(7)
    assert world.get()[1][0].obj is world.get(have=ref(3))[1][0].obj


def test_nobody_goes_back_to_an_older_lineage(world: World) -> None:
    world.put(7, lineage=2)
    assert world.get(have=ref(500, lineage=1))[0].state == "new"
    assert world.get(have=ref(1, lineage=3))[0].state == "not_modified"


def test_a_version_can_be_had_exactly_while_it_is_among_the_newest(world: World) -> None:
    for version in range(VERSIONS + 4):
        world.put(version)
    assert world.get(version=3)[0].state == "missing"
    got, (data,) = world.get(version=4)
    assert (got.ref, data) == (ref(4), weights(4))
    assert world.get(version=999)[0].state == "missing"


def test_what_was_told_to_the_manager_stays_longer(world: World) -> None:
    world.put(0)
    assert world.pool.announced() == ref(0)
    for version in range(1, 100):
        world.put(version)
    assert world.get(version=0)[0].state == "new"
    assert world.get(version=1)[0].state == "missing"
    for version in range(100, 200):
        world.put(version)
        world.pool.announced()
    assert world.get(version=0)[0].state == "missing"
    assert world.get(version=199 - PINNED)[0].state == "new"


@pytest.mark.parametrize(
    ("version", "lineage", "term", "reason"),
    [(6, 2, 3, "version"), (900, 1, 3, "lineage"), (8, 2, 2, "term"), (900, 3, 2, "term")],
)
def test_older_models_are_refused_and_counted(world: World, version: int, lineage: int, term: int, reason: str) -> None:
    assert world.put(7, 2, term=3).ok
    said = world.put(version, lineage, term=term)
    assert not said.ok
    assert said.why
    assert world.metrics.values().counters[f"rejected.{reason}"] == 1
    assert world.get()[0].ref == ref(7, 2)
    assert world.notices == [ref(7, 2)]


def test_the_same_put_again_is_fine_and_other_weights_under_its_name_are_not(world: World) -> None:
    assert world.put(7).ok
    assert world.put(7).ok
    assert not world.put(7, data=b"other weights").ok


def test_weights_that_are_not_what_the_checksum_says_are_refused(world: World) -> None:
    assert not world.put(7, sha256="0" * 64).ok
    assert world.get()[0].state == "missing"
    assert world.metrics.values().counters["rejected.checksum"] == 1


def test_a_put_without_weights_or_of_no_policy_is_refused(world: World) -> None:
    assert not world.pool.put(PutModel(ref(1), 1, ""), [])[0].ok
    evil = PutModel(ModelRef("../main", 1, 1), 1, hashlib.sha256(b"x").hexdigest())
    assert not world.pool.put(evil, [memoryview(b"x")])[0].ok
    assert world.metrics.values().counters["rejected.malformed"] == 2


def test_a_new_lineage_replaces_the_old_one(world: World) -> None:
    for version in range(5):
        world.put(version)
    assert world.put(2, lineage=2).ok
    assert world.get(version=4)[0].state == "missing"
    assert world.get(version=2)[1] == [weights(2)]


def test_the_weights_of_the_pool_do_not_change_with_the_senders_buffer(world: World) -> None:
    data = bytearray(weights(7))
    digest = hashlib.sha256(data).hexdigest()
    world.pool.put(PutModel(ref(7), 1, digest), [memoryview(data)])
    data[:] = bytes(len(data))
    assert world.get()[1] == [weights(7)]


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 30), st.integers(1, 400)), max_size=60))
def test_memory_is_bounded_and_the_newest_is_never_given_up(puts: list[tuple[int, int, int]]) -> None:
    live = LiveModels(budget_bytes=1000)
    newest: ModelRef | None = None
    for lineage, version, size in puts:
        data, name = bytes(size), ref(version, lineage)
        try:
            live.put(name, 1, hashlib.sha256(data).hexdigest(), data)
        except RefusedModel:
            assert newest is not None
            assert name <= newest
        else:
            newest = max(name, newest or name)
        live.pin(name)
        assert live.bytes <= 1000
        model = live.newest("main")
        assert (model.ref if model is not None else None) == newest


def test_one_model_larger_than_the_budget_is_served_all_the_same(tmp_path: Path) -> None:
    world = World(tmp_path, budget_bytes=10)
    world.put(1)
    world.put(2)
    assert world.get()[0].ref == ref(2)
    assert world.get(version=1)[0].state == "missing"


def test_only_answers_that_bring_many_weights_wait_for_a_turn(world: World) -> None:
    assert not world.pool.large(GetModel("main")), "nothing is there"
    world.put(1, data=bytes(LARGE_BYTES + 1))
    world.put(2, data=bytes(LARGE_BYTES + 1))
    world.put(3)
    world.put(4, data=bytes(LARGE_BYTES + 1))
    assert world.pool.large(GetModel("main"))
    assert world.pool.large(GetModel("main", ref(3)))
    assert not world.pool.large(GetModel("main", ref(4)))
    assert world.pool.large(GetModel("main", version=4))
    assert not world.pool.large(GetModel("main", version=9)), "it has not got it"


def test_a_new_version_is_announced_and_again_for_who_came_late(world: World) -> None:
    world.put(1)
    world.put(2)
    assert world.notices == [ref(1), ref(2)]
    world.pool.turn()
    world.time.now += NOTICE_AGAIN_S
    world.pool.turn()
    world.pool.turn()
    assert world.notices == [ref(1), ref(2), ref(2)]


def test_a_kept_model_can_be_had_by_lineage_and_version_with_its_description_in_every_life_of_the_pool(
    world: World,
) -> None:
    assert world.put(7).ok
    file = world.keep(7).file
    names = sorted(path.name for path in world.folder.iterdir())
    assert names == [file, file.replace(".json", ".safetensors")]
    policy = unpack_policy((world.folder / file).read_bytes())
    assert (policy.ref, policy.tensors, policy.sha256) == (ref(7), names[1], hashlib.sha256(weights(7)).hexdigest())
    assert (world.folder / policy.tensors).read_bytes() == weights(7)
    world.start()
    assert world.get()[0].state == "missing", "it is not what the run is at: nobody follows it"
    world.put(3, lineage=2)
    got, data = world.get(version=7, lineage=1)
    assert (got.ref, data, unpack_policy(got.policy).ref) == (ref(7), [weights(7)], ref(7))
    assert world.get(version=7)[0].state == "missing", "the live lineage has no such version"
    assert world.get(version=7, lineage=2)[0].state == "missing"


def test_what_is_kept_already_is_kept_again_and_what_was_removed_is_written_anew(world: World) -> None:
    first = world.keep(7).file
    before = (world.folder / first).stat().st_ino
    assert world.keep(7).file == first
    assert (world.folder / first).stat().st_ino == before
    (world.folder / first).unlink()
    assert world.keep(7).file == first
    assert world.get(version=7, lineage=1)[1] == [weights(7)]


def test_a_description_goes_with_a_live_version_to_who_names_its_lineage(world: World) -> None:
    data = weights(7)
    put = PutModel(ref(7), 1, hashlib.sha256(data).hexdigest(), b"described")
    assert world.pool.put(put, [memoryview(data)])[0].ok
    assert world.get(version=7, lineage=1)[0].policy == b"described"
    assert world.get()[0].policy == b"", "actors need none"


def test_a_damaged_kept_model_is_not_served(world: World) -> None:
    world.keep(7)
    (file,) = world.folder.glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert world.get(version=7, lineage=1)[0].state == "missing"
    (policy,) = world.folder.glob("*.json")
    policy.write_text("{")
    assert world.get(version=7, lineage=1)[0].state == "missing"
    assert file.exists(), "nothing is removed"


def test_a_large_kept_model_waits_for_a_turn_and_is_not_read_for_that(world: World) -> None:
    data = bytes(LARGE_BYTES + 1)
    digest = hashlib.sha256(data).hexdigest()
    assert world.pool.keep(KeepModel(ref(7), digest, described(ref(7))), [memoryview(data)])[0].file
    world.keep(8)
    (file,) = world.folder.glob("main-l0001-v000000000007-*.safetensors")
    file.write_bytes(data[1:] + b"?")  # what is read is found to be damaged, and not sent
    assert world.pool.large(GetModel("main", version=7, lineage=1)), "nothing is live"
    world.put(3, lineage=2)
    assert world.pool.large(GetModel("main", version=7, lineage=1))
    assert not world.pool.large(GetModel("main", version=8, lineage=1))
    assert not world.pool.large(GetModel("main", version=9, lineage=1)), "it has not got it"
    assert not world.pool.large(GetModel("main", version=7)), "the live lineage has no such version"


def test_the_kept_model_that_was_read_last_is_read_once_as_long_as_live_ones_leave_room(tmp_path: Path) -> None:
    world = World(tmp_path, budget_bytes=300)
    world.keep(7)
    (first,) = world.get(version=7, lineage=1)[1]
    (file,) = world.folder.glob("*.safetensors")
    file.unlink()
    assert world.put(1, lineage=2).ok
    assert world.put(2, lineage=2).ok
    (again,) = world.get(version=7, lineage=1)[1]
    assert again.obj is first.obj
    assert world.put(3, lineage=2).ok
    assert world.get(version=7, lineage=1)[0].state == "missing", "300 bytes are live"
    assert world.get(version=1)[0].state == "new"


def test_a_volume_that_fails_costs_no_live_weights(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def stale(*_: object) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    world.keep(7)
    world.put(3, lineage=2)
    monkeypatch.setattr(os, "scandir", stale)
    asked = GetModel("main", version=7, lineage=1)
    assert not world.pool.large(asked)
    assert world.pool.get(asked, [])[0].state == "missing"
    assert world.get()[0].ref == ref(3, lineage=2)


def test_a_request_that_makes_a_handler_fail_does_not_end_the_pool(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("a defect")

    with opened_wire() as wire, private_folder() as folder:
        server = RpcServer(wire, f"ipc://{folder}/rpc", "pool", {GetModel: fail})  # type: ignore[dict-item]
        client = BulkClient(wire, server.address, "actor")
        client.ask(GetModel("main"))

        def refused() -> bool:
            serve(server, SERVE_S)
            try:
                client.answer(GotModel, 0.0)
            except TimeoutError:
                return False
            except RemoteError as error:
                return "KeyError" in str(error)
            return False

        with caplog.at_level(logging.ERROR):
            wait_until(refused, "the answer")
    assert "a request failed: KeyError: 'a defect'" in caplog.text


def test_why_a_model_cannot_be_kept_is_said(world: World) -> None:
    assert "do not have sha256" in world.keep(7, data=b"others").why
    evil = KeepModel(ModelRef("../x", 1, 1), hashlib.sha256(b"x").hexdigest(), described(ref(1)))
    assert "not the name of a policy" in world.pool.keep(evil, [memoryview(b"x")])[0].why
    plain = KeepModel(ref(1), hashlib.sha256(b"x").hexdigest(), b"nothing")
    assert "describe no policy" in world.pool.keep(plain, [memoryview(b"x")])[0].why
    world.folder.rename(world.folder.with_name("away"))
    assert "No such file" in world.keep(7).why
    assert world.metrics.values().counters["rejected.disk"] == 4


def test_no_description_is_on_the_disk_without_its_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    disk, data, seen = Disk(folder, monkeypatch), weights(7), []
    fsync = os.fsync

    def cut(handle: int) -> None:
        fsync(handle)
        there = disk.lose_power(tmp_path / "lost")
        for path in there.glob("main-*.json"):
            seen.append(path.name)
            assert (there / unpack_policy(path.read_bytes()).tensors).read_bytes() == data

    monkeypatch.setattr(os, "fsync", cut)
    file = disk_store.keep(folder, Model(ref(7), hashlib.sha256(data).hexdigest(), data, described(ref(7))))
    assert seen == [file], "it is there at the last sync"


def test_models_travel_over_the_wire(tmp_path: Path) -> None:
    import threading

    with tempfile.TemporaryDirectory(prefix="rlctl-", dir="/tmp") as folder:
        wire = Wire()
        notices = NoticePublisher(wire, f"ipc://{folder}/notice")
        pool = ModelServer(tmp_path, "pool", budget_bytes=10**8, publish=notices.publish, metrics=Metrics())
        server = RpcServer(wire, f"ipc://{folder}/rpc", "pool", {PutModel: pool.put, GetModel: pool.get})
        stop = threading.Event()

        def serve() -> None:
            while not stop.is_set():
                server.serve(0.01)
                pool.turn()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            heard = NoticeSubscriber(wire, notices.address, "main")
            client = RpcClient(wire, server.address, "learner")
            data = bytes(range(256)) * 20_000  # 5 MB
            put = PutModel(ref(7), 1, hashlib.sha256(data).hexdigest())
            assert client.call(put, Reply, [data], deadline_s=60)[0].ok
            got, pieces = client.call(GetModel("main"), GotModel, deadline_s=60)
            assert got.ref == ref(7)
            assert hashlib.sha256(b"".join(pieces)).hexdigest() == got.sha256
            again, buffers = client.call(GetModel("main", have=ref(7)), GotModel, deadline_s=60)
            assert (again.state, buffers) == ("not_modified", [])
            newest = None
            for _ in range(400):
                newest = newest or heard.latest()
                stop.wait(0.01) if newest is None else None
            assert newest == ref(7)
        finally:
            stop.set()
            thread.join()
            wire.close()
