"""New weights to the modelpool, over the real wire."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from rlctl_agents.runtime.process import UserFault
from rlctl_agents.types.control import Channels, PutModel, Reply
from rlctl_agents.types.experience import ModelRef
from rlctl_agents.weights.publisher import MOST_BYTES, Publisher, require_size
from tests.support.chain import opened_wire, private_folder
from tests.support.fakes import Pool, Served, wait_until


@pytest.fixture
def folder() -> Iterator[Path]:
    with private_folder() as folder:
        yield folder


def pool_in(folder: Path) -> dict[int, Channels]:
    return {0: {"rpc": f"ipc://{folder}/pool"}}


@contextmanager
def published(
    folder: Path, *, every_version: bool = False, pools: Mapping[int, Channels] | None = None
) -> Iterator[Publisher]:
    there = pool_in(folder) if pools is None else pools
    with opened_wire() as wire:
        one = Publisher(
            wire, "learner", pools=lambda: there, term=lambda: 6, policy=b"described",
            every_version=every_version,
        )  # fmt: skip
        one.start()
        try:
            yield one
        finally:
            one.close()


def ref(version: int) -> ModelRef:
    return ModelRef("main", 1, version)


def test_weights_reach_the_pool_with_their_checksum_and_our_term(folder: Path) -> None:
    with Pool(folder) as pool, published(folder) as publisher:
        publisher.put(ref(3), lambda: b"weights")
        wait_until(lambda: publisher.newest == ref(3), "the put")
        assert pool.models[ref(3)][1] == b"weights"
        assert pool.puts[0].term == 6
        assert pool.puts[0].policy == b"described"


def test_weights_that_wait_give_way_to_newer_ones(folder: Path) -> None:
    begun, gate = threading.Event(), threading.Event()

    def pack() -> bytes:
        begun.set()
        assert gate.wait(60)
        return b"1"

    with Pool(folder) as pool, published(folder) as publisher:
        publisher.put(ref(1), pack)
        assert begun.wait(60)
        publisher.put(ref(2), lambda: b"2")
        publisher.put(ref(3), lambda: b"3")
        gate.set()
        wait_until(lambda: publisher.newest == ref(3), "the put")
        assert [put.ref.version for put in pool.puts] == [1, 3]


def test_in_lock_step_no_version_is_left_out(folder: Path) -> None:
    with published(folder, every_version=True) as publisher:
        publisher.put(ref(1), lambda: b"1")
        publisher.put(ref(2), lambda: b"2")
        with Pool(folder) as pool:
            wait_until(lambda: publisher.newest == ref(2), "the puts")
            assert [put.ref.version for put in pool.puts] == [1, 2]


def test_a_pool_that_was_started_anew_gets_the_weights_again(folder: Path) -> None:
    with published(folder) as publisher:
        with Pool(folder) as pool:
            publisher.put(ref(1), lambda: b"1")
            wait_until(lambda: bool(pool.puts), "the put")
        with Pool(folder, boot="pool2") as pool:
            wait_until(lambda: bool(pool.puts), "another put")
            assert pool.models[ref(1)][1] == b"1"


def test_in_lock_step_a_pool_that_was_started_anew_while_weights_wait_gets_the_last_few_in_order(folder: Path) -> None:
    with published(folder, every_version=True) as publisher:
        with Pool(folder) as pool:
            for version in (1, 2):
                publisher.put(ref(version), lambda: b"weights")
            wait_until(lambda: publisher.newest == ref(2), "the puts")
        publisher.put(ref(3), lambda: b"weights")
        with Pool(folder, boot="pool2") as pool:
            wait_until(lambda: publisher.newest == ref(3), "the put")
            assert [put.ref.version for put in pool.puts] == [1, 2, 3]


def test_who_leads_no_more_does_not_publish_its_old_weights(folder: Path) -> None:
    pools: dict[int, Channels] = {}
    with Pool(folder) as pool, published(folder, every_version=True, pools=pools) as publisher:
        publisher.put(ref(1), lambda: b"1")
        publisher.rest()
        publisher.put(ref(2), lambda: b"2")
        pools |= pool_in(folder)
        wait_until(lambda: publisher.newest == ref(2), "the put")
        assert [put.ref.version for put in pool.puts] == [2]


def test_packing_is_not_worth_it_while_the_last_weights_wait(folder: Path) -> None:
    with Pool(folder), published(folder) as publisher:
        assert publisher.wants()
        publisher.put(ref(1), lambda: b"1")
        wait_until(publisher.wants, "the put to be taken")


def test_nothing_is_wanted_while_weights_are_on_their_way_because_it_would_be_old_when_they_are_there(
    folder: Path,
) -> None:
    gate = threading.Event()

    def pack() -> bytes:
        gate.wait(60.0)
        return b"weights"

    with Pool(folder), published(folder) as publisher:
        publisher.put(ref(1), pack)
        wait_until(lambda: publisher._busy, "the thread")
        assert not publisher.wants()
        gate.set()
        wait_until(publisher.wants, "the put")
        assert publisher.newest == ref(1)


def test_weights_are_packed_in_the_thread_and_the_learner_goes_on_meanwhile(folder: Path) -> None:
    gate, packs_in = threading.Event(), list[str]()

    def pack() -> bytes:
        packs_in.append(threading.current_thread().name)
        gate.wait(60.0)
        return b"weights"

    with Pool(folder) as pool, published(folder) as publisher:
        publisher.put(ref(1), pack)
        wait_until(lambda: bool(packs_in), "the thread")
        assert publisher.newest is None
        gate.set()
        wait_until(lambda: publisher.newest == ref(1), "the put")
        assert pool.models[ref(1)][1] == b"weights"
    assert packs_in == ["publisher"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_publisher_that_is_dead_says_so(folder: Path) -> None:
    def fails() -> bytes:
        raise ValueError("a fault of ours")

    with Pool(folder), published(folder) as publisher:
        publisher.require_life()
        publisher.put(ref(1), fails)

        def ended() -> bool:
            try:
                publisher.require_life()
            except RuntimeError as error:
                return str(error) == "weights are not published any more"
            return False

        wait_until(ended, "its end")


def test_a_put_into_a_pool_that_is_not_named_any_more_is_given_up(folder: Path) -> None:
    deaf, taken = threading.Event(), list[bool]()

    def never(put: PutModel, buffers: object) -> tuple[Reply, list[bytes]]:
        taken.append(True)
        deaf.wait(60.0)
        return Reply(True), []

    served = Served(f"ipc://{folder}/deaf", "deaf", {PutModel: never})
    served.start()
    pools: dict[int, Channels] = {0: {"rpc": f"ipc://{folder}/deaf"}}
    try:
        with Pool(folder) as pool, published(folder, pools=pools) as publisher:
            publisher.put(ref(1), lambda: b"1")
            wait_until(lambda: bool(taken), "the put")
            pools |= pool_in(folder)
            wait_until(lambda: bool(pool.puts), "the put into the other", 20.0)
    finally:
        deaf.set()
        served.close()


def test_another_pool_that_is_named_gets_the_weights_that_the_one_before_has(folder: Path) -> None:
    pools = pool_in(folder)
    with private_folder() as elsewhere, Pool(folder), Pool(elsewhere) as other, published(folder, pools=pools) as one:
        one.put(ref(1), lambda: b"1")
        wait_until(lambda: one.newest == ref(1), "the put")
        assert not other.puts
        pools |= pool_in(elsewhere)
        wait_until(lambda: bool(other.puts), "the put into the other")
        assert other.models[ref(1)][1] == b"1"


def test_a_network_that_cannot_be_brought_to_actors_is_refused() -> None:
    require_size("main", MOST_BYTES)
    with pytest.raises(UserFault, match="policy main: its network has 2000 MiB of weights, and more than 1023 MiB"):
        require_size("main", 2000 << 20)
