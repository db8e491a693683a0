from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

import msgspec
import pytest
import zmq

from rlctl_agents.wire.classes import ALL
from rlctl_agents.wire.codec import PROTOCOL
from rlctl_agents.wire.keys import ACTOR, CORE
from rlctl_agents.wire.rpc import bulk
from rlctl_agents.wire.rpc.bulk import PIECE_BYTES, BulkClient, in_pieces, joined
from rlctl_agents.wire.rpc.client import MAX_BUFFERS, Call, RemoteError
from rlctl_agents.wire.rpc.server import Caller, RpcServer
from rlctl_agents.wire.sockets import Wire
from tests.wire.pair import LIMIT_S, until
from tests.wire.rpc.test_calls import Add, Sum, serving

LARGE = bytes(2_000_000)


def large(request: Add, buffers: Sequence[memoryview]) -> tuple[Sum, Sequence[bytes]]:
    return Sum(request.left), [LARGE]


def test_pieces_are_the_same_bytes_again_and_none_is_too_long() -> None:
    for size in (0, 1, PIECE_BYTES, PIECE_BYTES + 1, 5 * PIECE_BYTES - 3):
        data = bytes(range(256)) * (size // 256) + bytes(size % 256)
        pieces = in_pieces(data)
        assert joined(pieces) == data
        assert max(piece.nbytes for piece in pieces) <= PIECE_BYTES


def test_there_are_never_more_pieces_than_a_message_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "PIECE_BYTES", 10)
    pieces = in_pieces(bytes(10 * MAX_BUFFERS + 50))
    assert len(pieces) <= MAX_BUFFERS
    assert joined(pieces) == bytes(10 * MAX_BUFFERS + 50)


def test_what_is_too_large_for_a_message_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "MAX_BYTES", 10)
    with pytest.raises(ValueError, match="11 bytes are more than the 10"):
        in_pieces(bytes(11))


def test_a_question_that_is_not_answered_in_time_stays_under_way_and_is_carried_out_once(
    wire: Wire, address: str
) -> None:
    asked, gate = list[int](), threading.Event()

    def slowly(request: Add, buffers: Sequence[memoryview]) -> tuple[Sum, Sequence[bytes]]:
        asked.append(request.left)
        gate.wait(LIMIT_S)
        return Sum(request.left), [LARGE]

    client = BulkClient(wire, address, "client")
    with serving(address, slowly):
        client.ask(Add(5))
        for look in range(3):
            with pytest.raises(TimeoutError, match="no answer to Add"):
                client.answer(Sum, LIMIT_S if not look else 0.0, keep_waiting=lambda: not asked)
        gate.set()
        answer, buffers = client.answer(Sum, LIMIT_S)
        assert (answer, joined(buffers)) == (Sum(5), LARGE)
    assert asked == [5]


def test_a_question_survives_the_restart_of_the_server(wire: Wire, address: str) -> None:
    asked, gate = threading.Event(), threading.Event()

    def never(request: Add, buffers: Sequence[memoryview]) -> tuple[Sum, Sequence[bytes]]:
        asked.set()
        gate.wait(LIMIT_S)
        raise ValueError("on its way out")

    client, answers = BulkClient(wire, address, "client"), list[Sum]()
    client.ask(Add(5))
    thread = threading.Thread(target=lambda: answers.append(client.answer(Sum, LIMIT_S)[0]))
    first = Wire()
    server = RpcServer(first, address, "first", {Add: never})
    serves = threading.Thread(target=lambda: server.serve(LIMIT_S))
    serves.start()
    thread.start()
    assert asked.wait(LIMIT_S)
    server._send = lambda *_: False  # type: ignore[method-assign]  # it dies before it answers
    gate.set()
    serves.join()
    first.close()
    with serving(address, large, boot="second"):
        thread.join()
    assert answers == [Sum(5)]


def test_a_question_that_is_for_one_server_alone_is_not_asked_of_the_next(wire: Wire, address: str) -> None:
    asked, gate, of_the_next = threading.Event(), threading.Event(), list[int]()

    def never(request: Add, buffers: Sequence[memoryview]) -> tuple[Sum, Sequence[bytes]]:
        asked.set()
        gate.wait(LIMIT_S)
        raise ValueError("on its way out")

    def notes(request: Add, buffers: Sequence[memoryview]) -> tuple[Sum, Sequence[bytes]]:
        of_the_next.append(request.left)
        return Sum(request.left), []

    client = BulkClient(wire, address, "client", again=False)
    client.ask(Add(5))
    first = Wire()
    server = RpcServer(first, address, "first", {Add: never})
    serves = threading.Thread(target=lambda: server.serve(LIMIT_S))
    serves.start()
    with pytest.raises(TimeoutError):
        client.answer(Sum, LIMIT_S, keep_waiting=lambda: not asked.is_set())
    assert not client.lost
    server._send = lambda *_: False  # type: ignore[method-assign]  # it dies before it answers
    gate.set()
    serves.join()
    first.close()
    with pytest.raises(TimeoutError):
        client.answer(Sum, LIMIT_S)
    assert client.lost
    with serving(address, notes, boot="second"):
        until(lambda: client.connected)
        with pytest.raises(TimeoutError):
            client.answer(Sum, 0.1)
        client.ask(Add(6))
        assert client.answer(Sum, LIMIT_S)[0] == Sum(6)
    assert of_the_next == [6]


def test_a_server_that_is_not_there_is_noticed_and_said_once_a_minute(
    wire: Wire, address: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(bulk, "AGAIN_S", 0.0)
    client, began = BulkClient(wire, address, "client"), time.monotonic()
    client.ask(Add(1))
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            with pytest.raises(TimeoutError, match="there is no connection"):
                client.answer(Sum, 0.02)
    assert not client.connected
    assert time.monotonic() - began < LIMIT_S
    assert [record.message for record in caplog.records] == [
        f"{address}: no answer to Add for 0 s: there is no connection"
    ]


def test_a_refusal_ends_the_question(wire: Wire, address: str) -> None:
    def refuse(request: Add, buffers: Sequence[memoryview]) -> tuple[Sum, Sequence[bytes]]:
        raise ValueError(f"{request.left} is too much")

    client = BulkClient(wire, address, "client")
    with serving(address, refuse):
        client.ask(Add(7))
        with pytest.raises(RemoteError, match="7 is too much"):
            client.answer(Sum, LIMIT_S)


def test_who_asks_again_over_the_same_connection_is_not_sent_the_same_twice(wire: Wire, address: str) -> None:
    made = list[int]()

    def count(request: Add, buffers: Sequence[memoryview]) -> tuple[Sum, Sequence[bytes]]:
        made.append(request.left)
        return large(request, buffers)

    body = msgspec.Raw(msgspec.msgpack.encode(Add(3)))
    call = msgspec.msgpack.encode(Call(PROTOCOL, "client", 1, "Add", body))
    with serving(address, count) as server:
        for connections in (1, 2):
            socket = wire.connect(zmq.DEALER, address)
            for _ in range(3):
                socket.send(call)
            socket.send(b"the last")
            until(lambda count=connections: sum(server.rejected.values()) == count)  # type: ignore[misc]
            assert len(made) == connections


def test_others_wait_for_their_turn_and_small_answers_do_not(wire: Wire, address: str) -> None:
    class Busy:
        done = False

    server = RpcServer(wire, address, "server", {Add: large}, large=lambda request: request == Add(1))
    trackers = [Busy() for _ in range(16)]
    for tracker in trackers:
        server._turns.began(tracker, 1)  # type: ignore[arg-type]
    waits, small = BulkClient(wire, address, "waits"), BulkClient(wire, address, "small")
    waits.ask(Add(1))
    small.ask(Add(2))

    def answered(client: BulkClient, value: int) -> bool:
        server.serve(0.0)
        try:
            return client.answer(Sum, 0.0)[0] == Sum(value)
        except TimeoutError:
            return False

    until(lambda: server._turns.waiting, lambda: answered(waits, 1))
    until(lambda: answered(small, 2))
    assert not answered(waits, 1)
    trackers[0].done = True
    until(lambda: answered(waits, 1))


def test_actors_at_one_address_are_sent_two_large_answers_at_once_and_core_processes_more(
    wire: Wire, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow:
        done = False

    server = RpcServer(wire, address, "server", {Add: large}, {Add: ALL}, large=lambda _: True)
    client = wire.connect(zmq.DEALER, address)
    client.send(b"")
    route, _ = server._socket.recv_multipart()
    began, busy = server._turns.began, list[str]()

    def slowly(_: object, size: int, place: str) -> None:
        busy.append(place)
        began(Slow(), size, place)  # type: ignore[arg-type]

    monkeypatch.setattr(server._turns, "began", slowly)
    callers = [*[Caller(ACTOR, "10.0.0.7")] * 4, Caller(ACTOR, "10.0.0.8"), *[Caller(CORE, "10.0.0.9")] * 4]
    for number, caller in enumerate(callers):
        body = msgspec.Raw(msgspec.msgpack.encode(Add(number)))
        server._answer(route, Call(PROTOCOL, f"client-{number}", 1, "Add", body), [], caller)
    server.serve(0.0)
    assert busy == ["10.0.0.7"] * 2 + ["10.0.0.8"] + [""] * 4
