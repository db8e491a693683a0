"""Plan of a run: its processes with their resources; and the effect of a changed spec on a live run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from pydantic import ValidationError

from rlctl import __version__
from rlctl.image_names import Reference
from rlctl.spec.base import ROLES, Applies, Role
from rlctl.spec.cluster import IMAGE_OF
from rlctl.spec.fields import Leaf, as_written, leaves, max_actors, normal, picked, resolved
from rlctl.spec.problems.checks import unsound
from rlctl.spec.problems.later import not_built
from rlctl.spec.problems.messages import in_words
from rlctl.spec.schema import Spec
from rlctl.spec.units import mebibytes
from rlctl.spec.words import dotted, either, printable

TargetName = Literal["local", "kubernetes"]
RUN_FILE_FORMAT: Final = 1
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


@dataclass(frozen=True, slots=True)
class Change:
    """Effect of one changed field on one role of a live run. A refusal concerns the whole run and appears once."""

    role: str  # a role, or "" when the backend or no process has to act, and for a refusal
    action: Literal["live", "restart", "refuse"]
    path: str  # dotted path of the field
    why: str  # "roles.actor.replicas: 4 -> 8"; a refusal adds the reason and the way out


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


def changes(old: Spec, new: Spec) -> list[Change]:
    """Changes that turn a live run of `old` into one of `new`, in the order of the schema.

    A field is judged by the mark that it carries. Two spellings of the same run (`algorithm` at the top or below
    `policies`, `like` or written out, 2Gi or 2048Mi) differ in nothing.
    """
    before, after = normal(old), normal(new)
    found: list[Change] = []
    settled: list[tuple[str, ...]] = []  # sections reported as a whole
    for path, was, now, what in _whole_sections(before, after):
        settled.append(path)
        found.append(_refusal(new, path, was, now) if what == "refuse" else _change(new, path, was, now, ""))
    old_leaves = {leaf.path: leaf for leaf in leaves(before)}
    new_leaves = {leaf.path: leaf for leaf in leaves(after)}
    for path in dict.fromkeys([*new_leaves, *old_leaves]):
        leaf = new_leaves.get(path) or old_leaves[path]
        was = old_leaves[path].value if path in old_leaves else None
        now = new_leaves[path].value if path in new_leaves else None
        if was == now or any(path[: len(section)] == section for section in settled):
            continue
        if leaf.applies.when == "new_run":
            found.append(_refusal(new, path, was, now))
        elif old.sync and path[-2:] in _STREAMS:
            found.append(_refusal(new, path, was, now, "sync fixes which streams make a batch"))
        elif path == ("storage", "size") and new.target != "local" and mebibytes(now) < mebibytes(was):
            found.append(Change("", "refuse", dotted(path), f"{_was_now(new, path, was, now)}: a volume only grows"))
        elif (new.target == "local" and not leaf.applies.in_run_file) or _same_image(path, was, now):
            found.append(_change(new, path, was, now, ""))  # no process reads it
        else:
            action: Literal["live", "restart"] = "live" if leaf.applies.when == "live" else "restart"
            there = [role for role in leaf.applies.roles if getattr(after.roles, role) is not None]
            lost = {role: _lost_rows(before, after, path, role, action) for role in there}
            found += [_change(new, path, was, now, role, action, lost[role]) for role in there]
            found += [] if there else [_change(new, path, was, now, "")]
    return found


_STREAMS: Final = (
    ("actor", "replicas"),
    ("actor", "envs"),
    ("algorithm", "unroll_length"),
    ("algorithm", "batch_size"),
)


def _whole_sections(before: Spec, after: Spec) -> Iterator[tuple[tuple[str, ...], Any, Any, Literal["refuse", "live"]]]:
    """Sections added, removed or changed in kind: path, old and new value in a word, action."""
    old, new = before.policies or {}, after.policies or {}
    for name in dict.fromkeys([*new, *old]):
        if name not in old or name not in new:
            yield ("policies", name), _given(name in old), _given(name in new), "refuse"
        elif old[name].algorithm.name != new[name].algorithm.name:
            path = ("policies", name, "algorithm")
            yield path, old[name].algorithm.name, new[name].algorithm.name, "refuse"
    for role in ROLES:
        had, has = getattr(before.roles, role) is not None, getattr(after.roles, role) is not None
        if had != has:
            yield ("roles", role), _given(had), _given(has), "live"


def _given(given: bool) -> str:
    return "given" if given else "absent"


def _refusal(spec: Spec, path: tuple[str, ...], was: Any, now: Any, reason: str = "") -> Change:
    if path == ("run",):
        reason, way_out = "another name is another run", "`rlctl up` starts it"
    else:
        reason, way_out = reason or "fixed for the life of a run", "start a new run: change `run:`"
    return Change("", "refuse", _shown(spec, path), f"{_was_now(spec, path, was, now)}: {reason}; {way_out}")


def _change(
    spec: Spec,
    path: tuple[str, ...],
    was: Any,
    now: Any,
    role: str,
    action: Literal["live", "restart"] = "live",
    besides: str = "",
) -> Change:
    return Change(role, action, _shown(spec, path), _was_now(spec, path, was, now) + besides)


FEWER_SHARDS: Final = "rows of the shards that go are dropped"
_FORM_OF_ROWS: Final = ("unroll_length", "sequence_length", "burn_in")


def _lost_rows(before: Spec, after: Spec, path: tuple[str, ...], role: str, action: str) -> str:
    """Warning that a change makes the replay discard rows; "" if it does not."""
    old, new = before.replay, after.replay
    if old is None or new is None:
        return ""
    if path == ("roles", "replay", "replicas") and after.replay_shards < before.replay_shards:
        return f": {FEWER_SHARDS}"
    if role != "replay" or action == "live":
        return ""
    if "none" in (old.checkpoint, new.checkpoint):
        return ": it begins empty, no generation holds its rows"
    if path[-1] in _FORM_OF_ROWS:
        return ": rows that its generations hold have another form, it begins empty"
    return ": the newest rows that fit stay" if path == ("replay", "capacity") and new.capacity < old.capacity else ""


def _same_image(path: tuple[str, ...], was: Any, now: Any) -> bool:
    """Whether two image names have the same digest, as after a new tag."""
    if path[0] != "images" or not was or not now:
        return False
    before, after = Reference.parse(was), Reference.parse(now)
    return bool(before.digest and after.digest) and before.by_digest() == after.by_digest()


def _shown(spec: Spec, path: tuple[str, ...]) -> str:
    name = ("name",) if path[-1] == "algorithm" else ()
    return dotted(as_written(spec, (*path, *name)))


def _was_now(spec: Spec, path: tuple[str, ...], was: Any, now: Any) -> str:
    return f"{_shown(spec, path)}: {_written(was)} -> {_written(now)}"


def _written(value: Any) -> str:
    image = Reference.try_parse(value) if isinstance(value, str) else None
    if image is not None and image.digest:
        return f"{image.by_tag}@{image.digest[:_SHOWN_OF_DIGEST]}..."
    text = printable(value) if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


_SHOWN_OF_DIGEST: Final = len("sha256:") + 12
"""Characters of a digest in messages: the algorithm and 12 hex digits."""


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


def why_not_scale(spec: Spec, wanted: Mapping[str, int], live: Mapping[str, int]) -> list[str]:
    """Reasons why a live run of `spec` cannot be scaled to `wanted`, each with a remedy; [] when it can.

    Args:
        wanted: role -> replicas, all of them together.
        live: role -> replicas now, which differ from the spec's after an earlier `scale`.
    """
    spec = spec.model_copy(update={"roles": normal(spec).roles})  # with the default replay where the spec leaves it out
    if why := [reason for role, count in wanted.items() if (reason := _why_not(spec, role, count)) is not None]:
        return why
    before = sized(spec, live)
    after = sized(before, wanted)
    if spec.kubernetes.gang == "kueue" and before.roles.learner.replicas != after.roles.learner.replicas:
        return ["roles.learner.replicas: Kueue keeps the number of a gang that runs: rlctl down, then up with another"]
    refused = [change.why for change in changes(before, after) if change.action == "refuse"]
    known = set(unsound(before))
    return refused or [f"{dotted(fault.path)}: {fault.message}" for fault in unsound(after) if fault not in known]


def _why_not(spec: Spec, role: str, replicas: int) -> str | None:
    """Reason why one role cannot have so many replicas, whatever the others have; None when it can."""
    section = getattr(spec.roles, role, None) if role in ROLES else None
    if section is None:
        there = [name for name in ROLES if getattr(spec.roles, name) is not None]
        return f"{role}: this run has no such role; it has {either(there)}"
    if "replicas" not in type(section).model_fields:
        return f"{role}: a run has exactly one"
    try:
        type(section).model_validate({"replicas": replicas}, strict=True)
    except ValidationError as error:
        return f"roles.{role}.replicas: {in_words(error.errors(include_url=False)[0])}"
    later = [fault for fault in not_built(sized(spec, {role: replicas})) if fault.path == ("roles", role, "replicas")]
    if later:
        return f"roles.{role}.replicas: {later[0].message}"
    if role == "actor" and replicas > max_actors(spec):
        return (
            f"roles.actor.replicas: {replicas} is more than roles.actor.max_replicas {max_actors(spec)}; raise it first"
        )
    return None


def sized(spec: Spec, replicas: Mapping[str, int]) -> Spec:
    """The spec with other numbers of replicas; roles without `replicas` stay as they are."""
    sections = {role: getattr(spec.roles, role) for role in replicas}
    resized = {
        role: section.model_copy(update={"replicas": replicas[role]})
        for role, section in sections.items()
        if section is not None and "replicas" in type(section).model_fields
    }
    return spec.model_copy(update={"roles": spec.roles.model_copy(update=resized)})
