"""`history` and `rollback`: revisions are stored as they were sent, so a rollback renders nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rlctl.backends.base import Applied, Revision
from rlctl.backends.kubernetes.api.interface import Api, Key, Object
from rlctl.backends.kubernetes.apply.scaling import known
from rlctl.backends.kubernetes.apply.up import apply
from rlctl.backends.kubernetes.run_state.desired_state import (
    DesiredState,
    described,
    number_of,
    of_revision,
    revision_key,
)
from rlctl.backends.kubernetes.run_state.owner import check_owner
from rlctl.backends.kubernetes.run_state.record import Record
from rlctl.backends.kubernetes.run_state.session import Session
from rlctl.backends.revisions import check_fits, missing, rollback_note
from rlctl.spec.names import COMPONENT, document_name, selector


def revisions(api: Api, run: str) -> list[Revision]:
    """Revisions of a run, in two requests; see KubernetesBackend.revisions."""
    record = known(api, run)
    found = api.list("ConfigMap", labels=f"{selector(run)},{COMPONENT}=revision").items
    kept = []
    for thing in found:
        number = number_of(Key("ConfigMap", thing["metadata"]["name"]), run)
        if number is not None and number <= record.state.revision:
            kept.append(described(thing))
    return sorted(kept, key=lambda revision: revision.number, reverse=True)


def rollback(session: Session, run: str, number: int) -> Iterator[Applied]:
    """Apply a revision again; see KubernetesBackend.rollback."""
    record = known(session.api, run)
    check_owner(session, record, "rollback")
    found = _stored(session.api, record, number)
    check_fits(record.state, described(found))
    wanted = of_revision(found, run, record.state.uid)
    if number != record.state.revision:
        wanted = _with_claims_of(kept(session.api, record, record.state.revision), wanted)
    yield from apply(session, replace(wanted, note=rollback_note(number)), "rollback")


def _with_claims_of(present: DesiredState, wanted: DesiredState) -> DesiredState:
    """A revision with the volume claim of the present one, which may have grown since: a volume never shrinks."""
    claims = [key for key in wanted.objects if key.kind == "PersistentVolumeClaim" and key in present.objects]
    names = {document_name(*key) for key in claims}
    documents = {document.name: document for document in present.documents if document.name in names}
    storage = {**(wanted.spec.get("storage") or {}), "size": (present.spec.get("storage") or {}).get("size")}
    return replace(
        wanted,
        documents=tuple(documents.get(document.name, document) for document in wanted.documents),
        objects={**wanted.objects, **{key: present.objects[key] for key in claims}},
        spec={**wanted.spec, "storage": storage} if claims else wanted.spec,
    )


def kept(api: Api, record: Record, number: int) -> DesiredState:
    """The wanted objects of a revision.

    Raises:
        Conflict: it is not kept.
    """
    return of_revision(_stored(api, record, number), record.state.run, record.state.uid)


def _stored(api: Api, record: Record, number: int) -> Object:
    run = record.state.run
    found = api.get(revision_key(run, number)) if 0 < number <= record.state.revision else None
    if found is None:
        raise missing(run, number, [revision.number for revision in revisions(api, run)])
    return found
