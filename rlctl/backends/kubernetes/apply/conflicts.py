"""Conflicts: changes that the server refuses, and fields that other field managers own; detected before anything is
written, and reported together."""

from __future__ import annotations

from collections.abc import Iterator

from rlctl.backends.kubernetes.api.interface import ApiError, Key, Object
from rlctl.backends.kubernetes.api.refusals import (
    REPLICAS_FIELD,
    Refusal,
    Row,
    conflict,
    in_words,
    is_invalid,
    shown_value,
)
from rlctl.backends.kubernetes.apply.drift import compare
from rlctl.backends.kubernetes.apply.survey import Item, Survey
from rlctl.backends.kubernetes.run_state import keys, replicas
from rlctl.backends.kubernetes.run_state.desired_state import DesiredState
from rlctl.backends.kubernetes.run_state.session import Session
from rlctl.errors import Problem, RlctlError, SpecError
from rlctl.spec.names import MANAGER


def check(session: Session, seen: Survey) -> None:
    """Send every change of an existing object, and every new object with a user's patch, as a dry run, which changes
    nothing. New objects without a patch were checked against the schemas when rlctl was built.

    Raises:
        SpecError: the server never takes such an object; lists the patches of each.
        Refusal: fields of other field managers, of all objects; unless they are to be taken over.
        Conflict: the keys of the live run are lost.
        RlctlError: the server refuses a change for another reason.
    """
    if seen.core is None:
        keys.check_not_lost(seen.wanted.run, seen.live_workloads)
    rows: list[Row] = []
    faults: list[Problem] = []
    for item in seen.items:
        if item.live is None:
            faults += _patched(session, item.key, item.document, seen.wanted)
            continue
        if item.what == "change":
            try:
                rows += _dry_run(session, item, seen.wanted)
            except SpecError as error:
                faults += error.problems
        if item.scales and item.count is not None and item.count.whose == "foreign" and not session.force:
            rows.append(replicas.row(item.key, item.count, item.replicas))
    if faults:
        raise SpecError(faults, hint="nothing was changed")
    if rows:
        raise conflict(rows, run=seen.wanted.run)


def _patched(session: Session, key: Key, document: Object, wanted: DesiredState) -> list[Problem]:
    """Faults of a patched object that does not exist yet; any other refusal is raised when it is written."""
    if not wanted.patches(key):
        return []
    try:
        session.api.apply(document, manager=MANAGER, dry_run=True)
    except ApiError as error:
        fault = patch_fault(error, key, wanted)
        return [] if fault is None else fault.problems
    return []


def patch_fault(error: ApiError, key: Key, wanted: DesiredState) -> SpecError | None:
    """The error for a patched object that the server never takes; None for any other error."""
    files = wanted.patches(key)
    if not files or not is_invalid(error):
        return None
    return SpecError(
        [Problem("", f"the cluster does not take {key} with this patch: {error.message}", ", ".join(files))]
    )


def refusal_of(session: Session, error: ApiError, key: Key, wanted: DesiredState) -> RlctlError:
    """Error for the user when a dry run of a change is refused."""
    return patch_fault(error, key, wanted) or in_words(error, "patch", key, session.api, written=False)


def _dry_run(session: Session, item: Item, wanted: DesiredState) -> list[Row]:
    assert item.live is not None
    try:
        session.api.apply(
            item.sent, manager=MANAGER, force=session.force, dry_run=True, uid=item.live["metadata"]["uid"]
        )  # fmt: skip
    except ApiError as error:
        if not error.conflicts:
            raise refusal_of(session, error, item.key, wanted) from error
        return list(_rows(item, error))
    return []


def conflict_of(item: Item, error: ApiError, run: str) -> Refusal:
    """The error for a conflict that the dry run did not show."""
    return conflict(_rows(item, error), run=run)


def _rows(item: Item, error: ApiError) -> Iterator[Row]:
    drift = {} if item.live is None else {str(each): each for each in compare(item.document, item.live)}
    for found in error.conflicts:
        each = drift.get(found.field)
        if each is not None:
            theirs, ours = shown_value(each.theirs), shown_value(each.ours)
        elif found.field == REPLICAS_FIELD and item.count is not None:
            theirs, ours = str(item.count.value), str(item.replicas)
        else:
            theirs, ours = "?", "?"
        yield Row(str(item.key), found.field, found.owner, theirs, ours)
