"""`rlctl history` lists what a run can go back to; `rlctl rollback` goes back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlctl.cli.apply.applied import follow
from rlctl.cli.apply.diff_lines import say_changes
from rlctl.cli.context import Signalled, World
from rlctl.cli.options import (
    RunArgument,
    RunOption,
    TakeOver,
    Target,
    Utc,
    verb,
)
from rlctl.cli.run.prepare import stored_spec
from rlctl.cli.run.target import find, one_name
from rlctl.cli.text import moment_of, rfc3339, table
from rlctl.errors import Conflict, RlctlError

if TYPE_CHECKING:
    from rlctl.backends.base import Revision, RunState
    from rlctl.changes import Change

_SHOWN_DIGITS = 12


@verb("namespace", "context")
def history(
    world: World,
    run: RunArgument = None,
    run_option: RunOption = None,
    target: Target = None,
    utc: Utc = False,
) -> int:
    """List the revisions that a run can go back to.

    Every `up` that changed something is one, newest first; the first is what runs. A rollback is one too.
    """
    backend, state = find(world, one_name(run, run_option), target)
    revisions = backend.revisions(state.run)
    rows = [("REVISION", "WHEN", "WHO", "RLCTL", "IMAGES", "NOTE")]
    for revision in revisions:
        when = moment_of(revision.at, utc=utc)
        images = ", ".join(f"{name} {_short(image)}" for name, image in revision.images.items()) or "-"
        who = revision.by or "-"
        rows.append((str(revision.number), when, who, revision.rlctl_version, images, revision.note))
    if revisions:
        world.lines(table(rows))
    else:
        world.say(f"no revision of {state.run} is recorded")
    world.document({"run": state.run, "revisions": [_as_plain(revision) for revision in revisions]})
    return 0


@verb("namespace", "context")
def rollback(
    world: World,
    revision: Annotated[
        int | None, typer.Argument(metavar="REV", help="As `rlctl history` numbers them; default: the one before.")
    ] = None,
    dry: Annotated[bool, typer.Option("--dry-run", help="Show what it would change, and change nothing.")] = False,
    run: RunOption = None,
    target: Target = None,
    force_conflicts: TakeOver = False,
) -> int:
    """Go back to what was applied before.

    The documents of that revision are applied again as they are, as a new revision: nothing is rendered, the data of
    the run stays, and `rlctl rollback` once more undoes it.
    """
    backend, state = find(world, run, target)
    wanted = _wanted(state, backend.revisions(state.run), revision)
    changes = _changes(state, wanted)
    say_changes(world, changes)
    refused = [change.why for change in changes if change.action == "refuse"]
    if refused:
        raise Conflict(
            f"run {state.run} cannot go back to revision {wanted.number}:\n" + "\n".join(f"  {why}" for why in refused),
            hint=f"rlctl history {state.run}",
            objects=(state.run,),
        )
    backend.force_conflicts = force_conflicts
    try:
        done = [] if dry else follow(world, backend.rollback(state.run, wanted.number))
    except KeyboardInterrupt:
        way_on = f"rlctl rollback {wanted.number} --run {state.run} goes on"
        raise Signalled(130, f"left {state.run} half rolled back; {way_on}") from None
    except RlctlError as error:  # once it is recorded, no number means the revision that was to be left
        error.hint = error.hint.replace("the same command", f"`rlctl rollback {wanted.number} --run {state.run}`")
        raise
    if dry:
        world.say(f"dry run: {state.run} stays at revision {state.revision}")
    else:
        world.say(f"{state.run} runs revision {wanted.number} again; rlctl status {state.run} says how it does")
    world.document(
        {
            "run": state.run,
            "from": state.revision,
            "to": wanted.number,
            "dryRun": dry,
            "changes": changes,
            "applied": done,
        }
    )
    return 0


def _wanted(state: RunState, revisions: list[Revision], number: int | None) -> Revision:
    """The revision of that number, or the one before the present one.

    Raises:
        Conflict: it is not kept; the message lists those that are.
    """
    before = [revision for revision in revisions if revision.number < state.revision]
    if number is None and before:
        return before[0]
    found = next((revision for revision in revisions if revision.number == number), None)
    if found is None:
        kept = ", ".join(str(revision.number) for revision in revisions) or "none"
        which = "revision before the present one" if number is None else f"revision {number}"
        raise Conflict(f"run {state.run} has no {which}; kept: {kept}", hint=f"rlctl history {state.run}")
    return found


def _changes(state: RunState, wanted: Revision) -> list[Change]:
    """Changes that a rollback makes to the live run; empty when this release cannot read one of the two specs."""
    from pydantic import ValidationError

    from rlctl.backends.revisions import KEPT_AS_IT_IS
    from rlctl.changes import changes
    from rlctl.spec.schema import Spec

    try:
        found = changes(stored_spec(state), Spec.model_validate(dict(wanted.spec)))
    except (ValidationError, RlctlError):
        return []
    return [change for change in found if change.path != KEPT_AS_IT_IS]


def _short(image: str) -> str:
    """Tag and digest of an image, as far as a person compares them."""
    from rlctl.image_names import Reference

    named = Reference.try_parse(image)
    if named is None or not named.digest:
        return image
    digest = named.digest.removeprefix("sha256:")[:_SHOWN_DIGITS]
    return f"{named.tag}@{digest}" if named.tag else digest


def _as_plain(revision: Revision) -> dict[str, Any]:
    return {
        "revision": revision.number,
        "at": rfc3339(revision.at),
        "by": revision.by,
        "rlctl": revision.rlctl_version,
        "images": dict(revision.images),
        "note": revision.note,
        "spec": dict(revision.spec),
    }
