"""Revisions of a run, stored beside its state: what each changed `up` applied, for a rollback."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rlctl.backends.base import Document, Revision, RunState
from rlctl.backends.files import broken, read_json, to_json, write
from rlctl.backends.local.state.places import Place
from rlctl.backends.revisions import KEPT, by, images_of, missing
from rlctl.plan import Plan, RolePlan
from rlctl.spec.base import ROLES
from rlctl.spec.layout import Layout

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Kept:
    """One revision with all that is needed to apply it again."""

    revision: Revision
    plan: Plan  # with the parts that `apply` needs, as the documents are rendered already
    documents: list[Document]


def keep(
    place: Place, stored: RunState | None, present: RunState, documents: Sequence[Document], note: str = ""
) -> None:  # fmt: skip
    """Store the present revision, unless it is stored already. To be called before its state is written: a kill in
    between leaves a revision that no state refers to, and the next `up` replaces it.

    Args:
        place: place of the run.
        stored: state on disk; None: nothing was applied.
        present: state that is being applied.
        documents: documents of `present`.
        note: why it was made.

    Raises:
        OSError: it cannot be written.
    """
    path = _file(place.layout, present.revision)
    if stored is not None and stored.revision == present.revision and path.exists():
        return
    path.parent.mkdir(mode=0o700, exist_ok=True)
    content: dict[str, Any] = {
        "format": _FORMAT,
        "number": present.revision,
        "at": datetime.now(UTC).isoformat(),
        "by": by(),
        "note": note,
        "rlctl_version": present.rlctl_version,
        "spec": present.spec,
        "hashes": present.hashes,
        "spec_replicas": present.spec_replicas,
        "code": present.code,
        "documents": [asdict(document) for document in documents],
    }
    write(path, to_json(content))


def drop_old(layout: Layout, newest: int) -> None:
    """Remove all but the newest revisions; the data of the run is not affected."""
    for number in numbers(layout):
        if number <= newest - KEPT:
            _file(layout, number).unlink(missing_ok=True)


def numbers(layout: Layout) -> list[int]:
    """Numbers of the stored revisions, newest first."""
    found = (path.stem for path in _folder(layout).glob("*.json"))
    return sorted((int(stem) for stem in found if stem.isascii() and stem.isdigit()), reverse=True)


def revisions(place: Place, known: RunState | None) -> list[Revision]:
    """Revisions that can be rolled back to, newest first.

    Raises:
        BackendUnreachable: one of the files is torn or foreign.
    """
    if known is None:
        return []
    return [read(place, known, number).revision for number in numbers(place.layout) if number <= known.revision]


def read(place: Place, known: RunState, number: int) -> Kept:
    """Read one revision.

    Raises:
        Conflict: it is not kept.
        BackendUnreachable: its file is torn or foreign.
    """
    path, what = _file(place.layout, number), f"revision {number} of run {place.run}"
    stored = read_json(path, what)
    if stored is None or number > known.revision:
        there = [each for each in numbers(place.layout) if each <= known.revision]
        raise missing(place.run, number, there)
    try:
        if stored["format"] != _FORMAT or stored["number"] != number:
            raise broken(path, what, "another format, or another number")
        return _kept(known, stored)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise broken(path, what, f"{type(error).__name__}: {error}") from error


def _kept(known: RunState, stored: Mapping[str, Any]) -> Kept:
    version, spec = str(stored["rlctl_version"]), dict(stored["spec"])
    revision = Revision(
        number=int(stored["number"]),
        at=datetime.fromisoformat(stored["at"]),
        by=str(stored["by"]),
        rlctl_version=version,
        spec=spec,
        images=images_of(spec),
        note=str(stored["note"]),
    )
    hashes, replicas = stored["hashes"], stored["spec_replicas"]
    roles = tuple(
        RolePlan(
            role, int(replicas[role]), cpu=0.0, memory_mib=0.0, gpu=0, threads=1, run_file={}, hash=str(hashes[role])
        )
        for role in ROLES
        if role in replicas
    )
    documents = [Document(each["name"], each["text"], each["role"], each["origin"]) for each in stored["documents"]]
    code = stored.get("code", known.code)  # absent in older files
    plan = Plan(known.run, known.uid, version, "local", roles, live={}, code_path=None if code is None else str(code))
    return Kept(revision, plan, documents)


def _folder(layout: Layout) -> Path:
    return layout.run / "revisions"


def _file(layout: Layout, number: int) -> Path:
    return _folder(layout) / f"{number}.json"
