"""Check of a spec's environment, networks and algorithms on this machine: its start, its report and its refusals."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rlctl.cli.context import ON_CLUSTERS, World
from rlctl.errors import SpecError

if TYPE_CHECKING:
    from rlctl.backends.base import Check
    from rlctl.cli.models.initial import Initial
    from rlctl.probe import Probed, Probing
    from rlctl.spec import Loaded
    from rlctl.spec.problems.messages import Fault


@contextmanager
def started_check(
    world: World, loaded: Loaded, initial: Initial | None = None, *, measure: bool = False
) -> Iterator[Probing | None]:
    """Start the child; `answer` fetches its result. None for a cluster, where all of it is in the image.

    Args:
        initial: initial policy of the run, which has to fit its network.
        measure: check for a cluster too if there is a replay, to measure its memory.
    """
    from rlctl.spec import fields

    if loaded.spec.target in ON_CLUSTERS and not (measure and fields.normal(loaded.spec).replay):
        yield None
        return
    with world.probe(loaded.spec, loaded.base, {} if initial is None else initial.plain()) as probing:
        yield probing


def refuse(world: World, loaded: Loaded, probed: Probed) -> None:
    """Refuse a spec that this machine cannot run.

    Raises:
        SpecError: a thing it names is missing or does not fit, or the replay needs more memory than there is.
    """
    from rlctl.spec import Machine
    from rlctl.spec.problems.replay import too_large

    large = None
    if probed.shard_bytes:
        machine = world.machine or Machine.here()
        large = too_large(loaded.spec, probed.shard_bytes, machine, probed.draws_bytes)
    if faults := [*probed.faults, *([large] if large else [])]:
        raise SpecError([loaded.problem(fault) for fault in faults])


def replay_memory(loaded: Loaded, probed: Probed) -> str:
    """Memory of the replay, and its size in generations; "" without one, or where the spaces are not known."""
    from rlctl.spec.problems.replay import comes_to, volume_holds

    told = [each(loaded.spec, probed.shard_bytes) for each in (comes_to, volume_holds)] if probed.shard_bytes else []
    return "; ".join(filter(None, told))


def asks_too_little(loaded: Loaded, probed: Probed | None) -> list[Fault]:
    """Finding about replay pods that request less memory than a shard needs; [] if they do not."""
    from rlctl.spec.problems.replay import too_little

    if probed is None or not probed.shard_bytes or loaded.spec.target not in ON_CLUSTERS:
        return []
    found = too_little(loaded.spec, probed.shard_bytes, probed.draws_bytes)
    return [found] if found else []


def as_checks(loaded: Loaded, probed: Probed) -> list[Check]:
    """The result as preflight checks of `up`."""
    from rlctl.backends.base import Check
    from rlctl.spec.problems.findings import trackers_missing

    missing = (*probed.missing, *trackers_missing(loaded.spec))
    lacking = [Check("packages", "problem", str(loaded.problem(fault))) for fault in missing]
    text = replay_memory(loaded, probed)
    replay = [Check("replay", "ok", text)] if text else []
    return lacking or [Check("environment", "ok" if probed.verdict == "ok" else "not checked", probed.text), *replay]


def as_plain(probed: Probed) -> dict[str, Any]:
    """The result as `-o json` has it."""
    told = {"verdict": probed.verdict, "text": probed.text, "inputs": probed.inputs}
    return told | ({"replay_shard_bytes": probed.shard_bytes} if probed.shard_bytes else {})
