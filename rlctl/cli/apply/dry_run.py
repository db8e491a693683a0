"""`up --dry-run`: documents that would be sent, and what they would change; sends nothing."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from rlctl.cli.apply import diff_lines, spec_check
from rlctl.cli.apply.preflight import nothing_to_do, preflight
from rlctl.cli.context import ON_CLUSTERS, World
from rlctl.cli.models.initial import initial
from rlctl.cli.run.prepare import Rendered, check_place, load, offline, prepare, refuse, say_notes


class DryRun(StrEnum):
    """Choices of `--dry-run`."""

    client = "client"
    server = "server"


def dry_run(
    world: World, specs: Sequence[Path], sets: Sequence[str] | None, target: str | None, how: DryRun, *,
    force_conflicts: bool, pull: bool = False,
) -> int:  # fmt: skip
    """Print what `up` would send and change; returns 0.

    client: documents alone where the target is a cluster, which is not asked. server: the cluster judges every object
    and says what would change in it.

    Raises:
        SpecError, Conflict: `up` itself would raise it.
        UsageError: as `up`.
    """
    loaded = load(world, specs, sets, target)
    check_place(world, loaded, pull=pull)
    if how is DryRun.client and loaded.spec.target in ON_CLUSTERS:
        return _sent(world, offline(world, loaded, pull=pull))
    with initial(world, loaded) as policy, spec_check.started_check(world, loaded, policy) as asked:
        prepared = prepare(world, loaded, mint=False, pull=pull)
        prepared.backend.force_conflicts = force_conflicts
        say_notes(world, prepared)
        refuse(prepared)
        idle = nothing_to_do(prepared)
        looked_at = [] if idle else preflight(world, prepared, asked)
    if idle:
        world.say(f"{prepared.plan.run} has already finished; `rlctl up` would start nothing")
    if prepared.state is None:
        world.say(f"{prepared.plan.run} does not exist; `rlctl up` would create all of it")
    diff_lines.say_changes(world, prepared.changes)
    found = [] if idle else diff_lines.tell(world, prepared.backend.differences(prepared.plan, prepared.documents))
    world.say("dry run: nothing was changed")
    world.document(
        {
            "run": prepared.plan.run,
            "dryRun": how.value,
            "exists": prepared.state is not None,
            "changes": prepared.changes,
            "objects": found,
            "preflight": looked_at,
        }
    )
    return 0


def _sent(world: World, rendered: Rendered) -> int:
    """Print the objects and their sizes; what they would change is known to the cluster alone."""
    say_notes(world, rendered)
    documents = rendered.documents
    for document in documents:
        world.data(f"{len(document.text.encode()):>9,}  {document.name}")
    size = sum(len(document.text.encode()) for document in documents)
    world.say(f"{len(documents)} objects, {size:,} bytes of YAML; `rlctl render` prints them")
    for role in rendered.plan.roles:
        world.say(f"  {role.replicas:>6,} of {role.role}")
    world.say("dry run: nothing was sent; what it changes only the cluster knows: --dry-run server, or rlctl diff")
    world.document(
        {
            "run": rendered.plan.run,
            "dryRun": "client",
            "replicas": {role.role: role.replicas for role in rendered.plan.roles},
            "documents": [
                {"name": document.name, "role": document.role, "bytes": len(document.text.encode())}
                for document in documents
            ],
        }
    )
    return 0
