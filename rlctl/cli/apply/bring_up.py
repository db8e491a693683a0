"""Application of a prepared spec to its target, and its undoing for `--atomic`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Final

from rlctl.cli.apply.applied import follow, nothing_done
from rlctl.cli.context import ON_CLUSTERS, World
from rlctl.cli.run.prepare import Prepared, by_field
from rlctl.errors import Left, PartlyApplied, RlctlError, TimedOut, WorkloadFailed

MOST_MODULES: Final = 10_000
"""Files below `code.path` that are looked at, at most, whether they are newer than what runs."""

if TYPE_CHECKING:
    from rlctl.backends.base import Applied, RunState
    from rlctl.cli.models.initial import Initial
    from rlctl.spec.base import Role


def bring_up(world: World, prepared: Prepared, *, atomic: bool, policy: Initial | None = None) -> list[Applied]:
    """Apply a prepared spec to its target, and print the changes as they happen.

    Args:
        policy: initial policy of a new run.

    Raises:
        Left, PartlyApplied, WorkloadFailed, TimedOut, Conflict, BackendUnreachable: raised by the target.
    """
    state = prepared.state
    for change in by_field(prepared.changes):
        world.say(f"{change.action}: {change.why}")
    if state is not None:
        for role, replicas in state.replicas.items():
            wanted = next((entry.replicas for entry in prepared.plan.roles if entry.role == role), replicas)
            if replicas != wanted and state.spec_replicas.get(role) == wanted:
                world.say(f"keeping {replicas} of {role} (the spec says {wanted}, and did before)")
    try:
        done = follow(world, prepared.backend.apply(prepared.plan, prepared.documents, prepared.stored, initial=policy))
    except Left:  # nothing has failed
        raise
    except (PartlyApplied, WorkloadFailed, TimedOut) as error:  # a target may see at once that it will not run
        if atomic:
            undone = undo(world, prepared)
            remedy = error.remedy if isinstance(error, PartlyApplied) else ""
            error.hint = f"{remedy} {undone}".strip()
        raise
    if nothing_done(done):
        world.say(f"{prepared.plan.run}: unchanged")
    return done


def say_newer_code(world: World, prepared: Prepared) -> None:
    """Say which roles of a run that was not changed run with older code than there is below `code.path`.

    On one machine it is in no image, and an edit of it is no change of the spec. It is a hint: what cannot be read, or
    asked, is left out.
    """
    from rlctl.spec.cluster import IMAGE_OF

    plan = prepared.plan
    if plan.target in ON_CLUSTERS or plan.code_path is None:
        return
    newest, file = 0.0, ""
    for path in islice(modules(plan.code_path), MOST_MODULES):
        with suppress(OSError):  # an editor has just replaced it
            newest, file = max((newest, file), (os.stat(path).st_mtime, path))
    older: set[Role] = set()
    with suppress(RlctlError):  # it ends just now
        older = {
            process.role
            for process in prepared.backend.processes(plan.run)
            if IMAGE_OF[process.role] != "core" and process.started is not None and process.started.timestamp() < newest
        }
    if older:
        world.say(f"  {file} is newer than what runs; to bring it:")
        for role in sorted(older):
            world.say(f"    rlctl restart {role} --run {plan.run}")


def modules(folder: str) -> Iterator[str]:
    """Python files of a folder and those below it, without virtual environments and hidden folders."""
    for here, folders, files in os.walk(folder):
        folders[:] = [
            name for name in folders if name[0] != "." and not os.path.exists(os.path.join(here, name, "pyvenv.cfg"))
        ]  # pathlib raises what it may not look at
        yield from (os.path.join(here, name) for name in files if name.endswith(".py"))


def undo(world: World, prepared: Prepared) -> str:
    """Undo an `up`: roll back to the revision before, or stop or remove a run that did not run. Earlier data stays.

    Returns:
        A sentence on what was done, or why it could not be undone: the error that led here is the one to raise.
    """
    backend, before, run = prepared.backend, prepared.state, prepared.plan.run
    try:
        if before is None and not prepared.remains:
            world.mention(f"--atomic: removing {run}, which was not there before")
            follow(world, backend.delete(run, volumes=True, grace_s=backend.grace_s), heard=False)
            return f"{run} is removed again"
        if before is None or before.phase != "running":
            world.mention(f"--atomic: stopping {run}, which did not run before")
            follow(world, backend.delete(run, volumes=False, grace_s=backend.grace_s), heard=False)
            return f"{run} is stopped again; its data stays"
        if before.revision == 0:
            return f"nothing of {run} was undone: no `up` of it has ever come to its end, so there is no way back"
        # even if the revision is unchanged: an `up` raises it in its last write, after all the others
        world.mention(f"--atomic: rolling {run} back to revision {before.revision}")
        done = follow(world, backend.rollback(run, before.revision), heard=False)
        if scaled := _scaled(before, backend.find(run)):
            done += follow(world, backend.scale(run, scaled), heard=False)
        if nothing_done(done):
            return f"revision {before.revision} of {run} runs as before: there was nothing to roll back"
        return f"{run} is rolled back to revision {before.revision}"
    except RlctlError as error:
        return f"it could not be undone: {error.message}" + (f"; {error.hint}" if error.hint else "")


def _scaled(before: RunState, now: RunState | None) -> dict[str, int]:
    """Replicas that `rlctl scale` had set, where the rollback has restored the spec's number."""
    if now is None:
        return {}
    return {role: count for role, count in before.replicas.items() if now.replicas.get(role) != count}
