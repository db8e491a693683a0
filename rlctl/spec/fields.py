"""Fields of the schema by path, and the leaves of a spec with their marks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, Final, Literal, NamedTuple, Union, get_args, get_origin

from rlctl.spec import names
from rlctl.spec.algorithms import BUILT, KINDS, Algorithm, Impala, tag
from rlctl.spec.base import Applies, Model
from rlctl.spec.roles import Replay
from rlctl.spec.schema import Policy, ReplayBuffer, Spec
from rlctl.spec.words import Path

HIDDEN = (
    "policies.*.population",
    "policies.*.like",
    "env.splits",
    "inference",
    "league",
    "pbt",
    "roles.inference",
)
"""Sections and fields (`*` is any key) that this release does not support yet: the JSON Schema, messages and
`lint --show-origin` leave them out."""


def hidden(path: Path) -> bool:
    """Whether a path is one of `HIDDEN`, or below one."""
    return any(
        len(path) >= len(pattern) and all(wanted in ("*", key) for wanted, key in zip(pattern, path, strict=False))
        for pattern in (tuple(text.split(".")) for text in HIDDEN)
    )


class Leaf(NamedTuple):
    """A field that holds a value, not a section."""

    path: tuple[str, ...]
    value: Any
    applies: Applies


@cache
def keys(model: type[Model]) -> Mapping[str, str]:
    """Key of a section as it is written -> its attribute: `class` -> `class_`; mostly the same."""
    return {field.alias or name: name for name, field in model.model_fields.items()}


@cache
def mark(model: type[Model], name: str) -> Applies | None:
    """The mark of a field; None where the field holds a section whose own fields are marked."""
    return next((item for item in model.model_fields[name].metadata if isinstance(item, Applies)), None)


def leaves(section: Model, path: tuple[str, ...] = ()) -> Iterator[Leaf]:
    """Every leaf below a section, in the order of the schema; sections that are not given have none."""
    for written, name in keys(type(section)).items():
        value = getattr(section, name)
        applies = mark(type(section), name)
        if applies is not None:
            yield Leaf((*path, written), value, applies)
        elif isinstance(value, Model):
            yield from leaves(value, (*path, written))
        elif isinstance(value, dict):
            for key, item in value.items():
                yield from leaves(item, (*path, written, key))


def filled(spec: Spec) -> Spec:
    """The spec in its own shape, with the defaults of preset and algorithm written out in algorithm and model: read
    again it means the same, as a dump has every value."""
    if spec.policies is None:
        policy = spec.policy()
        return spec.model_copy(update={"algorithm": policy.algorithm, "model": policy.model})
    own = {name: one if one.like else one.filled(spec.env) for name, one in spec.policies.items()}
    return spec.model_copy(update={"policies": own})


def brought(spec: Spec, name: str) -> dict[str, Any]:
    """Fields of a policy's algorithm that have the default of `env.preset`; none of a policy that is `like` another."""
    policy = Policy(algorithm=spec.algorithm or Impala()) if spec.policies is None else spec.policies[name]
    return {} if policy.like is not None else policy.brought(spec.env)


def folded(spec: Spec) -> Spec:
    """The same spec with `algorithm` and `model` below `policies`, as far as they are not there already."""
    given = spec.policies or {"main": spec.policy()}
    policies = {name: policy.filled(spec.env) for name, policy in given.items()}
    return spec.model_copy(update={"policies": policies, "algorithm": None, "model": None})


_LOCAL_MAX_ACTORS: Final = 64


def max_actors(spec: Spec) -> int:
    """Limit of actors for `scale`: unless the spec has one, on a cluster as many as fill whole Deployments."""
    actor = spec.roles.actor
    if actor.max_replicas is not None:
        return actor.max_replicas
    if spec.target == "local":
        return max(actor.replicas, _LOCAL_MAX_ACTORS)
    return names.shards(actor.replicas) * names.SHARD_REPLICAS


def normal(spec: Spec) -> Spec:
    """The same spec with every policy below `policies`, and with `like` resolved.

    Raises:
        KeyError: `like` names a policy that does not exist.
    """
    given = ["main"] if spec.policies is None else list(spec.policies)
    policies = {name: spec.policy(name).model_copy(update={"like": None}) for name in given}
    changed: dict[str, Any] = {"policies": policies, "algorithm": None, "model": None}
    if any(one.algorithm.needs_replay for one in policies.values()):
        changed["replay"] = spec.replay or ReplayBuffer()
        changed["roles"] = spec.roles.model_copy(update={"replay": spec.roles.replay or Replay()})
    return spec.model_copy(update=changed)


def resolved(spec: Spec) -> dict[str, Any]:
    """Every value of a spec as plain data in its own shape, defaults included; what is not built yet is left out."""
    spec = filled(spec)
    return picked(spec.model_dump(mode="json"), (leaf.path for leaf in leaves(spec) if not hidden(leaf.path)))


def picked(values: Mapping[str, Any], paths: Iterable[tuple[str, ...]]) -> dict[str, Any]:
    """Values at these paths, nested as they are there; sections without any are left out."""
    found = dict[str, Any]()
    for path in paths:
        source, place = values, found
        for key in path[:-1]:
            source, place = source[key], place.setdefault(key, {})
        place[path[-1]] = source[path[-1]]
    return found


def as_written(spec: Spec, path: tuple[str, ...]) -> tuple[str, ...]:
    """A path of the normal spec in the form that the user chose: `algorithm.lr` for `policies.main.algorithm.lr`."""
    return path[2:] if spec.policies is None and path[:2] == ("policies", "main") and len(path) > 2 else path


def options(annotation: Any) -> list[Any]:
    """Members of an annotation, unions and literals taken apart: `int | None` gives int and NoneType."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return options(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return [option for part in get_args(annotation) for option in options(part)]
    if origin is Literal:
        return [type(value) for value in get_args(annotation)]
    return [annotation]


@dataclass(frozen=True, slots=True)
class Section:
    """A path that holds named fields."""

    model: type[Model]


@dataclass(frozen=True, slots=True)
class NamedSections:
    """A path that holds sections under names that the user chooses."""

    model: type[Model]


@dataclass(frozen=True, slots=True)
class Value:
    """A path that holds a value of one of these types."""

    types: tuple[Any, ...]


def at(path: Path, values: Any) -> Section | NamedSections | Value | None:
    """Annotation at a path; None where the schema has nothing, or leaves it open.

    Args:
        path: keys from the top.
        values: the plain data; it says which algorithm is meant.
    """
    here: Section | NamedSections | Value = Section(Spec)
    for key in path:
        values = values.get(key) if isinstance(values, dict) else None
        if isinstance(here, NamedSections):
            here = Section(here.model)
        elif isinstance(here, Section) and key in keys(here.model):
            here = _field(here.model, keys(here.model)[str(key)], values)
        else:
            return None
    return here


def _field(model: type[Model], name: str, value: Any) -> Section | NamedSections | Value:
    found = options(model.model_fields[name].annotation)
    for option in found:
        args = get_args(option)
        if mark(model, name) is None and get_origin(option) is dict:
            return NamedSections(args[1])
    models = [option for option in found if isinstance(option, type) and issubclass(option, Model)]
    if len(models) > 1:
        return Section(KINDS[tag(value) or "impala"])
    return Section(models[0]) if models else Value(tuple(found))


@cache
def everywhere() -> tuple[tuple[str, ...], ...]:
    """The path of every field and section of the schema, of all built algorithms, with `main` as the policy."""

    def below(model: type[Model], path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        for written, name in keys(model).items():
            here = (*path, written)
            yield here
            match _field(model, name, None):
                case Section(inner) if issubclass(inner, Algorithm):
                    yield from (path for kind in BUILT for path in below(KINDS[kind], here))
                case Section(inner):
                    yield from below(inner, here)
                case NamedSections(inner):
                    yield from below(inner, (*here, "main"))

    return tuple(dict.fromkeys(below(Spec, ())))
