"""Blocks on their way: as they left, through the sender's queue, and counted alike at both ends."""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from rlctl_agents.types.control import Origin
from rlctl_agents.types.experience import Field, Ledger, Schema, SegmentBlock
from rlctl_agents.wire.sockets import Wire
from tests.wire.pair import (
    MODEL,
    STEPS,
    Clock,
    carry,
    fields,
    make_receiver,
    make_sender,
    offer,
    quiesce,
    until,
    versions,
)

ROWS = 2 * STEPS  # of the blocks that `offer` makes


def test_a_block_arrives_as_it_left(wire: Wire, address: str) -> None:
    receiver, sender = make_receiver(wire, address), make_sender(wire, address)
    first, second = carry(sender, receiver, 2)
    header = second.header
    assert (header.run, header.term, header.boot, header.receiver, header.sequence) == (
        "run",
        1,
        "sender",
        "receiver",
        1,
    )
    assert (header.model, header.stream, header.row0) == (MODEL, [0, 1], [STEPS, STEPS])
    assert header.ledger == Ledger(produced=2 * ROWS, dropped=0, sent=2 * ROWS)
    assert first.rows == ROWS
    np.testing.assert_array_equal(first.version, versions(2))
    for name, array in fields(2).items():
        np.testing.assert_array_equal(first.fields[name], array)
        assert not first.fields[name].flags.writeable


@pytest.mark.parametrize("compress", [False, True])
def test_large_arrays_arrive_as_they_left_and_outlive_the_sockets(wire: Wire, address: str, compress: bool) -> None:
    schema = Schema(STEPS, (Field("obs", "uint8", (84, 84, 4), "row+1"),))
    receiver = make_receiver(wire, address, schema=schema)
    sender = make_sender(wire, address, schema=schema, compress=compress)
    assert offer(sender, schema=schema)
    segments: list[SegmentBlock] = []
    until(lambda: segments, lambda: sender.poll(0.0), lambda: segments.extend(receiver.poll(0.001)))
    sender.close()
    receiver.close()
    np.testing.assert_array_equal(segments[0].fields["obs"], fields(2, schema)["obs"])


def test_the_address_may_be_a_port_of_the_loopback(wire: Wire) -> None:
    receiver = make_receiver(wire, "tcp://127.0.0.1:*")
    carry(make_sender(wire, receiver.address), receiver, 3)


def test_numbers_that_are_none_are_not_the_wires_matter(wire: Wire, address: str) -> None:
    receiver, sender = make_receiver(wire, address), make_sender(wire, address)
    arrays = fields(2)
    arrays["reward"][:] = np.nan
    assert sender.offer(model=MODEL, stream=[0, 1], row0=[0, 0], version=versions(2), fields=arrays)
    segments: list[SegmentBlock] = []
    until(lambda: segments, lambda: sender.poll(0.0), lambda: segments.extend(receiver.poll(0.001)))
    assert np.isnan(segments[0].fields["reward"]).all()


def test_experience_of_two_builds_of_a_game_can_be_told_apart(wire: Wire, address: str) -> None:
    image = "registry/actor@sha256:" + 4 * "0123456789abcdef"
    builds = {"a": Origin("n", image).build, "b": Origin("n", image[:-64] + 64 * "f").build, "c": Origin("n").build}
    receiver = make_receiver(wire, address)
    senders = {boot: make_sender(wire, address, boot=boot, build=build) for boot, build in builds.items()}
    found: dict[str, str] = {}

    def hear() -> None:
        found.update((one.header.boot, one.header.build) for one in receiver.poll(0.001))

    for sender in senders.values():
        assert offer(sender)
    until(lambda: len(found) == 3, *(partial(one.poll, 0.0) for one in senders.values()), hear)
    assert found == {"a": "0123456789abcdef", "b": "ffffffffffffffff", "c": ""}


def test_an_on_policy_sender_takes_no_more_than_its_queue_and_counts_what_it_took(wire: Wire, address: str) -> None:
    sender = make_sender(wire, address)  # nobody listens
    assert [offer(sender) for _ in range(4)] == [True, True, False, False]
    assert not sender.ready()
    assert sender.pending == 2 * ROWS
    assert sender.ledgers == {}
    receiver = make_receiver(wire, address)
    until(lambda: sender.pending == 0, lambda: sender.poll(0.0), lambda: receiver.poll(0.001))
    assert sender.ledgers == {"receiver": Ledger(2 * ROWS, 0, 2 * ROWS)}


def test_an_off_policy_sender_gives_up_the_oldest_and_counts_it(wire: Wire, address: str) -> None:
    sender = make_sender(wire, address, on_policy=False)
    for row0 in range(5):
        assert offer(sender, row0=row0)
    assert sender.pending == 2 * ROWS
    receiver = make_receiver(wire, address)
    segments: list[SegmentBlock] = []
    until(lambda: len(segments) == 2, lambda: sender.poll(0.0), lambda: segments.extend(receiver.poll(0.001)))
    assert [segment.header.row0[0] for segment in segments] == [3, 4]
    assert segments[-1].header.ledger == Ledger(produced=5 * ROWS, dropped=3 * ROWS, sent=2 * ROWS)


def test_a_receiver_that_does_not_listen_neither_delays_a_sender_nor_makes_it_grow(wire: Wire, address: str) -> None:
    schema = Schema(STEPS, (Field("obs", "uint8", (400, 400), "row"),))
    receiver = make_receiver(wire, address, schema=schema, budget_rows=4 * ROWS)
    sender = make_sender(wire, address, schema=schema, on_policy=False)
    until(lambda: sender.ledgers, lambda: offer(sender, schema=schema), lambda: receiver.poll(0.001))
    worst, before = 0.0, _resident_bytes()
    for _ in range(150):
        began = time.perf_counter()
        offer(sender, schema=schema)
        worst = max(worst, time.perf_counter() - began)
    assert sender.ledgers["receiver"].sent <= 4 * ROWS
    assert worst < 30.0, "a wait would be endless"
    assert _resident_bytes() - before < 40e6, "150 blocks are 192 MB"


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_flush_ends_when_the_receiver_knows_of_every_row(wire: Wire, address: str) -> None:
    receiver, sender = make_receiver(wire, address), make_sender(wire, address)
    assert sender.flush(0.0), "nothing to wait for"
    stop = threading.Event()

    def receive() -> None:
        while not stop.is_set():
            for segment in receiver.poll(0.01):
                receiver.settle(segment, "consumed")

    thread = threading.Thread(target=receive)
    thread.start()
    assert offer(sender)
    assert offer(sender)
    assert sender.flush(60.0)
    stop.set()
    thread.join()
    assert receiver.accounts["sender"].consumed == 2 * ROWS


def test_flush_gives_up_in_time_and_close_counts_the_rest_as_dropped(wire: Wire, address: str) -> None:
    sender = make_sender(wire, address)
    offer(sender)
    began = time.monotonic()
    assert not sender.flush(0.05)
    assert time.monotonic() - began < 30.0, "it would be endless"
    receiver = make_receiver(wire, address, budget_rows=1)
    until(lambda: sender.ledgers, lambda: sender.poll(0.0), lambda: receiver.poll(0.001))
    offer(sender)
    offer(sender)
    sender.close()
    assert sender.pending == 0
    (ledger,) = sender.ledgers.values()
    assert ledger.produced == ledger.sent + ledger.dropped


def test_the_ledgers_agree_after_any_traffic(wire: Wire, address: str) -> None:
    clock = Clock()
    receiver = make_receiver(wire, address, budget_rows=5 * ROWS, clock=clock)
    senders = {boot: make_sender(wire, address, boot=boot, clock=clock, on_policy=boot == "a") for boot in "abc"}
    rng = np.random.default_rng(3)

    def receive() -> None:
        for segment in receiver.poll(0.0):
            receiver.settle(segment, "consumed" if rng.random() < 0.7 else "stale")

    for _ in range(300):
        sender = senders["abc"[rng.integers(3)]]
        offer(sender, int(rng.integers(1, 4)))
        sender.poll(0.0)
        receive()

    def exchange() -> None:
        for sender in senders.values():
            sender.poll(0.0)
        receive()

    def arrived() -> bool:
        accounts = receiver.accounts
        return all(
            sender.pending == 0 and sender.ledgers["receiver"].sent == accounts[boot].received
            for boot, sender in senders.items()
        )

    until(arrived, exchange)
    for boot, sender in senders.items():
        quiesce(sender, receiver, clock, receive)
        ledger, account = sender.ledgers["receiver"], receiver.accounts[boot]
        assert ledger == account.ledger
        assert ledger.produced == ledger.sent + ledger.dropped
        assert ledger.sent == account.received == account.consumed + account.stale
        assert account.lost == account.queued == 0
