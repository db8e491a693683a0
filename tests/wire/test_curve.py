"""Sockets that use keys: which peers get a session, which do not, and how each side learns why."""

from __future__ import annotations

import logging
import socket as stdlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import zmq

from rlctl_agents.types.experience import Field, ModelRef, Schema
from rlctl_agents.wire.experience.protocol import Refusal
from rlctl_agents.wire.keys import Keys
from rlctl_agents.wire.notice import NoticePublisher, NoticeSubscriber
from rlctl_agents.wire.rpc.client import RpcClient
from rlctl_agents.wire.rpc.server import RpcServer
from rlctl_agents.wire.sockets import Wire
from tests.wire.attacker import says_size
from tests.wire.keyring import Keyring, ticket
from tests.wire.pair import Clock, RawSender, carry, make_receiver, make_sender, offer, quiesce, until
from tests.wire.rpc.test_calls import Add, Sum, add
from tests.wire.test_notice import last, listen

ANY = "tcp://127.0.0.1:*"
Open = Callable[..., Wire]


@pytest.fixture
def ring(tmp_path: Path) -> Keyring:
    return Keyring(tmp_path)


@pytest.fixture
def open_wire(ring: Keyring) -> Iterator[Open]:
    """Wires by role, each in a context of its own as other processes' are; None: without keys."""
    wires: list[Wire] = []

    def of(role: str | None, bind_host: str = "", **changes: bytes | None) -> Wire:
        wires.append(Wire.of(ring.of(role, **changes) if role else None, bind_host))
        return wires[-1]

    yield of
    for wire in wires:
        wire.close()


def refuses(client: Wire, address: str) -> None:
    """A call does not come through."""
    caller = RpcClient(client, address, "client")
    with pytest.raises(TimeoutError):
        caller.call(Add(1), Sum, deadline_s=0.5, attempt_s=0.1)


def logged(caplog: pytest.LogCaptureFixture, *words: str) -> Callable[[], bool]:
    return lambda: any(all(word in line for word in words) for line in caplog.messages)


# who is admitted


def test_both_classes_get_a_session_and_their_messages_carry_the_class(open_wire: Open) -> None:
    router, address = open_wire("core").bind(zmq.ROUTER, ANY)
    for role, whose in (("actor", "actor"), ("core", "core"), ("evaluator", "core")):
        open_wire(role).connect(zmq.DEALER, address).send_multipart([b"head", bytes(100_000)])
        assert router.poll(60_000)
        frames = router.recv_multipart(copy=False)
        assert [frame.get("User-Id") for frame in frames] == [whose] * 3


def test_a_foreign_key_gets_no_session_and_both_sides_say_why(
    open_wire: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = Keyring(tmp_path / "other").keys
    server = open_wire("core")
    router, address = server.bind(zmq.ROUTER, ANY)
    client = open_wire("actor", actor__key=other["actor.key"], actor__pub=other["actor.pub"])
    with caplog.at_level(logging.WARNING):
        refuses(client, address)
        until(logged(caplog, f"no connection to {address}", "our key of class actor is not admitted there"))
        until(lambda: server.refused.get("key"))
        until(logged(caplog, "connection refused (key, 1 so far)", "from 127.0.0.1", "not of this run"))
    assert not router.poll(0)
    assert "not admitted" in client.trouble(address)


def test_a_plain_peer_gets_no_session_and_the_server_says_why(
    open_wire: Open, caplog: pytest.LogCaptureFixture
) -> None:
    server = open_wire("core")
    router, address = server.bind(zmq.ROUTER, ANY)
    with caplog.at_level(logging.WARNING):
        refuses(open_wire(None), address)
        # the first to see that the other is not of its kind hangs up, and only that one knows why
        without, hung_up = logged(caplog, address, "without CURVE"), logged(caplog, address, "hung up: without keys")
        until(lambda: without() or hung_up())
    assert set(server.refused) <= {"plain", "broken_off"}
    assert not router.poll(0)


def test_a_peer_with_another_server_key_gets_no_session_and_both_sides_say_why(
    open_wire: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = open_wire("core")
    router, address = server.bind(zmq.ROUTER, ANY)
    client = open_wire("actor", server__pub=Keyring(tmp_path / "other").keys["server.pub"])
    with caplog.at_level(logging.WARNING):
        client.connect(zmq.DEALER, address).send(b"hello", zmq.NOBLOCK)
        until(logged(caplog, f"no connection to {address}", "another key than our server.pub"))
        until(logged(caplog, "connection refused (server_key", "its server.pub is not our key"))
    assert not router.poll(0)


def test_who_has_keys_does_not_speak_to_a_plain_server_and_says_why(
    open_wire: Open, caplog: pytest.LogCaptureFixture
) -> None:
    router, address = open_wire(None).bind(zmq.ROUTER, ANY)
    client = open_wire("actor")
    with caplog.at_level(logging.WARNING):
        refuses(client, address)
        until(logged(caplog, f"no connection to {address}", "does not use CURVE"))
    assert not router.poll(0)


def test_who_has_keys_says_that_somebody_else_listens_where_it_connects(
    open_wire: Open, caplog: pytest.LogCaptureFixture
) -> None:
    with stdlib.create_server(("127.0.0.1", 0)) as listener, caplog.at_level(logging.WARNING):
        address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        open_wire("actor").connect(zmq.DEALER, address)
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            until(logged(caplog, f"no connection to {address}", "does not speak our protocol"))


def test_the_reason_is_part_of_a_calls_time_out(open_wire: Open) -> None:
    _, address = open_wire(None).bind(zmq.ROUTER, ANY)
    wire = open_wire("actor")
    client = RpcClient(wire, address, "client")
    until(lambda: "does not use CURVE" in wire.trouble(address))  # unknown for as long as the server hangs up first
    with pytest.raises(TimeoutError, match="no answer to Add in time; the process there does not use CURVE"):
        client.call(Add(1), Sum, deadline_s=0.2)


def test_a_handshake_that_fails_again_and_again_is_logged_once(
    open_wire: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = open_wire("core")
    _, address = server.bind(zmq.ROUTER, ANY)
    client = open_wire("actor", server__pub=Keyring(tmp_path / "other").keys["server.pub"])
    with caplog.at_level(logging.WARNING):
        client.connect(zmq.DEALER, address)
        until(lambda: server.refused.get("server_key", 0) >= 6)
        until(lambda: any(line.startswith("no connection") for line in caplog.messages))  # of another thread
    assert len([line for line in caplog.messages if line.startswith("no connection")]) == 1
    assert len([line for line in caplog.messages if line.startswith("connection refused")]) == 1


def test_nobody_is_admitted_while_nobody_answers_for_it(open_wire: Open) -> None:
    server = open_wire("core")
    router, address = server.bind(zmq.ROUTER, ANY)
    assert server._admission
    server._admission.end()
    refuses(open_wire("actor"), address)
    assert not router.poll(0)


def test_a_process_without_the_servers_key_cannot_listen(open_wire: Open) -> None:
    for role in ("actor", "evaluator"):
        with pytest.raises(ValueError, match=r"cannot listen without server\.key"):
            open_wire(role).bind(zmq.ROUTER, ANY)


def test_unix_sockets_stay_as_they_are(open_wire: Open, address: str) -> None:
    router, _ = open_wire("core").bind(zmq.ROUTER, address)
    open_wire(None).connect(zmq.DEALER, address).send(b"hello")
    assert router.poll(60_000)


# where


def test_a_bind_replaces_the_host_and_a_name_finds_it(open_wire: Open) -> None:
    router, address = open_wire("core", "127.0.0.1").bind(zmq.ROUTER, "tcp://pong-manager-0.pong-manager:*")
    assert address.startswith("tcp://127.0.0.1:")
    port = address.rpartition(":")[2]
    open_wire("actor", "127.0.0.1").connect(zmq.DEALER, f"tcp://localhost:{port}").send(b"hello")
    assert router.poll(60_000)


def test_ipv6_works(open_wire: Open) -> None:
    try:
        stdlib.create_server(("::1", 0), family=stdlib.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    router, address = open_wire("core", "::1").bind(zmq.ROUTER, "tcp://pong-manager-0.pong-manager:*")
    assert address.startswith("tcp://[::1]:")
    open_wire("actor").connect(zmq.DEALER, address).send(b"hello")
    assert router.poll(60_000)


def test_a_bind_host_needs_keys_unless_it_is_loopback(open_wire: Open) -> None:
    with pytest.raises(ValueError, match="loopback"):
        open_wire(None, "10.1.2.3").bind(zmq.ROUTER, "tcp://127.0.0.1:*")
    with pytest.raises(ValueError, match="by number"):
        open_wire("core", "eth0")
    open_wire(None, "127.0.0.1").bind(zmq.ROUTER, "tcp://127.0.0.2:*")


def test_the_largest_frame_allowed_is_the_same_when_it_is_encrypted(open_wire: Open) -> None:
    router, address = open_wire("core").bind(zmq.ROUTER, ANY, max_message_bytes=1000)
    dealer = open_wire("actor").connect(zmq.DEALER, address)
    dealer.send(bytes(1000))
    assert router.poll(60_000)
    assert len(router.recv_multipart()[1]) == 1000
    dealer.send(bytes(1001))
    assert not router.poll(100)


# what goes over it


def test_calls_go_on_over_a_restart_of_the_server(open_wire: Open) -> None:
    first = open_wire("core")
    server = RpcServer(first, ANY, "first", {Add: add}, {Add: frozenset({"actor"})})
    client = RpcClient(open_wire("actor"), server.address, "client")
    answers: list[Sum] = []

    def call(number: int) -> threading.Thread:
        thread = threading.Thread(target=lambda: answers.append(client.call(Add(number), Sum, deadline_s=10.0)[0]))
        thread.start()
        return thread

    thread = call(1)
    until(lambda: answers, lambda: server.serve(0.01))
    thread.join()
    first.close()
    thread = call(2)
    again = RpcServer(open_wire("core"), server.address, "second", {Add: add}, {Add: frozenset({"actor"})})
    until(lambda: len(answers) == 2, lambda: again.serve(0.01))
    thread.join()
    assert answers == [Sum(1), Sum(2)]


def test_a_call_that_waits_for_its_handshake_does_not_start_it_anew(open_wire: Open) -> None:
    with stdlib.create_server(("127.0.0.1", 0)) as listener:  # accepts, and says nothing
        listener.settimeout(0.0)
        client = RpcClient(open_wire("actor"), f"tcp://127.0.0.1:{listener.getsockname()[1]}", "client")
        with pytest.raises(TimeoutError):
            client.call(Add(1), Sum, deadline_s=0.5, attempt_s=0.02)
        listener.accept()[0].close()
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_experience_arrives_and_the_ledger_balances(open_wire: Open) -> None:
    clock = Clock()
    receiver = make_receiver(core := open_wire("core"), ANY, clock=clock)
    sender = make_sender(open_wire("actor"), receiver.address, clock=clock, ticket=ticket(core))
    carry(sender, receiver, 20)
    quiesce(sender, receiver, clock, lambda: receiver.poll(0.0))
    account = receiver.accounts["sender"]
    assert account.received == account.consumed == account.ledger.sent == 20 * 8
    assert (account.lost, receiver.rejected) == (0, {})


def test_a_sender_comes_back_from_an_address_where_somebody_else_listened(open_wire: Open) -> None:
    stranger = open_wire(None)
    router, address = stranger.bind(zmq.ROUTER, ANY)
    wire, core = open_wire("actor"), open_wire("core")
    sender = make_sender(wire, address, ticket=ticket(core))
    until(lambda: "CURVE" in wire.trouble(address), lambda: sender.poll(0.01))
    router.close(0)
    stranger.close()
    receiver = make_receiver(core, address)
    assert len(carry(sender, receiver, 3)) == 3
    assert wire.trouble(address) == ""


def test_a_subscriber_comes_back_from_an_address_where_somebody_else_listened(open_wire: Open) -> None:
    stranger = open_wire(None)
    _, address = stranger.bind(zmq.PUB, ANY)
    wire = open_wire("actor")
    subscriber = NoticeSubscriber(wire, address, "main")
    until(lambda: "CURVE" in wire.trouble(address))
    stranger.close()
    listen(NoticePublisher(open_wire("core"), address), subscriber, ModelRef("main", 0, 5))


def test_experience_is_taken_of_leased_boots_only(open_wire: Open, tmp_path: Path) -> None:
    core, other = open_wire("core"), Keyring(tmp_path / "other")
    receiver = make_receiver(core, ANY, leased_since_s=1000)
    shown = {
        "no": "",
        "garbage": "1000.00",
        "of another boot": ticket(core, "other"),
        "of another run": core.keys.ticket("other", "of another run", 1000) if core.keys else "",
        "of another's keys": Keys.read(other.of("core")).ticket("run", "of another's keys", 1000),
        "made younger": "2000." + ticket(core, "made younger").partition(".")[2],
        "too old": ticket(core, "too old", 999),
        "not ascii": "1000.\u00e9",
    }
    for boot, one in shown.items():
        raw = RawSender(open_wire("actor"), receiver.address, boot)
        raw.say(raw.hello(ticket=one))
        answer = raw.hear(receiver)
        assert isinstance(answer, Refusal), boot
        assert answer.reason == "lease"
    assert (receiver.accounts, receiver.outstanding) == ({}, 0)
    leased = RawSender(open_wire("actor"), receiver.address, "leased")
    assert leased.greet(receiver, ticket=ticket(core, "leased")).limit > 0


def test_a_boot_whose_lease_is_long_over_loses_its_credit_until_it_has_another(open_wire: Open) -> None:
    core = open_wire("core")
    receiver = make_receiver(core, ANY, leased_since_s=1000)
    raw = RawSender(open_wire("actor"), receiver.address)
    assert raw.greet(receiver, ticket=ticket(core, "raw", 1000)).limit > 0
    receiver.leased_since_s = 1120
    raw.say(raw.hello(ticket=ticket(core, "raw", 1000)))
    assert isinstance(raw.hear(receiver), Refusal)
    assert receiver.outstanding == 0
    assert raw.greet(receiver, ticket=ticket(core, "raw", 1120)).limit > 0


def test_a_sender_shows_its_newest_ticket(open_wire: Open) -> None:
    core, clock = open_wire("core"), Clock()
    receiver = make_receiver(core, ANY, leased_since_s=1000, clock=clock)
    sender = make_sender(open_wire("actor"), receiver.address, clock=clock)
    until(lambda: receiver.rejected.get("lease"), lambda: sender.poll(0.0), lambda: receiver.poll(0.001))
    sender.ticket = ticket(core)
    clock.now += 1.0
    carry(sender, receiver, 3)


@pytest.mark.parametrize("listener", ["rpc", "experience"])
def test_a_stranger_cannot_make_a_listener_take_more_than_a_frame(open_wire: Open, listener: str) -> None:
    wire = open_wire("core")
    if listener == "rpc":
        address = RpcServer(wire, ANY, "boot", {Add: add}).address
    else:
        address = make_receiver(wire, ANY).address
    kept, cut = (says_size(address, size) for size in (1 << 24, (1 << 24) + 34))  # 33 that encryption adds
    with kept, cut:
        while cut.recv(1000):
            pass
        kept.settimeout(0.05)
        assert len(kept.recv(64, stdlib.MSG_WAITALL)) == 64, "our greeting"
        with pytest.raises(TimeoutError):  # and it goes on waiting
            kept.recv(1)


def test_a_handler_can_see_which_address_a_request_came_from(open_wire: Open) -> None:
    seen: list[str] = []

    def look(request: Add, _: object) -> tuple[Sum, list[bytes]]:
        seen.append(server.caller_address)
        return Sum(request.left), []

    server = RpcServer(open_wire("core"), ANY, "boot", {Add: look}, {Add: frozenset({"actor"})})
    client = RpcClient(open_wire("actor"), server.address, "client")
    thread = threading.Thread(target=lambda: client.call(Add(1), Sum, deadline_s=60.0))
    thread.start()
    until(lambda: seen, lambda: server.serve(0.01))
    thread.join()
    assert seen == ["127.0.0.1"]


def test_notices_reach_actors(open_wire: Open) -> None:
    publisher = NoticePublisher(open_wire("core"), ANY)
    subscriber = NoticeSubscriber(open_wire("actor"), publisher.address, "main")
    listen(publisher, subscriber, ModelRef("main", 1, 2))
    for version in range(3, 200):
        publisher.publish(ModelRef("main", 1, version))
    newest = ModelRef("main", 1, 199)
    assert last(publisher, subscriber, newest) == newest


def test_experience_is_compressed_when_its_receiver_is_elsewhere(open_wire: Open, address: str) -> None:
    schema = Schema(4, (Field("obs", "uint8", (300, 100), "row+1"),))
    sender = make_sender(open_wire("actor"), address, schema=schema, queue_blocks=3)
    addresses = (address, "tcp://127.0.0.1:9", "tcp://192.0.2.1:9")  # the last is nobody's, by RFC 5737
    for each in addresses:
        sender.redirect(each)
        assert offer(sender, 1, schema=schema)
    codecs = [block.heads[1].codec for block in sender._queue]
    assert codecs == [0, 0, 1]
    forced = make_sender(open_wire("actor"), addresses[1], schema=schema, compress=True)
    offer(forced, 1, schema=schema)
    assert forced._queue[0].heads[1].codec == 1


def test_closing_waits_for_nobody(open_wire: Open) -> None:
    wire = open_wire("core")
    _, address = wire.bind(zmq.ROUTER, ANY)
    for _ in range(5):
        wire.connect(zmq.DEALER, address).send(bytes(np.random.default_rng(0).bytes(1000)), zmq.NOBLOCK)
    before = threading.active_count()
    wire.close()
    assert threading.active_count() < before
    wire.close()
