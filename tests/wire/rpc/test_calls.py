from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
import zmq

from rlctl_agents.wire.codec import PROTOCOL
from rlctl_agents.wire.rpc.client import Answer, Call, RemoteError, RpcClient
from rlctl_agents.wire.rpc.server import RpcServer
from rlctl_agents.wire.sockets import MAX_MESSAGE_BYTES, Wire
from tests.wire.pair import LIMIT_S, until


class Add(msgspec.Struct, frozen=True):
    left: int
    right: int = 0


class Sum(msgspec.Struct, frozen=True):
    value: int


class Other(msgspec.Struct, frozen=True):
    pass


Handle = Callable[[Add, Sequence[memoryview]], tuple[Sum, Sequence[bytes]]]


def add(request: Add, buffers: Sequence[memoryview]) -> tuple[Sum, Sequence[bytes]]:
    return Sum(request.left + request.right), [bytes(buffer) for buffer in buffers]


@contextmanager
def serving(address: str, handler: Handle = add, boot: str = "server", **settings: Any) -> Iterator[RpcServer]:
    """A server in a thread and a context of its own, as another process would be."""
    stop, wire = threading.Event(), Wire()
    server = RpcServer(wire, address, boot, {Add: handler}, **settings)

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


def test_a_call_is_answered_with_its_buffers(wire: Wire, address: str) -> None:
    client = RpcClient(wire, address, "client")
    with serving(address):
        reply, buffers = client.call(Add(2, 3), Sum, [b"small", bytes(300_000)], deadline_s=LIMIT_S)
        assert reply == Sum(5)
        assert [bytes(buffer) for buffer in buffers] == [b"small", bytes(300_000)]
        assert all(buffer.readonly for buffer in buffers)


def test_a_refusal_arrives_in_the_servers_words(wire: Wire, address: str) -> None:
    def refuse(request: Add, buffers: Sequence[memoryview]) -> tuple[Sum, Sequence[bytes]]:
        raise ValueError(f"{request.left} is too much")

    client = RpcClient(wire, address, "client")
    with serving(address, refuse):
        with pytest.raises(RemoteError, match="7 is too much"):
            client.call(Add(7), Sum, deadline_s=LIMIT_S)
        with pytest.raises(RemoteError, match="Other is no request"):
            client.call(Other(), Sum, deadline_s=LIMIT_S)


def test_a_fault_of_the_server_reaches_the_client_and_the_server(wire: Wire, address: str) -> None:
    def fail(request: Add, buffers: Sequence[memoryview]) -> tuple[Sum, Sequence[bytes]]:
        raise KeyError("bug")

    server = RpcServer(wire, address, "server", {Add: fail})
    client = RpcClient(wire, address, "client")
    raised: list[BaseException] = []

    def serve() -> None:
        with pytest.raises(KeyError) as caught:
            server.serve(LIMIT_S)
        raised.append(caught.value)

    thread = threading.Thread(target=serve)
    thread.start()
    with pytest.raises(RemoteError, match="internal error: KeyError"):
        client.call(Add(1), Sum, deadline_s=LIMIT_S)
    thread.join()
    assert raised


def test_without_a_server_a_call_ends_at_its_deadline(wire: Wire, address: str) -> None:
    client = RpcClient(wire, address, "client")
    began = time.monotonic()
    with pytest.raises(TimeoutError, match="no answer to Add"):
        client.call(Add(1), Sum, deadline_s=0.1, attempt_s=0.03)
    assert 0.1 <= time.monotonic() - began < LIMIT_S


def test_a_call_is_given_up_when_the_caller_does_not_want_to_wait_any_more(wire: Wire, address: str) -> None:
    client = RpcClient(wire, address, "client")
    looks = iter([True, True, False])
    with pytest.raises(TimeoutError, match="given up"):
        client.call(Add(1), Sum, deadline_s=60.0, keep_waiting=lambda: next(looks, False))


def test_a_call_survives_a_restart_of_the_server(wire: Wire, address: str) -> None:
    client = RpcClient(wire, address, "client")
    with serving(address, boot="first"):
        assert client.call(Add(1), Sum, deadline_s=LIMIT_S)[0] == Sum(1)
    answers: list[Sum] = []
    thread = threading.Thread(
        target=lambda: answers.append(client.call(Add(2), Sum, deadline_s=LIMIT_S, attempt_s=0.05)[0])
    )
    thread.start()
    thread.join(0.1)
    assert not answers
    with serving(address, boot="second"):
        thread.join()
    assert answers == [Sum(2)]


def test_calls_go_on_while_the_server_is_restarted_again_and_again(wire: Wire, address: str) -> None:
    client = RpcClient(wire, address, "client")
    answers: list[int] = []

    def call() -> None:
        for number in range(200):
            answers.append(client.call(Add(number), Sum, deadline_s=LIMIT_S, attempt_s=0.05)[0].value)

    thread = threading.Thread(target=call)
    thread.start()
    while thread.is_alive():
        with serving(address):
            thread.join(0.03)
    assert answers == list(range(200))


def test_an_impatient_clients_request_is_carried_out_once(wire: Wire, address: str) -> None:
    done: list[int] = []
    gate = threading.Event()

    def slowly(request: Add, buffers: Sequence[memoryview]) -> tuple[Sum, Sequence[bytes]]:
        done.append(request.left)
        gate.wait(0.2)
        return Sum(request.left), ()

    client = RpcClient(wire, address, "client")
    with serving(address, slowly):
        assert client.call(Add(5), Sum, deadline_s=LIMIT_S, attempt_s=0.03)[0] == Sum(5)
        gate.set()
        assert client.call(Add(6), Sum, deadline_s=LIMIT_S)[0] == Sum(6)
    assert done == [5, 6]


def test_an_answer_that_is_remembered_is_not_made_again_however_large(wire: Wire, address: str) -> None:
    made: list[int] = []

    def slow(request: Add, buffers: Sequence[memoryview]) -> tuple[Sum, Sequence[bytes]]:
        made.append(request.left)
        time.sleep(0.2)  # the client has asked again by then
        return Sum(len(made)), [bytes(2 << 20)]

    client = RpcClient(wire, address, "client")
    with serving(address, slow, remembers=1 << 24):
        reply, buffers = client.call(Add(1), Sum, deadline_s=LIMIT_S, attempt_s=0.05)
    assert (reply, made, buffers[0].nbytes) == (Sum(1), [1], 2 << 20)


def test_an_answer_that_would_cut_the_connection_is_an_error_instead(wire: Wire, address: str) -> None:
    client = RpcClient(wire, address, "client")
    with (
        serving(address, lambda request, buffers: (Sum(1), [bytes(MAX_MESSAGE_BYTES + 1)])),
        pytest.raises(RemoteError, match=f"a frame of more than {MAX_MESSAGE_BYTES} bytes"),
    ):
        client.call(Add(1), Sum, deadline_s=LIMIT_S)


def test_a_large_answer_is_not_remembered_but_made_again(wire: Wire, address: str) -> None:
    server = RpcServer(wire, address, "server", {Add: lambda request, _: (Sum(request.left), [bytes(2_000_000)])})
    for number in range(100):
        server._answer(b"nobody", _call(number), [])
    assert server._remembered_bytes < 100 * 100


def test_remembered_answers_are_bounded_in_number_and_bytes(wire: Wire, address: str) -> None:
    server = RpcServer(wire, address, "server", {Add: lambda request, _: (Sum(request.left), [bytes(900_000)])})
    for number in range(200):
        server._answer(b"nobody", _call(1, f"client-{number}"), [])
    assert server._remembered_bytes <= 1 << 26
    assert len(server._answers) < 80


def test_a_call_is_carried_out_once_though_ten_thousand_others_call_before_it_is_repeated(
    wire: Wire, address: str
) -> None:
    done: list[int] = []

    def count(request: Add, buffers: Sequence[memoryview]) -> tuple[Sum, Sequence[bytes]]:
        done.append(request.left)
        return Sum(request.left), ()

    server = RpcServer(wire, address, "server", {Add: count})
    for number in [*range(10_001), 0]:
        server._answer(b"route", _call(1, f"client-{number}"), [])
    assert len(done) == 10_001


def _call(number: int, client: str = "client") -> Call:
    return Call(PROTOCOL, client, number, "Add", msgspec.Raw(msgspec.msgpack.encode(Add(1))))


def test_an_answer_to_an_earlier_call_is_not_taken_for_this_one(wire: Wire, address: str) -> None:
    router, _ = wire.bind(zmq.ROUTER, address)
    client = RpcClient(wire, address, "client")
    result: list[Sum] = []
    thread = threading.Thread(target=lambda: result.append(client.call(Add(1), Sum, deadline_s=LIMIT_S)[0]))
    thread.start()
    assert router.poll(60_000)
    route, head = router.recv_multipart()
    call = msgspec.msgpack.decode(head, type=Call)
    for number, value in [(call.id - 1, 13), (call.id + 1, 14), (call.id, 15)]:
        body = msgspec.Raw(msgspec.msgpack.encode(Sum(value)))
        router.send_multipart([route, msgspec.msgpack.encode(Answer(PROTOCOL, "server", number, "", body))])
    thread.join()
    assert result == [Sum(15)]


def test_garbage_is_counted_and_the_server_goes_on(wire: Wire, address: str, caplog: pytest.LogCaptureFixture) -> None:
    bodies = [
        [b""],
        [b"\xff" * 50],
        [b"\x91" * 100_000],
        [msgspec.msgpack.encode(["call", 99, "c", 1, "Add", None])],
        [b"\x96\xa4call\x01\xa1c\x01\xa3Add" + b"\xdd\xff\xff\xff\xff"],
        [b"x"] * 300,
    ]
    with serving(address) as server:
        attacker = wire.connect(zmq.DEALER, address)
        for body in bodies:
            attacker.send_multipart(body)
        until(lambda: sum(server.rejected.values()) == len(bodies))
        client = RpcClient(wire, address, "client")
        assert client.call(Add(1), Sum, deadline_s=LIMIT_S)[0] == Sum(1)
    assert set(server.rejected) == {"decode", "protocol", "frames"}
    told = [one.message for one in caplog.records if one.message.startswith("request rejected (")]
    assert len(told) == 3, "of each reason once in ten seconds"


def test_a_malformed_body_is_refused_in_words(wire: Wire, address: str) -> None:
    class Bad(msgspec.Struct, frozen=True):
        left: str

    Bad.__name__ = "Add"
    client = RpcClient(wire, address, "client")
    with serving(address), pytest.raises(RemoteError, match=r"malformed Add: Expected `int`, got `str`"):
        client.call(Bad("x"), Sum, deadline_s=LIMIT_S)


def test_a_server_does_not_wait_for_a_client_that_is_gone(wire: Wire, address: str) -> None:
    server = RpcServer(wire, address, "server", {Add: add})
    gone = wire.connect(zmq.DEALER, address)
    gone.send(msgspec.msgpack.encode(Call(PROTOCOL, "gone", 1, "Add", msgspec.Raw(msgspec.msgpack.encode(Add(1))))))
    assert server._socket.poll(60_000)
    gone.close(0)
    began = time.monotonic()
    assert server.serve(2 * LIMIT_S) == 1
    assert server.serve(0.0) == 0
    assert time.monotonic() - began < LIMIT_S


def test_threads_take_turns_with_one_client(wire: Wire, address: str) -> None:
    client = RpcClient(wire, address, "client")
    answers: list[int] = []

    def call(start: int) -> None:
        for number in range(start, start + 25):
            answers.append(client.call(Add(number), Sum, deadline_s=LIMIT_S)[0].value)

    with serving(address):
        threads = [threading.Thread(target=call, args=(1000 * index,)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(answers) == sorted(1000 * index + number for index in range(4) for number in range(25))
