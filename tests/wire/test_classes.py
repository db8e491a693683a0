"""Requests that an actor's key may not make, however well it speaks the protocol."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rlctl_agents.types.control import (
    Commit,
    Contribute,
    Enlist,
    EvalResult,
    GetModel,
    GotModel,
    Hello,
    Note,
    PutModel,
    Reply,
    Report,
)
from rlctl_agents.types.experience import ModelRef
from rlctl_agents.wire.classes import ALL, MANAGER, MODELPOOL, Classes, refusal
from rlctl_agents.wire.codec import PROTOCOL
from rlctl_agents.wire.rpc.client import Call, RemoteError, RpcClient
from rlctl_agents.wire.rpc.server import Caller, RpcServer
from rlctl_agents.wire.sockets import Wire
from tests.wire.keyring import Keyring

REF = ModelRef("main", 0, 1)
Handlers = Mapping[type[msgspec.Struct], Callable[..., tuple[msgspec.Struct, Sequence[bytes]]]]


class Pool:
    """A modelpool and a manager in one, which remember what they were asked."""

    def __init__(self) -> None:
        self.asked: list[msgspec.Struct] = []

    def put(self, request: PutModel, buffers: Sequence[memoryview]) -> tuple[Reply, Sequence[bytes]]:
        self.asked.append(request)
        return Reply(True), ()

    def get(self, request: GetModel, buffers: Sequence[memoryview]) -> tuple[GotModel, Sequence[bytes]]:
        self.asked.append(request)
        return GotModel("missing", "pool"), ()

    def say(self, request: Any, buffers: Sequence[memoryview]) -> tuple[Reply, Sequence[bytes]]:
        self.asked.append(request)
        return Reply(True), ()


@contextmanager
def serving(ring: Keyring, handlers: Handlers, classes: Classes | None) -> Iterator[RpcServer]:
    stop, wire = threading.Event(), Wire.of(ring.of("core"))
    server = RpcServer(wire, "tcp://127.0.0.1:*", "server", handlers, classes)

    def loop() -> None:
        while not stop.is_set():
            server.serve(0.02)

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield server
    finally:
        stop.set()
        thread.join()
        wire.close()


@contextmanager
def client(ring: Keyring, role: str, server: RpcServer) -> Iterator[RpcClient]:
    wire = Wire.of(ring.of(role))
    try:
        yield RpcClient(wire, server.address, role)
    finally:
        wire.close()


@pytest.fixture
def ring(tmp_path: Path) -> Keyring:
    return Keyring(tmp_path)


def test_an_actor_that_publishes_weights_is_refused_and_counted_and_may_still_pull(
    ring: Keyring, caplog: pytest.LogCaptureFixture
) -> None:
    pool = Pool()
    with (
        caplog.at_level(logging.WARNING),
        serving(ring, {PutModel: pool.put, GetModel: pool.get}, MODELPOOL) as server,
        client(ring, "actor", server) as actor,
    ):
        for _ in range(3):
            with pytest.raises(RemoteError, match="PutModel may not be asked with the key of class actor"):
                actor.call(PutModel(REF, 1, "0" * 64), Reply, [b"weights"], deadline_s=60.0)
        assert actor.call(GetModel("main"), GotModel, deadline_s=60.0)[0].state == "missing"
    assert server.rejected == {"forbidden": 3}
    assert [type(one) for one in pool.asked] == [GetModel]
    logged = [line for line in caplog.messages if "forbidden" in line]
    assert logged == [
        "request from 127.0.0.1 refused (forbidden, 1 so far): PutModel may not be asked with the key of class actor"
    ]


@pytest.mark.parametrize("role", ["core", "evaluator"])
def test_whoever_holds_the_core_key_may_do_everything(ring: Keyring, role: str) -> None:
    pool = Pool()
    with (
        serving(ring, {PutModel: pool.put, Hello: pool.say}, {**MODELPOOL, **MANAGER}) as server,
        client(ring, role, server) as core,
    ):
        core.call(PutModel(REF, 1, "0" * 64), Reply, [b"weights"], deadline_s=60.0)
        core.call(Hello("learner", "a7"), Reply, deadline_s=60.0)
    assert server.rejected == {}
    assert len(pool.asked) == 2


def test_an_actors_key_speaks_for_actors_only(ring: Keyring) -> None:
    pool = Pool()
    with serving(ring, {Hello: pool.say, Report: pool.say}, MANAGER) as server, client(ring, "actor", server) as actor:
        for request in (Hello("learner", "a7"), Hello("evaluator", "a7"), Report("learner", "a7", 1)):
            with pytest.raises(
                RemoteError, match=f"{type(request).__name__} as '(learner|evaluator)' may not be asked"
            ):
                actor.call(request, Reply, deadline_s=60.0)
        actor.call(Hello("actor", "a7"), Reply, deadline_s=60.0)
        actor.call(Report("actor", "a7", 1), Reply, deadline_s=60.0)
    assert server.rejected == {"forbidden": 3}
    assert pool.asked == [Hello("actor", "a7"), Report("actor", "a7", 1)]


def test_what_ends_a_run_or_commits_a_generation_needs_the_core_key() -> None:
    for kind in (Commit, Contribute, Enlist, EvalResult, Note):
        assert refusal(MANAGER, "actor", kind, None)
        assert not refusal(MANAGER, "core", kind, None)


def test_a_server_that_names_no_classes_answers_core_processes_only(ring: Keyring) -> None:
    pool = Pool()
    with serving(ring, {GetModel: pool.get}, None) as server:
        with client(ring, "actor", server) as actor, pytest.raises(RemoteError, match="may not be asked"):
            actor.call(GetModel("main"), GotModel, deadline_s=60.0)
        with client(ring, "core", server) as core:
            core.call(GetModel("main"), GotModel, deadline_s=60.0)
    assert server.rejected == {"forbidden": 1}


def test_a_message_without_a_class_may_do_nothing_where_classes_are_known() -> None:
    assert (
        refusal({GetModel: ALL}, "", GetModel, GetModel("main")) == "GetModel may not be asked with no key of the run"
    )


def test_without_keys_nobody_is_asked_for_a_class(wire: Wire, address: str) -> None:
    pool = Pool()
    server = RpcServer(wire, address, "server", {PutModel: pool.put}, MODELPOOL)
    other = RpcClient(wire, address, "client")
    thread = threading.Thread(target=lambda: server.serve(5.0))
    thread.start()
    assert other.call(PutModel(REF, 1, "0" * 64), Reply, deadline_s=60.0)[0] == Reply(True)
    thread.join()


def test_an_answer_remembered_for_a_core_process_is_not_given_to_an_actor_of_the_same_name(
    wire: Wire, address: str
) -> None:
    pool = Pool()
    server = RpcServer(wire, address, "server", {GetModel: pool.get}, MODELPOOL)
    call = Call(PROTOCOL, "client", 7, "GetModel", msgspec.Raw(msgspec.msgpack.encode(GetModel("main"))))
    earlier = msgspec.structs.replace(call, id=3)
    for whose, each in (("core", call), ("core", call), ("actor", earlier), ("actor", call)):
        server._answer(b"nobody", each, [], Caller(whose, "10.0.0.1"))
    assert len(pool.asked) == 3  # the core process's repetition only came from memory
