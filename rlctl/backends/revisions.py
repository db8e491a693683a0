"""Revisions of a run on every target: which ones fit a live run, and their authors."""

from __future__ import annotations

import getpass
import os
import re
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import ValidationError

from rlctl.backends.base import Revision, RunState
from rlctl.changes import changes
from rlctl.errors import Conflict
from rlctl.spec.schema import Spec

KEPT_AS_IT_IS: Final = "storage.size"
"""Field that a rollback leaves as it is: a volume never shrinks."""
KEPT: Final = 5
"""Number of revisions kept, the newest ones."""


def user() -> str:
    """Name of the user that runs this command, else the user id: a container may run as a user without a name."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return str(os.getuid())


def by() -> str:
    """Author of a revision: user@host."""
    return f"{user()}@{socket.gethostname()}"


def rollback_note(number: int) -> str:
    """Note of a revision that is a rollback to an older one."""
    return f"rollback to {number}"


def rolled_back_to(note: str) -> int | None:
    """Number of the older revision in the note of a rollback; None: the note is of no rollback."""
    found = re.fullmatch(r"rollback to (\d+)", note)
    return None if found is None else int(found[1])


def images_of(spec: Mapping[str, Any]) -> dict[str, str]:
    """The images that a spec names."""
    return {name: image for name, image in (spec.get("images") or {}).items() if isinstance(image, str)}


def check_fits(state: RunState, revision: Revision) -> None:
    """Check that a live run can be rolled back to a revision.

    Raises:
        Conflict: the rollback would change a field that is fixed for the life of the run.
    """
    try:
        refused = [
            change.why
            for change in changes(Spec.model_validate(dict(state.spec)), Spec.model_validate(dict(revision.spec)))
            if change.action == "refuse" and change.path != KEPT_AS_IT_IS
        ]
    except ValidationError:  # spec of another release: its documents are applied as they are
        return
    if refused:
        raise Conflict(
            f"run {state.run} cannot go back to revision {revision.number}: {'; '.join(refused)}",
            hint=f"rlctl history {state.run}",
            objects=(state.run,),
        )


def missing(run: str, number: int, kept: Sequence[int]) -> Conflict:
    """The error for a revision that is not kept."""
    listed = ", ".join(map(str, kept)) or "none"
    return Conflict(f"run {run} has no revision {number}; kept: {listed}", hint=f"rlctl history {run}", objects=(run,))
