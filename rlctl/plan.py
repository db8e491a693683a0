"""Plan of a run: its processes with their resources."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from rlctl import __version__
from rlctl.image_names import Reference
from rlctl.spec.base import ROLES, Applies, Role
from rlctl.spec.cluster import IMAGE_OF
from rlctl.spec.fields import Leaf, leaves, max_actors, normal, picked, resolved
from rlctl.spec.layout import RUN_FILE_FORMAT
from rlctl.spec.schema import Spec
from rlctl.spec.units import mebibytes

TargetName = Literal["local", "kubernetes"]
PATCHED_BY: Final = ", patched by "
"""Separator before each patch file in the origin of a document."""


@dataclass(frozen=True, slots=True)
class RolePlan:
    """All replicas of one role. Nothing here but `replicas` changes when a run is scaled."""

    role: Role
    replicas: int
    cpu: float  # cores
    memory_mib: float
    gpu: int
    threads: int  # compute threads of one process: floor(cpu), at least 1
    run_file: dict[str, Any]  # what the role reads, and nothing else; see `make`
    hash: str  # 12 hex digits over run_file, resources and image: another hash is another process
    image: str | None = None  # by digest; None on one machine
    most: int = 0  # actor: the most replicas that `scale` accepts, which fixes the number of objects


@dataclass(frozen=True, slots=True)
class Plan:
    """One run, ready to be rendered for a target."""

    run: str
    uid: str  # 32 hex digits, minted at the first `up`
    rlctl_version: str
    target: TargetName
    roles: tuple[RolePlan, ...]  # in start order
    live: dict[str, Any]  # the manager's live fields, in the shape of the spec; it reads them again on request
    code_path: str | None  # absolute folder for PYTHONPATH
    base: str | None = None  # absolute folder of the spec file: the user's patches lie below it
    tracked: dict[str, Any] | None = None  # the resolved spec, for trackers; None: it names none


@dataclass(frozen=True, slots=True)
class Document:
    """One file or object as it is sent; `rlctl render` prints exactly these."""

    name: str  # relative path, unique: "supervisord.conf", "programs/actor.conf", "actor-1f0c....json"
    text: str
    role: str = ""  # "" when it belongs to no single role
    origin: str = ""  # the template it came from, and patches merged into it


def make(spec: Spec, *, uid: str, base: Path) -> Plan:
    """Roles of a run, each with its number, resources and part of the spec.

    Args:
        spec: checked by `rlctl.spec.load`.
        uid: 32 hex digits.
        base: folder of the spec file; `code.path` is relative to it.
    """
    plain = normal(spec)
    fields = _Fields(plain.model_dump(mode="json"), tuple(leaves(plain)))
    roles = tuple(_role(plain, fields, role, uid) for role in ROLES if getattr(plain.roles, role) is not None)
    return Plan(
        run=spec.run,
        uid=uid,
        rlctl_version=__version__,
        target=spec.target,
        roles=roles,
        live=fields.pick(lambda applies: applies.when == "live" and "manager" in applies.roles),
        code_path=None if spec.code is None else str((base / spec.code.path).resolve()),
        base=str(base.resolve()),
        tracked=resolved(spec) if spec.trackers.asked else None,
    )


def _role(spec: Spec, fields: _Fields, role: Role, uid: str) -> RolePlan:
    section = getattr(spec.roles, role)
    read = fields.pick(lambda applies: applies.when != "live" and role in applies.roles and applies.in_run_file)
    read.setdefault("env", {"id": "-"})  # required by the schema; this role does not read it
    run_file = {
        "format": RUN_FILE_FORMAT,
        "run": spec.run,
        "uid": uid,
        "role": role,
        "spec": read,
    }
    resources = {"cpu": section.cpu, "memory_mib": mebibytes(section.memory), "gpu": getattr(section, "gpu", 0)}
    on_cluster = spec.target == "kubernetes"
    image = getattr(spec.images, IMAGE_OF[role]) if on_cluster else None
    pods = fields.pick(lambda applies: role in applies.roles and not applies.in_run_file) if on_cluster else {}
    if image is not None:
        image = str(Reference.parse(image).by_digest())
        pods["images"] = {IMAGE_OF[role]: image}  # without the tag: another tag of the same image restarts no pod
    return RolePlan(
        role=role,
        replicas=getattr(section, "replicas", 1) * (_members(spec) if role == "learner" else 1),
        **resources,
        threads=max(1, int(section.cpu)),
        run_file=run_file,
        hash=_digest({"run_file": run_file, **resources, **pods}),
        image=image,
        most=max_actors(spec) if role == "actor" else 0,
    )


def _members(spec: Spec) -> int:
    """Population members over all policies; each has its own learners."""
    return sum(policy.population for policy in (spec.policies or {}).values())


class _Fields(NamedTuple):
    """A spec as plain data, and its leaves with their marks; computed once for all roles."""

    values: dict[str, Any]
    leaves: tuple[Leaf, ...]

    def pick(self, wanted: Callable[[Applies], bool]) -> dict[str, Any]:
        """Leaves whose mark satisfies `wanted`, nested as in the spec; sections without any are left out."""
        return deepcopy(picked(self.values, (leaf.path for leaf in self.leaves if wanted(leaf.applies))))


def _digest(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def live_with(live: Mapping[str, Any], replicas: Mapping[str, int]) -> dict[str, Any]:
    """The manager's live fields with the current numbers of replicas, which may differ from the spec's."""
    least = {"learner": 1, "replay": 1}  # minima of the schema
    roles = {
        role: {**fields, "replicas": max(replicas[role], least.get(role, 0))}
        if "replicas" in fields and role in replicas
        else fields
        for role, fields in (live.get("roles") or {}).items()
    }
    return {**live, **({"roles": roles} if roles else {})}
