"""A namespace in memory, and a person with runs in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from rlctl.backends.base import Applied
from rlctl.backends.kubernetes.api.interface import Key, Object
from rlctl.backends.kubernetes.backend import KubernetesBackend
from rlctl.backends.kubernetes.run_state import record as records
from rlctl.backends.kubernetes.run_state.lock import LockHolder
from rlctl.backends.kubernetes.run_state.record import Record
from rlctl.plan import Document, Plan, make
from rlctl.render import cluster_documents
from rlctl.spec.schema import Spec
from tests.backends.kubernetes.fakes.api import FakeApi
from tests.support.kills import killed_at_every_step

DIGEST = "sha256:" + "ab" * 32
IMAGES = {name: f"registry.example/{name}@{DIGEST}" for name in ("core", "actor", "learner")}
ALICE = LockHolder("alice", "desk", 1)
BOB = LockHolder("bob", "laptop", 2)
UID = "0123456789abcdef" * 2
KEPT_BY_US = ("ConfigMap pong-state", "Lease pong-lock")
"""Neither is in the inventory: one holds it, the other goes with the command."""


def spec_of(**more: Any) -> Spec:
    """A small run; what is given is laid over it, mapping by mapping."""
    base: dict[str, Any] = {
        "run": "pong",
        "target": "kubernetes",
        "env": {"id": "CartPole-v1"},
        "images": dict(IMAGES),
        "roles": {"actor": {"replicas": 4}},
    }
    return Spec.model_validate(_over(base, more))


def _over(base: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for name, value in more.items():
        both = isinstance(value, dict) and isinstance(merged.get(name), dict)
        merged[name] = _over(merged[name], value) if both else value
    return merged


class Lab:
    """One user beside one namespace.

    Args:
        change: what a test does to every document before it is sent, as a user's patch does.
    """

    def __init__(self, api: FakeApi | None = None, me: LockHolder = ALICE) -> None:
        self.api = api or FakeApi()
        self.me = me
        self.notes: list[str] = []
        self.waited: list[str] = []
        self.change: Callable[[Object], None] | None = None
        self.api.manager = self.api.manager or (lambda method, path, body: (200, {"phase": "running"}))

    def backend(self, *, force: bool = False) -> KubernetesBackend:
        made = KubernetesBackend(
            api=self.api, me=self.me, clock=self.api.clock, sleep=self.api.sleep, now=self.api.now
        )  # fmt: skip
        made.force_conflicts = force
        made.note = self.notes.append
        made.waiting = self.waited.append
        return made

    def plan(self, spec: Spec, uid: str = "") -> tuple[Plan, list[Document]]:
        """As the command line makes them; a run that is not there yet has the same uid in every laboratory."""
        known = self.backend().find(spec.run)
        plan, rendered = _rendered(spec, uid or (UID if known is None else known.uid))
        return plan, rendered if self.change is None else [_changed(each, self.change) for each in rendered]

    def up(self, spec: Spec | None = None, *, force: bool = False, **more: Any) -> list[Applied]:
        spec = spec or spec_of(**more)
        plan, rendered = self.plan(spec)
        stored = spec.model_dump(mode="json")
        return list(self.backend(force=force).apply(plan, rendered, stored))

    def scale(self, **replicas: int) -> list[Applied]:
        return list(self.backend().scale("pong", replicas))

    def down(self, *, volumes: bool = False, grace_s: float = 30.0) -> list[Applied]:
        return list(self.backend().delete("pong", volumes=volumes, grace_s=grace_s))

    def settle(self, seconds: int = 5) -> None:
        """Let the controllers work."""
        self.api.sleep(seconds)

    @property
    def storage(self) -> str:
        return f"claim pong-volume:/runs/pong-{UID[:8]}"

    @property
    def record(self) -> Record:
        found = records.find(self.api, "pong")
        assert found is not None
        return found

    def of(self, kind: str, name: str) -> Object:
        return self.api.objects[Key(kind, name)]

    def replicas(self, name: str, kind: str = "Deployment") -> int:
        return int(self.of(kind, name)["spec"]["replicas"])

    def there(self) -> set[str]:
        """Objects of the run, without pods."""
        return {str(key) for key in self.api.objects if key.kind != "Pod"}

    def known(self) -> set[str]:
        """Objects that the inventory names, and those that need no mention there."""
        found = self.api.objects.get(Key("ConfigMap", "pong-state"))
        listed = set() if found is None else {str(key) for key in records.of(found, self.api).inventory}
        return listed | set(KEPT_BY_US)

    def picture(self) -> dict[str, Any]:
        """Everything that matters of the namespace: its objects, the owner of each field, and no times.

        A lock that a killed command could not give back expires; the next one that writes removes it.
        """
        return {
            str(key): _still(thing)
            for key, thing in sorted(self.api.objects.items())
            if key.kind not in ("Pod", "Lease")
        }


_KNOWN: dict[str, tuple[Plan, list[Document]]] = {}


def _rendered(spec: Spec, uid: str) -> tuple[Plan, list[Document]]:
    key = uid + spec.model_dump_json()
    if key not in _KNOWN:
        plan = make(spec, uid=uid, base=Path("/nowhere"))
        _KNOWN[key] = (plan, cluster_documents(plan, spec))
    return _KNOWN[key]


def _changed(document: Document, change: Callable[[Object], None]) -> Document:
    thing = yaml.safe_load(document.text)
    change(thing)
    return Document(document.name, yaml.safe_dump(thing), document.role, document.origin)


def _still(thing: Object) -> Any:
    metadata = thing["metadata"]
    data = dict(thing.get("data") or {})
    if metadata["name"].endswith("-state"):
        data["state.json"] = {
            k: v for k, v in json.loads(data["state.json"]).items() if k not in ("created", "revision")
        }
        data["inventory.json"] = sorted(json.loads(data["inventory.json"]))
        data["kept.json"] = sorted(json.loads(data.get("kept.json", "[]")))
    if thing["kind"] == "Secret" or "revision" in metadata["name"]:
        data = dict.fromkeys(data)
    return {
        "labels": metadata.get("labels"),
        "spec": thing.get("spec"),
        "data": data,
        "owners": sorted((e["manager"], e["operation"], json.dumps(e["fieldsV1"], sort_keys=True))
                         for e in metadata.get("managedFields") or [] if thing["kind"] not in ("ConfigMap", "Secret")),
    }  # fmt: skip


def killed_at_writes(
    prepare: Callable[[], Lab], act: Callable[[Lab], object], check: Callable[[Lab, Lab], object]
) -> int:
    """Kill a command right after each of its writes, or a sample of them; how many it has.

    What is there then is also what there is when it was killed right before the next, or did not hear the answer.

    Args:
        prepare: what is there before.
        act: the command.
        check: is given what a kill has left, and what there is after the whole command.
    """
    undisturbed = Lab(prepare().api.fork())
    left: list[FakeApi] = []

    def whole() -> int:
        undisturbed.api.on_write = lambda: left.append(undisturbed.api.fork())
        act(undisturbed)
        undisturbed.api.on_write = lambda: None
        return len(left)

    return killed_at_every_step("killed at a write", 4, whole, lambda at: check(Lab(left[at - 1]), undisturbed)).steps
