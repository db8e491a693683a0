"""`diff`: changes that an `up` would make, by the server's dry runs, without the fields that it fills in by itself."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

import yaml

from rlctl.backends.base import Difference
from rlctl.backends.kubernetes.api.interface import ApiError, Key, Object
from rlctl.backends.kubernetes.api.ownership import Fields, applied_by, has_fields, is_by_key, pick
from rlctl.backends.kubernetes.api.refusals import lacks_right
from rlctl.backends.kubernetes.apply import revisions
from rlctl.backends.kubernetes.apply.conflicts import refusal_of
from rlctl.backends.kubernetes.apply.drift import compare
from rlctl.backends.kubernetes.apply.survey import DISPENSABLE, Item, survey
from rlctl.backends.kubernetes.run_state import inventory
from rlctl.backends.kubernetes.run_state.desired_state import DesiredState, number_of
from rlctl.backends.kubernetes.run_state.replicas import with_replicas
from rlctl.backends.kubernetes.run_state.session import Session
from rlctl.spec.names import MANAGER, WORKLOADS


def differences(session: Session, wanted: DesiredState) -> Iterator[Difference]:
    """Differences by one dry run per object that differs; see KubernetesBackend.differences."""
    seen = survey(session, wanted)
    for item in seen.items:
        if item.denied:
            yield Difference(str(item.key), "same", (f"not there: we may not make a {item.key.kind}",))
        elif item.live is None:
            yield Difference(str(item.key), "add", tuple(_added(session, item, wanted)))
        else:
            lines = tuple(_changed(session, item, wanted)) if item.what == "change" else ()
            lines += tuple(_replicas(item))
            yield Difference(str(item.key), "change" if lines else "same", lines)
    if seen.record is not None:
        names = seen.record.inventory
        stays = revisions.kept(session.api, seen, names, revisions.next_number(session.api, seen))
        for key in inventory.unused(names, wanted.objects, stays, wanted.run):
            if number_of(key, wanted.run) is None and session.api.get(key) is not None:
                yield Difference(str(key), "remove")


def _added(session: Session, item: Item, wanted: DesiredState) -> Iterator[str]:
    """The whole document as added lines; a dry run tells whether the server would take it, and raises if not."""
    workload = item.key.kind in WORKLOADS
    try:
        session.api.apply(with_replicas(item.document) if workload else item.document, manager=MANAGER, dry_run=True)
    except ApiError as error:
        if error.status == 404 and item.key.kind == "RoleBinding":
            yield "# not checked by the server: it looks into the Role, which is not there yet"
        elif error.status != 403:
            raise refusal_of(session, error, item.key, wanted) from error
        else:
            kind = "the run does without" if item.key.kind in DISPENSABLE else "refused"
            yield f"# {kind}: {error.message}"
    yield from _diff({}, _masked(item.document), item.key)
    if workload:
        yield f"+  replicas: {item.replicas}  # set by rlctl-scale"


def _changed(session: Session, item: Item, wanted: DesiredState) -> Iterator[str]:
    live = item.live
    assert live is not None
    try:
        after = session.api.apply(
            item.sent, manager=MANAGER, dry_run=True, force=session.force, uid=live["metadata"]["uid"],
        )  # fmt: skip
    except ApiError as error:
        if error.conflicts:
            yield from (f"# conflict: {each.field} belongs to {each.owner}" for each in error.conflicts)
        elif lacks_right(error):
            yield f"# not checked by the server: {error.message}"
        else:
            raise refusal_of(session, error, item.key, wanted) from error
        after = item.document
        for each in compare(item.document, live):
            if each.differs:
                yield f"# {each}"
    mine = applied_by(live, MANAGER) or {}
    yield from _diff(
        _masked(_seen_by(live, item.document, mine)), _masked(_seen_by(after, item.document, mine)), item.key
    )


def _replicas(item: Item) -> Iterator[str]:
    if item.count is not None and item.scales and item.count.value != item.replicas:
        yield f"-  replicas: {item.count.value}"
        yield f"+  replicas: {item.replicas}"


def _seen_by(thing: Any, document: Any, mine: Fields) -> Any:
    """The parts of an object that the document names, or that we own: fields that the server filled in are left out."""
    if isinstance(thing, dict) and isinstance(document, (dict, type(None))) and (document or has_fields(mine)):
        named = [*(document or {}), *(step[2:] for step in mine if step.startswith("f:"))]
        return {
            name: _seen_by(thing[name], (document or {}).get(name), mine.get(f"f:{name}", {}))
            for name in dict.fromkeys(named)
            if name in thing
        }
    if isinstance(thing, list) and is_by_key(mine):
        items = []
        for step, fields in mine.items():
            item = pick(thing, step) if step != "." else None
            if item is not None:
                items.append(_seen_by(item, pick(document, step), fields))
        new = [item for item in document or [] if not any(pick([item], step) for step in mine if step != ".")]
        return [*items, *(item for item in new if item in thing)]
    return thing


def _masked(thing: Object) -> Object:
    """An object with the data of a Secret masked."""
    if thing.get("kind") != "Secret":
        return thing
    return {**thing, "data": dict.fromkeys(thing.get("data") or {}, "***")}


def _diff(before: Object, after: Object, key: Key) -> Iterator[str]:
    one, two = (_written(thing) if thing else [] for thing in (before, after))
    for line in difflib.unified_diff(one, two, f"live/{key}", f"wanted/{key}", lineterm="", n=3):
        yield line.rstrip("\n")


class _Dumper(yaml.SafeDumper):
    """YAML dumper that writes texts of several lines as blocks, so that their lines are compared."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def _written(thing: Object) -> list[str]:
    return yaml.dump(thing, Dumper=_Dumper, sort_keys=True, width=10_000, allow_unicode=True).splitlines()
