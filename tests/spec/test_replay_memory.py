"""Memory of a replay beside what a machine has, and what a pod asks for."""

from typing import Any

from rlctl.spec import Machine
from rlctl.spec.problems.replay import (
    comes_to,
    gibibytes,
    shortage,
    too_large,
    too_little,
    too_many,
    volume_holds,
)
from rlctl.spec.schema import Spec

GIB = 2**30
PROCESS = 320 * 2**20 + 90 * 2**10
"""Bytes that the process of a shard with one actor comes to need beside its arrays."""


def spec(shards: int = 1, memory: str = "8Gi", actors: int = 1, **replay: Any) -> Spec:
    roles = {"replay": {"replicas": shards, "memory": memory}, "actor": {"replicas": actors}}
    return Spec.model_validate(
        {"run": "r", "env": {"id": "-"}, "algorithm": {"name": "dqn"}, "replay": replay, "roles": roles}
    )


def test_memory_is_told_by_shard_and_in_all() -> None:
    assert comes_to(spec(capacity=100_000), 310 * 2**20) == "100,000 rows in 1 shard of 310Mi"
    assert comes_to(spec(4), 2 * GIB) == "1,000,000 rows in 4 shards of 2.0Gi, 8.0Gi in all"
    bare = Spec.model_validate({"run": "r", "env": {"id": "-"}, "algorithm": {"name": "dqn"}})
    assert comes_to(bare, GIB) == "1,000,000 rows in 1 shard of 1.0Gi"
    assert gibibytes(0.44 * 2**20) == "0.4Mi"
    assert gibibytes(12_345 * GIB) == "12,345.0Gi"


def test_what_generations_hold_of_it_is_told_with_the_one_that_is_written() -> None:
    assert volume_holds(spec(4), 2 * GIB) == ""
    saved = spec(4, checkpoint="full")
    assert volume_holds(saved, 2 * GIB) == (
        "generations hold it: up to 32.0Gi of the volume, checkpoint.keep 3 and one that is written"
    )
    one = Spec.model_validate(saved.model_dump() | {"checkpoint": {"keep": 1}})
    assert "16.0Gi of the volume, checkpoint.keep 1 and" in volume_holds(one, 2 * GIB)


def test_all_shards_with_their_processes_must_find_room_on_a_machine() -> None:
    assert too_large(spec(2), 2 * GIB, Machine(cores=2, memory_mib=4.75 * 1024 + 1)) is None
    found = too_large(spec(2), 2 * GIB, Machine(cores=2, memory_mib=4.4 * 1024))
    assert found is not None
    assert found.path == ("replay", "capacity")
    assert found.message == (
        "1,000,000 rows in 2 shards of 2.0Gi, 4.0Gi in all; this machine has 4.4Gi; replay.capacity 720,000 would fit"
    )


def test_a_replay_that_generations_hold_needs_room_to_be_read_too() -> None:
    held, none, rows = (
        spec(2, "3Gi", checkpoint="full", capacity=10_000_000),
        spec(2, "3Gi", capacity=10_000_000),
        2 * GIB,
    )
    reading, machine = 50 * 5_000_000, Machine(cores=2, memory_mib=4.8 * 1024)
    assert too_large(none, rows, machine) is None
    assert too_large(held, rows, machine) is not None
    room = rows + PROCESS
    assert (too_little(none, 2600 * 2**20), shortage(none, rows, room, 2)) == (None, "")
    assert too_little(held, 2600 * 2**20) is not None
    assert shortage(held, rows, room + reading, 2) == ""
    assert "would fit" in shortage(held, rows, room + reading - 1, 2)


def test_what_is_suggested_fits() -> None:
    machine, row_bytes = Machine(cores=2, memory_mib=2048), 7100
    found = too_large(spec(3, capacity=10_000_000), 10_000_000 // 3 * row_bytes, machine)
    assert found is not None
    suggested = int(found.message.split()[-3].replace(",", ""))
    assert too_large(spec(3, capacity=suggested), suggested // 3 * row_bytes, machine) is None
    found = too_large(spec(3, capacity=100_000_000, checkpoint="full"), 100_000_000 // 3 * 20, machine)
    assert found is not None
    suggested = int(found.message.split()[-3].replace(",", ""))
    assert too_large(spec(3, capacity=suggested, checkpoint="full"), suggested // 3 * 20, machine) is None


def test_where_not_even_a_process_fits_nothing_is_suggested() -> None:
    found = too_large(spec(), GIB, Machine(cores=1, memory_mib=128))
    assert found is not None
    assert found.message.endswith("this machine has 128Mi; no capacity would fit")


def test_a_pod_asks_for_its_arrays_and_its_process() -> None:
    assert too_little(spec(memory="2433Mi"), 2 * GIB) is None
    assert too_little(spec(memory="2433Mi", actors=100), 2 * GIB) is not None
    assert too_little(spec(4, memory="2436Mi", actors=180), 2 * GIB) is None
    found = too_little(spec(memory="2Gi"), 2 * GIB)
    assert found is not None
    assert found.path == ("roles", "replay", "memory")
    assert found.message == (
        "2Gi, but replay.capacity is 1,000,000 rows in 1 shard of 2.0Gi: ask for 3Gi; with 2Gi replay.capacity "
        "640,000 would fit"
    )


def test_a_shard_finds_room_in_what_is_left() -> None:
    assert shortage(spec(), GIB, GIB + PROCESS, 2) == ""
    assert "1.0Gi of memory is left here for one and its process; replay.capacity 540,000 would fit" in shortage(
        spec(), GIB, GIB, 2
    )


def test_more_shards_of_a_run_have_room_beside_those_that_are_there() -> None:
    machine = Machine(cores=2, memory_mib=16 * 1024)
    assert too_many(spec(2), 5 * GIB, 10 * GIB, 1, Machine(cores=2, memory_mib=15.8 * 1024)) == ""
    assert too_many(spec(2), 5 * GIB, 11 * GIB, 1, machine) == (
        "roles.replay.replicas: 1 more of 5.0Gi beside 11.0Gi of those that run; this machine has 16.0Gi; after `rlctl "
        "down`, `rlctl up SPEC --set roles.replay.replicas=2` divides replay.capacity anew"
    )
