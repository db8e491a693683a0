"""Objects that one `up` or `rollback` wants in a namespace, and their storage as a revision."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

import yaml

from rlctl.backends.base import Document, Revision
from rlctl.backends.kubernetes.api.interface import Api, Key, Object, key_of
from rlctl.backends.kubernetes.run_state.inventory import role_of
from rlctl.backends.revisions import images_of
from rlctl.errors import BackendUnreachable, RlctlError
from rlctl.plan import PATCHED_BY, Plan, live_with
from rlctl.spec.names import (
    COMPONENT,
    SHARD_REPLICAS,
    UID,
    WORKLOADS,
    document_name,
    labels,
    revision_name,
    spread,
    wave,
)

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_REVISION: Final = "revision.json"
_DOCUMENTS: Final = "documents.json.gz"
_LABEL: Final = "revision"
"""Component label of revision ConfigMaps."""


@dataclass(frozen=True, slots=True)
class DesiredState:
    """Desired state of a run in its namespace: what one `up` or `rollback` applies, stored as a revision."""

    run: str
    uid: str
    rlctl_version: str
    documents: tuple[Document, ...]
    objects: Mapping[Key, Object]  # parsed, in the order in which they are sent
    spec: Mapping[str, Any]  # resolved
    hashes: Mapping[str, str]  # role -> RolePlan.hash
    spec_replicas: Mapping[str, int]
    live: Mapping[str, Any]  # the manager's live fields
    note: str = ""

    def live_with(self, replicas: Mapping[str, int]) -> dict[str, Any]:
        """The manager's live fields with the current numbers of replicas, which may differ from the spec's."""
        return live_with(self.live, replicas)

    def patches(self, key: Key) -> tuple[str, ...]:
        """Files of the patches of an object."""
        name = document_name(*key)
        origins = [document.origin for document in self.documents if document.name == name]
        return tuple(path for origin in origins for path in origin.split(PATCHED_BY)[1:])

    def workloads(self, role: str | None = None) -> list[Key]:
        """Deployments and StatefulSets, of one role or of all; shards in order."""
        found = [key for key in self.objects if key.kind in WORKLOADS and role in (None, role_of(self.objects[key]))]
        return sorted(found, key=_shard)


def of_plan(plan: Plan, documents: Iterable[Document], spec: Mapping[str, Any]) -> DesiredState:
    """Desired state from a plan and its documents.

    Raises:
        RlctlError: a document is no object of this run.
    """
    documents = tuple(documents)
    return DesiredState(
        run=plan.run,
        uid=plan.uid,
        rlctl_version=plan.rlctl_version,
        documents=documents,
        objects=_objects(documents, plan.uid),
        spec=json.loads(json.dumps(spec)),  # equal to what is read back
        hashes={role.role: role.hash for role in plan.roles},
        spec_replicas={role.role: role.replicas for role in plan.roles},
        live=json.loads(json.dumps(plan.live)),
    )


def shares(workloads: Iterable[Key], replicas: int) -> dict[Key, int]:
    """Replicas of each workload of one role: shards are filled in order.

    Raises:
        RlctlError: the workloads cannot hold so many.
    """
    workloads = list(workloads)
    if len(workloads) == 1:
        return {workloads[0]: replicas}
    if replicas > SHARD_REPLICAS * len(workloads):
        raise RlctlError(
            f"{replicas} replicas do not fit into {len(workloads)} objects of {SHARD_REPLICAS} each",
            hint="Raise roles.actor.max_replicas, then rlctl up SPEC.",
        )
    return dict(zip(workloads, spread(replicas, len(workloads)), strict=True))


def revision_document(wanted: DesiredState, number: int, at: datetime, by: str) -> Object:
    """ConfigMap of a revision: immutable, with compressed documents, as shards repeat each other."""
    described: dict[str, Any] = {
        "format": 1,
        "number": number,
        "at": at.isoformat(),
        "by": by,
        "rlctl_version": wanted.rlctl_version,
        "note": wanted.note,
        "spec": wanted.spec,
        "hashes": wanted.hashes,
        "spec_replicas": wanted.spec_replicas,
        "live": wanted.live,
    }
    documents = json.dumps([asdict(document) for document in wanted.documents], ensure_ascii=False).encode()
    packed = base64.b64encode(gzip.compress(documents, mtime=0)).decode()
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": revision_name(wanted.run, number),
            "labels": {**labels(wanted.run), COMPONENT: _LABEL},
            "annotations": {UID: wanted.uid},
        },
        "immutable": True,
        "data": {_REVISION: json.dumps(described, indent=1, ensure_ascii=False) + "\n"},
        "binaryData": {_DOCUMENTS: packed},
    }


def revision_key(run: str, number: int) -> Key:
    return Key("ConfigMap", revision_name(run, number))


def number_of(key: Key, run: str) -> int | None:
    """Number of the revision in a ConfigMap of this name; None: it holds none."""
    prefix = revision_name(run, 0)[:-1]
    digits = key.name.removeprefix(prefix)
    return int(digits) if key.kind == "ConfigMap" and key.name.startswith(prefix) and digits.isdecimal() else None


def stored_revision(api: Api, run: str, uid: str, number: int) -> DesiredState | None:
    """Desired state of a stored revision; None: there is none of that number, as of 0, before an `up` has finished.

    Raises:
        BackendUnreachable: the object is torn or foreign.
    """
    found = api.get(revision_key(run, number)) if number else None
    return None if found is None else of_revision(found, run, uid)


def of_revision(found: Object, run: str, uid: str) -> DesiredState:
    """Desired state from the ConfigMap of a revision.

    Raises:
        BackendUnreachable: the object is torn or foreign.
    """
    name = found["metadata"]["name"]
    try:
        described = json.loads(found["data"][_REVISION])
        packed = gzip.decompress(base64.b64decode(found["binaryData"][_DOCUMENTS]))
        documents = tuple(
            Document(each["name"], each["text"], each["role"], each["origin"]) for each in json.loads(packed)
        )
        return DesiredState(
            run=run,
            uid=uid,
            rlctl_version=str(described["rlctl_version"]),
            documents=documents,
            objects=_objects(documents, uid),
            spec=described["spec"],
            hashes=described["hashes"],
            spec_replicas=described["spec_replicas"],
            live=described["live"],
            note=described["note"],
        )
    except (KeyError, TypeError, ValueError, OSError, EOFError) as error:
        raise _torn(name, error) from error


def described(found: Object) -> Revision:
    """A revision as `history` displays it.

    Raises:
        BackendUnreachable: the object is torn or foreign.
    """
    try:
        stored = json.loads(found["data"][_REVISION])
        return Revision(
            number=int(stored["number"]),
            at=datetime.fromisoformat(stored["at"]),
            by=str(stored["by"]),
            rlctl_version=str(stored["rlctl_version"]),
            spec=stored["spec"],
            images=images_of(stored["spec"]),
            note=str(stored["note"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _torn(found["metadata"]["name"], error) from error


def same(one: DesiredState, other: DesiredState) -> bool:
    """Whether two revisions have the same content; author and note do not count."""
    return (
        [(document.name, document.text) for document in one.documents]
        == [(document.name, document.text) for document in other.documents]
        and dict(one.spec) == dict(other.spec)
        and dict(one.spec_replicas) == dict(other.spec_replicas)
        and dict(one.hashes) == dict(other.hashes)
    )


def _objects(documents: Iterable[Document], uid: str) -> dict[Key, Object]:
    """The documents, parsed, in the order in which they are sent."""
    parsed: list[Object] = []
    for document in documents:
        thing = _parse(document)
        if (thing["metadata"].get("annotations") or {}).get(UID) != uid:
            raise RlctlError(
                f"{document.name} is not a document of the run with uid {uid[:8]}", objects=(document.name,)
            )
        parsed.append(thing)
    parsed.sort(key=lambda thing: wave(thing["kind"], role_of(thing)))  # stable: within a wave as they came
    return {key_of(thing): thing for thing in parsed}


@lru_cache(maxsize=4096)
def _loaded(text: str) -> Object:
    """One object; the same text is parsed once per command, and no caller changes the result."""
    thing: Object = yaml.load(text, Loader=_LOADER)
    return thing


def _parse(document: Document) -> Object:
    try:
        thing = _loaded(document.text)
        key_of(thing)
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise RlctlError(f"{document.name} is not an object: {error}", objects=(document.name,)) from error
    return thing


def _shard(key: Key) -> tuple[str, int]:
    stem, _, digits = key.name.rpartition("-")
    return (stem, int(digits)) if digits.isdecimal() else (key.name, -1)


def _torn(name: str, error: Exception) -> BackendUnreachable:
    return BackendUnreachable(
        f"ConfigMap {name} does not hold a revision: {type(error).__name__}: {error}", objects=(f"ConfigMap {name}",)
    )
