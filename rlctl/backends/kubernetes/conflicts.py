"""Fields that are somebody else's: found before anything is written, and told all at once."""

from __future__ import annotations

from collections.abc import Iterator

from rlctl.backends.kubernetes import keys, replicas
from rlctl.backends.kubernetes.api import ApiError
from rlctl.backends.kubernetes.drift import compare
from rlctl.backends.kubernetes.names import MANAGER
from rlctl.backends.kubernetes.refusals import Refusal, Row, conflict, in_words, shown_value
from rlctl.backends.kubernetes.session import Session
from rlctl.backends.kubernetes.survey import Item, Survey


def check(session: Session, seen: Survey) -> None:
    """Ask the server what it thinks of every change to what is there; it changes nothing.

    Raises:
        Refusal: fields that belong to somebody else, of all objects; unless they are to be taken over.
        Conflict: the keys of the live run are lost.
        RlctlError: it refuses a change for another reason.
    """
    if seen.core is None:
        keys.check_not_lost(seen.wanted.run, seen.live_workloads)
    rows = []
    for item in seen.items:
        if item.live is None:
            continue
        if item.what == "change":
            rows += _asked(session, item)
        if item.scales and item.count is not None and item.count.whose == "foreign" and not session.force:
            rows.append(replicas.row(item.key, item.count, item.replicas))
    if rows:
        raise conflict(rows, run=seen.wanted.run)


def _asked(session: Session, item: Item) -> list[Row]:
    assert item.live is not None
    document = item.document
    if item.count is not None and item.count.whose == "unfinished":  # as it will be sent: the number is given up later
        document = {**document, "spec": {**document["spec"], "replicas": item.count.value}}
    try:
        session.api.apply(
            document, manager=MANAGER, force=session.force, dry_run=True, uid=item.live["metadata"]["uid"]
        )  # fmt: skip
    except ApiError as error:
        if not error.conflicts:
            raise in_words(error, "patch", item.key, session.api.namespace, written=False) from error
        return list(_rows(item, error))
    return []


def refused(item: Item, error: ApiError, run: str) -> Refusal:
    """The error for a conflict that came up only now."""
    return conflict(_rows(item, error), run=run)


def _rows(item: Item, error: ApiError) -> Iterator[Row]:
    drift = {} if item.live is None else {str(each): each for each in compare(item.document, item.live)}
    for found in error.conflicts:
        each = drift.get(found.field)
        if each is not None:
            theirs, ours = shown_value(each.theirs), shown_value(each.ours)
        elif found.field == ".spec.replicas" and item.count is not None:
            theirs, ours = str(item.count.value), str(item.replicas)
        else:
            theirs, ours = "?", "?"
        yield Row(str(item.key), found.field, found.owner, theirs, ours)
