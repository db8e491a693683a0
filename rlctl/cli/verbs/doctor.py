"""`rlctl doctor`: checks of a target, before anything is tried on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlctl.cli.context import ON_CLUSTERS, Cluster, World
from rlctl.cli.display import checks
from rlctl.cli.options import Target, verb
from rlctl.cli.run.clusters import all_recorded, cluster_of, wanted_target, where
from rlctl.errors import RlctlError

if TYPE_CHECKING:
    from rlctl.backends.base import Check


@verb("namespace", "context")
def doctor(
    world: World,
    target: Target = None,
) -> int:
    """Check whether a target can be used.

    Access, rights, versions, room. Exit 1 when something stands in the way, 0 when nothing does. Without -t this
    machine, and the clusters' target once a run of yours is there. What it may not look at is "not checked".
    """
    found: dict[str, list[Check]] = {}
    for name, cluster in _targets(world, target):
        title, listed = _look(world, name, cluster)
        found[title if name in found else name] = listed
        world.data(world.bold(title))
        world.lines(checks.as_lines(listed, "  "))
    everything = [check for listed in found.values() for check in listed]
    wrong = checks.problems(everything)
    world.say(f"{len(wrong)} of {len(everything)} checks found a problem" if wrong else "nothing stands in the way")
    if not ON_CLUSTERS & set(found):
        world.say("  a cluster     rlctl doctor -t kubernetes")
    world.document({"healthy": not wrong, "targets": found})
    return int(bool(wrong))


def _targets(world: World, target: str | None) -> list[tuple[str, Cluster | None]]:
    """Targets to check: the one named, else this machine and each cluster that a run is recorded on."""
    chosen = wanted_target(world, target)
    if chosen is not None:
        return [(chosen, None)]
    here: list[tuple[str, Cluster | None]] = [(name, None) for name in world.target_names() if name not in ON_CLUSTERS]
    away = {(entry.target, cluster_of(entry)): None for entry in all_recorded() if entry.target in ON_CLUSTERS}
    return [*here, *away]


def _look(world: World, name: str, cluster: Cluster | None) -> tuple[str, list[Check]]:
    """Title and checks of a target; one that cannot be reached is a problem of its own."""
    from rlctl.backends.base import Check

    try:
        backend = world.backend(name, cluster)
        return where(backend, name), backend.doctor()
    except RlctlError as error:
        named = [f"{what} {value}" for what, value in (cluster or Cluster())._asdict().items() if value]
        return ", ".join([name, *named]), [Check("access", "problem", error.message, error.hint)]
