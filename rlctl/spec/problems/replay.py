"""Memory of a replay: how much its capacity takes, and whether a machine or a pod has it."""

from __future__ import annotations

import math

from rlctl.spec import fields
from rlctl.spec.machine import Machine
from rlctl.spec.problems.messages import Fault
from rlctl.spec.schema import ReplayBuffer, Spec
from rlctl.spec.units import mebibytes

STARTED_BYTES = 64 * 2**20
"""Bytes of a shard's process when it has begun."""
PROCESS_BYTES = STARTED_BYTES + 320 * 2**20
"""Bytes of a shard's process beside its arrays: what it begins with, and MiB that it keeps at most of draws that may be
asked for again (128), of rows on their way to a slow disk (128), and of blocks that are not stored yet (64)."""
CONNECTION_BYTES = 90 * 2**10
"""Bytes that a shard keeps of each actor's connection; see `rlctl.spec.roles.manager_mib`."""
READING_BYTES = 50
"""Bytes for each row while a shard reads its part of a generation: its order, masses and windows; measured, at most."""
ROOM = 0.8
"""Share of the memory that a suggested capacity takes: other processes need memory, too."""


def comes_to(spec: Spec, shard_bytes: int, shards: int = 0) -> str:
    """`100,000 rows in 2 shards of 1.2Gi, 2.4Gi in all`

    Args:
        shard_bytes: of the arrays of one shard.
        shards: how many there are; 0: as many as the spec says.
    """
    replay, wanted = _replay(spec)
    shards = shards or wanted
    if shards == 1:
        return f"{replay.capacity:,} rows in 1 shard of {gibibytes(shard_bytes)}"
    return (
        f"{replay.capacity:,} rows in {shards} shards of {gibibytes(shard_bytes)}, "
        f"{gibibytes(shards * shard_bytes)} in all"
    )


def volume_holds(spec: Spec, shard_bytes: int) -> str:
    """`generations hold it: up to 28.6Gi of the volume, checkpoint.keep 3 and one that is written`; "" where they hold
    nothing of it.
    """
    replay, shards = _replay(spec)
    if replay.checkpoint == "none":
        return ""
    keep = fields.normal(spec).checkpoint.keep
    size = gibibytes((keep + 1) * shards * shard_bytes)
    return f"generations hold it: up to {size} of the volume, checkpoint.keep {keep} and one that is written"


def _process_bytes(spec: Spec, shards: int, draws_bytes: int = 0) -> int:
    """Bytes of a shard's process beside its arrays: an actor sends to one shard.

    Args:
        draws_bytes: of large draws, beyond those that PROCESS_BYTES has.
    """
    actor = spec.roles.actor
    return PROCESS_BYTES + draws_bytes + CONNECTION_BYTES * -(-(actor.max_replicas or actor.replicas) // shards)


def _reading(spec: Spec, shards: int) -> int:
    """Bytes of one shard beside its arrays, while it reads its part of a generation."""
    replay, _ = _replay(spec)
    return READING_BYTES * replay.capacity // shards if replay.checkpoint == "full" else 0


def too_large(spec: Spec, shard_bytes: int, machine: Machine, draws_bytes: int = 0) -> Fault | None:
    """The fault of a replay whose shards, all on one machine, need more memory than it has."""
    _, shards = _replay(spec)
    has = int(machine.memory_mib * 2**20)
    needs, beside = shard_bytes + _reading(spec, shards), _process_bytes(spec, shards, draws_bytes)
    if shards * (needs + beside) <= has:
        return None
    left = has / shards - beside
    message = f"{comes_to(spec, shard_bytes)}; this machine has {gibibytes(has)}; {would_fit(spec, needs, left)}"
    return Fault(("replay", "capacity"), message)


def too_little(spec: Spec, shard_bytes: int, draws_bytes: int = 0) -> Fault | None:
    """The finding of a pod that asks for less memory than its shard needs."""
    replay = fields.normal(spec).roles.replay
    shards = _replay(spec)[1]
    rows, beside = shard_bytes + _reading(spec, shards), _process_bytes(spec, shards, draws_bytes)
    needs = rows + beside
    if replay is None or needs <= mebibytes(replay.memory) * 2**20:
        return None
    left = mebibytes(replay.memory) * 2**20 - beside
    message = (
        f"{replay.memory}, but replay.capacity is {comes_to(spec, shard_bytes)}: ask for {math.ceil(needs / 2**30)}Gi;"
        f" with {replay.memory} {would_fit(spec, rows, left)}"
    )
    return Fault(("roles", "replay", "memory"), message)


def shortage(spec: Spec, shard_bytes: int, left_bytes: float, shards: int, draws_bytes: int = 0) -> str:
    """Reason why a shard that has just begun does not fit into the memory that is left; "" where it does.

    Args:
        left_bytes: of the machine, or of the pod.
        shards: how many there are.
    """
    needs, beside = shard_bytes + _reading(spec, shards), _process_bytes(spec, shards, draws_bytes) - STARTED_BYTES
    if needs + beside <= left_bytes:
        return ""
    return (
        f"replay.capacity: {comes_to(spec, shard_bytes, shards)}; {gibibytes(left_bytes)} of memory is left here for "
        f"one and its process; {would_fit(spec, needs, left_bytes - beside)}"
    )


def too_many(spec: Spec, shard_bytes: int, held_bytes: int, more: int, machine: Machine) -> str:
    """Reason why more shards on one machine do not fit beside those that run; "" where they do.

    Args:
        spec: with as many shards as are wanted.
        shard_bytes: of the arrays of one of them.
        held_bytes: of the arrays of all shards that run, which keep their size.
        more: number of shards to be started.
    """
    shards, has = _replay(spec)[1], int(machine.memory_mib * 2**20)
    if held_bytes + more * (shard_bytes + _reading(spec, shards)) + shards * _process_bytes(spec, shards) <= has:
        return ""
    return (
        f"roles.replay.replicas: {more} more of {gibibytes(shard_bytes)} beside {gibibytes(held_bytes)} of those that "
        f"run; this machine has {gibibytes(has)}; after `rlctl down`, `rlctl up SPEC --set roles.replay.replicas="
        f"{shards}` divides replay.capacity anew"
    )


def would_fit(spec: Spec, shard_bytes: int, left_bytes: float) -> str:
    """`replay.capacity 400,000 would fit`: over all shards, rounded down to two digits."""
    capacity = _replay(spec)[0].capacity * ROOM * max(left_bytes, 0.0) / shard_bytes
    if capacity < 1:
        return "no capacity would fit"
    scale = 10 ** max(math.floor(math.log10(capacity)) - 1, 0)
    return f"replay.capacity {int(capacity // scale * scale):,} would fit"


def gibibytes(size: float) -> str:
    """`1.2Gi`; below one GiB `310Mi` or `0.4Mi`."""
    if size >= 2**30:
        return f"{size / 2**30:,.1f}Gi"
    return f"{size / 2**20:.{1 if size < 10 * 2**20 else 0}f}Mi"


def _replay(spec: Spec) -> tuple[ReplayBuffer, int]:
    """The replay, and the number of its shards."""
    plain = fields.normal(spec)
    return plain.replay or ReplayBuffer(), plain.replay_shards
