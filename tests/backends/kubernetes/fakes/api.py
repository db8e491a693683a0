"""An API server in memory, behind the same protocol as the real one: `rlctl.backends.kubernetes.api.interface.Api`.

Server-side apply with owners and conflicts, dry runs, preconditions, watches with expiry, foreground removal, and
small controllers that make pods ready as time passes; time passes only when a caller sleeps or watches. Failures are
planned: a kill at the n-th write, refusals and errors for chosen requests.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from rlctl.backends.kubernetes.api.interface import (
    KINDS,
    ApiError,
    Event,
    Expired,
    FieldConflict,
    Key,
    Object,
    Page,
    key_of,
)  # fmt: skip
from tests.backends.kubernetes.fakes import controllers, fields
from tests.backends.kubernetes.fakes.defaults import fill
from tests.backends.kubernetes.fakes.fields import clone
from tests.backends.kubernetes.fakes.manager import Handler, serve
from tests.backends.kubernetes.fakes.requests import Requests
from tests.backends.kubernetes.fakes.selectors import matches

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
MOST_BYTES = 1_048_576
_FIXED = {
    ("Deployment", "selector"): "field is immutable",
    (
        "StatefulSet",
        "selector",
    ): "updates to statefulset spec for fields other than 'replicas', 'template' are forbidden",
    (
        "StatefulSet",
        "serviceName",
    ): "updates to statefulset spec for fields other than 'replicas', 'template' are forbidden",
    ("PersistentVolumeClaim", "accessModes"): "spec is immutable after creation: field is immutable",
}


@dataclass(frozen=True)
class Change:
    """One entry of the history that watches read."""

    version: int
    what: Literal["ADDED", "MODIFIED", "DELETED"]
    object: Object


class FakeApi:
    """One namespace. Satisfies Api.

    Attributes:
        on_write: called after every write, before its answer is heard.
        refuse: asked before every request with method and object; what it returns is raised.
        mutate: changes what is applied before it is stored, as a mutating webhook does.
        stuck: names of workloads whose pods never become ready, and components of pods without one.
        step: pods of one workload that become ready in one second.
        manager: answers what is asked of a run's manager.
        templates, old: of the controllers: the template that they know, and how many ready pods are of one before it.
    """

    def __init__(self, namespace: str = "rl", context: str = "fake", server: str = "https://fake:6443") -> None:
        self.context, self.namespace, self.server = context, namespace, server
        self.requests = Requests()
        self.objects: dict[Key, Object] = {}
        self.writes: list[str] = []  # "PATCH Deployment a", dry runs left out
        self.on_write: Callable[[], None] = lambda: None
        self.refuse: Callable[[str, Key], ApiError | None] = lambda method, key: None
        self.mutate: Callable[[Object], None] = lambda thing: None
        self.stuck: set[str] = set()
        self.step = 10_000
        self.manager: Handler | None = None
        self.templates: dict[Key, Object] = {}
        self.old: dict[Key, int] = {}
        self.on_tick: Callable[[], None] = lambda: None
        self.seconds = 0.0
        self._history: list[Change] = []
        self._forgotten = 0  # watches from before this version have expired
        self._version = 0
        self._uids = 0
        self._turn = threading.RLock()  # a thread of a command that takes long renews its lock meanwhile

    def fork(self) -> FakeApi:
        """Another namespace that holds the same; plans and watchers stay behind."""
        other = FakeApi(self.namespace, self.context, self.server)
        with self._turn:
            other.objects = {key: clone(thing) for key, thing in self.objects.items()}
        other.step, other.stuck, other.manager, other.seconds = self.step, set(self.stuck), self.manager, self.seconds
        other.mutate = self.mutate
        other.templates, other.old = dict(self.templates), dict(self.old)
        other._version, other._forgotten, other._uids = self._version, self._version, self._uids
        return other

    # time

    def clock(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return START + timedelta(seconds=self.seconds)

    def sleep(self, seconds: float) -> None:
        left = seconds
        while left > 0:
            with self._turn:
                self.seconds += min(1.0, left)
                left -= 1.0
                self.tick()

    def tick(self) -> None:
        """Let a second's work of the controllers happen."""
        self.on_tick()
        controllers.run(self)

    # what happens to it

    def new_command(self) -> None:
        """Count from here."""
        self.writes.clear()
        self.requests = Requests()

    def forget(self) -> None:
        """Compact the history: every watch from before now has expired."""
        self._forgotten = self._version

    def put(self, thing: Object, manager: str = "kubectl-create", subresource: str = "") -> Object:
        """Write the whole object as another client."""
        key = key_of(thing)
        live = self.objects.get(key)
        if live is None:
            bare = {**thing, "metadata": {"name": key.name}, **({"spec": {}} if "spec" in thing else {})}
            changed = fields.updated_over(bare, clone(thing), manager, subresource, self._time())
        else:
            whole = {**clone(thing), "metadata": {**live["metadata"], **clone(thing["metadata"])}}
            changed = fields.updated_over(live, whole, manager, subresource, self._time())
        return clone(self._store(key, changed))

    def edit(self, key: Key, manager: str, change: Callable[[Object], None], subresource: str = "") -> Object:
        """Change a part of an object as another client: kubectl edit, an autoscaler."""
        changed = clone(self.objects[key])
        change(changed)
        return clone(
            self._store(key, fields.updated_over(self.objects[key], changed, manager, subresource, self._time()))
        )

    def report(self, key: Key, status: Object) -> None:
        """A controller writes the status."""
        live = self.objects[key]
        if live.get("status") != status:
            self._store(key, {**live, "status": status}, quiet=True)

    def remove(self, key: Key) -> None:
        """It is gone."""
        gone = self.objects.pop(key)
        self._note("DELETED", gone)

    # Api

    def get(self, key: Key) -> Object | None:
        self._ask("GET", key)
        found = self.objects.get(key)
        return None if found is None else clone(found)

    def list(self, kind: str, *, labels: str = "", fields: str = "", most: int | None = None) -> Page:
        self._ask("GET", Key(kind, ""))
        found = [
            clone(thing) for key, thing in sorted(self.objects.items())
            if key.kind == kind and matches(thing, labels, fields)
        ]  # fmt: skip
        kept = found if most is None else found[:most]
        return Page(kept, str(self._version), len(found) - len(kept))

    def apply(
        self, document: Object, *, manager: str, force: bool = False, dry_run: bool = False, uid: str | None = None
    ) -> Object:  # fmt: skip
        key = key_of(document)
        self._ask("PATCH", key)
        live = self.objects.get(key)
        if uid is not None and (live is None or live["metadata"]["uid"] != uid):
            raise ApiError(f"{key}: Precondition failed: UID in precondition: {uid}", status=409, key=key)
        base = live or {"apiVersion": document["apiVersion"], "kind": key.kind, "metadata": {"name": key.name}}
        try:
            changed = fields.applied_over(base, document, manager, force=force, now=self._time())
        except fields.Clash as clash:
            found = tuple(FieldConflict(fields.shown(path), entry["manager"]) for path, entry in clash.found)
            raise ApiError(f"Apply failed with {len(found)} conflicts", status=409, key=key, conflicts=found) from clash
        self.mutate(changed)
        if dry_run:
            return self._finished(key, clone(changed))
        return self._write("PATCH", key, lambda: self._store(key, changed))

    def create(self, document: Object) -> Object:
        key = key_of(document)
        self._ask("POST", key)
        if key in self.objects:
            raise ApiError(f'{KINDS[key.kind].plural} "{key.name}" already exists', status=409, key=key)
        bare: Object = {"apiVersion": document["apiVersion"], "kind": key.kind, "metadata": {"name": key.name}}
        made = fields.updated_over(bare, document, "rlctl", "", self._time())
        return self._write("POST", key, lambda: self._store(key, made))

    def replace(self, document: Object) -> Object:
        key = key_of(document)
        self._ask("PUT", key)
        live = self.objects.get(key)
        if live is None:
            raise ApiError(f'{KINDS[key.kind].plural} "{key.name}" not found', status=404, key=key)
        if document["metadata"].get("resourceVersion") != live["metadata"]["resourceVersion"]:
            raise ApiError("the object has been modified; apply your changes to the latest", status=409, key=key)
        kept = {name: live["metadata"][name] for name in ("uid", "creationTimestamp", "managedFields")}
        whole = {**document, "metadata": {**document["metadata"], **kept}}
        changed = fields.updated_over(live, whole, "rlctl", "", self._time())
        return self._write("PUT", key, lambda: self._store(key, changed))

    def delete(
        self, key: Key, *, uid: str | None = None, grace_s: int | None = None,
        propagation: Literal["Background", "Foreground"] = "Background",
    ) -> bool:  # fmt: skip
        self._ask("DELETE", key)
        live = self.objects.get(key)
        if live is None or (uid is not None and live["metadata"]["uid"] != uid):
            return False

        def gone() -> bool:
            if propagation == "Foreground" and key.kind in ("Deployment", "StatefulSet"):
                if "deletionTimestamp" not in live["metadata"]:
                    metadata = {
                        **live["metadata"],
                        "deletionTimestamp": self._time(),
                        "finalizers": ["foregroundDeletion"],
                    }
                    self._store(key, {**live, "metadata": metadata}, quiet=True)
            else:
                self.remove(key)
                controllers.orphaned(self, key)
            return True

        return self._write("DELETE", key, gone)

    def watch(
        self, kind: str, *, labels: str = "", fields: str = "", resource_version: str, timeout_s: float
    ) -> Iterator[Event]:
        self._ask("GET", Key(kind, ""))
        after = int(resource_version)
        deadline = self.seconds + timeout_s
        while True:
            if after < self._forgotten:
                raise Expired("too old resource version")
            for change in [each for each in self._history if each.version > after]:
                after = change.version
                thing = change.object
                if thing["kind"] == kind and matches(thing, labels, fields):
                    yield Event(change.what, clone(thing))
            if self.seconds >= deadline:
                yield Event("BOOKMARK", {"kind": kind, "metadata": {"resourceVersion": str(self._version)}})
                return
            self.sleep(1.0)

    def pod_log(self, pod: str, *, within_s: float, previous: bool = False, tail: int | None = None) -> Iterator[str]:
        self._ask("GET", Key("Pod", pod))
        yield from ()

    @contextmanager
    def forward(self, pod: str, port: int) -> Iterator[socket.socket]:
        self._ask("GET", Key("Pod", pod))
        if self.manager is None or Key("Pod", pod) not in self.objects:
            raise ApiError(f"port {port} of Pod {pod} cannot be reached: connection refused", status=0)
        with serve(self.manager) as connected:
            yield connected

    def may(self, verb: str, resource: str, *, group: str = "", subresource: str = "") -> bool | None:
        self._ask("POST", Key("SelfSubjectAccessReview", resource))
        return True

    def version(self) -> str:
        self._ask("GET", Key("", "version"))
        return "v1.34.1"

    def raw(self, path: str) -> Any:
        self._ask("GET", Key("", path))
        return {"items": []}

    # inside

    def _ask(self, method: str, key: Key) -> None:
        self.requests.count(method)
        refused = self.refuse(method, key)
        if refused is not None:
            raise refused

    def _write(self, method: str, key: Key, write: Callable[[], Any]) -> Any:
        self.writes.append(f"{method} {key}")
        with self._turn:
            found = write()
            self.on_write()
            return clone(found)

    def _finished(self, key: Key, thing: Object) -> Object:
        """With defaults, checked against what cannot change and how large things may be."""
        live = self.objects.get(key)
        fill(thing)
        if len(str(thing.get("data") or "")) + len(str(thing.get("binaryData") or "")) > MOST_BYTES:
            raise ApiError(f"{key.kind} {key.name} is invalid: must have at most 1048576 bytes", status=422, key=key)
        if live is not None:
            for (kind, name), why in _FIXED.items():
                before, after = (each.get("spec") or {} for each in (live, thing))
                if kind == key.kind and before.get(name) != after.get(name):
                    raise ApiError(f'{kind} "{key.name}" is invalid: spec.{name}: {why}', status=422, key=key)
            if live.get("immutable") and any(live.get(name) != thing.get(name) for name in ("data", "binaryData")):
                why = "field is immutable when `immutable` is set"
                raise ApiError(f'{key.kind} "{key.name}" is invalid: data: {why}', status=422, key=key)
        return thing

    def _store(self, key: Key, thing: Object, *, quiet: bool = False) -> Object:
        """Write it to the store; what equals the stored object is no change."""
        live = self.objects.get(key)
        thing = self._finished(key, clone(thing))
        metadata = thing["metadata"]
        if live is None:
            self._uids += 1
            metadata |= {"uid": f"uid-{self._uids}", "creationTimestamp": self._time(), "generation": 1}
            metadata.setdefault("namespace", self.namespace)
        else:
            for name in ("uid", "creationTimestamp", "generation", "namespace", "resourceVersion", "deletionTimestamp"):
                if name in live["metadata"]:
                    metadata.setdefault(name, live["metadata"][name])
            metadata["resourceVersion"] = live["metadata"]["resourceVersion"]
            if not quiet and live.get("spec") != thing.get("spec"):
                metadata["generation"] = live["metadata"]["generation"] + 1
            if "status" in live:
                thing.setdefault("status", live["status"])
            if _timeless(live) == _timeless(thing):
                return live
        self._version += 1
        metadata["resourceVersion"] = str(self._version)
        self.objects[key] = thing
        self._history.append(Change(self._version, "ADDED" if live is None else "MODIFIED", clone(thing)))
        return thing

    def _note(self, what: Literal["DELETED"], thing: Object) -> None:
        self._version += 1
        gone = clone(thing)
        gone["metadata"]["resourceVersion"] = str(self._version)
        self._history.append(Change(self._version, what, gone))

    def _time(self) -> str:
        return self.now().strftime("%Y-%m-%dT%H:%M:%SZ")


def _timeless(thing: Object) -> Object:
    """Without the times of writes."""
    metadata = {name: value for name, value in thing["metadata"].items() if name != "resourceVersion"}
    metadata["managedFields"] = sorted(
        ({**entry, "time": ""} for entry in metadata.get("managedFields") or []),
        key=lambda entry: (entry["manager"], entry["operation"]),
    )
    return {**thing, "metadata": metadata}
