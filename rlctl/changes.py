"""Effect of a changed spec on a live run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic import ValidationError

from rlctl.image_names import Reference
from rlctl.spec.base import ROLES
from rlctl.spec.fields import as_written, leaves, max_actors, normal
from rlctl.spec.problems.checks import unsound
from rlctl.spec.problems.later import not_built
from rlctl.spec.problems.messages import in_words
from rlctl.spec.schema import Spec
from rlctl.spec.units import mebibytes
from rlctl.spec.words import dotted, either, printable


@dataclass(frozen=True, slots=True)
class Change:
    """Effect of one changed field on one role of a live run. A refusal concerns the whole run and appears once."""

    role: str  # a role, or "" when the backend or no process has to act, and for a refusal
    action: Literal["live", "restart", "refuse"]
    path: str  # dotted path of the field
    why: str  # "roles.actor.replicas: 4 -> 8"; a refusal adds the reason and the way out


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
