"""Patches of a user for our objects: `templates/<role>.patch.yaml`, or `templates/<role>.<kind>.patch.yaml`.

The first is for the Deployments or the StatefulSet of a role, the second for its objects of another kind; `run` stands
for what belongs to no single role. A patch may set any field but those by which rlctl finds its objects.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rlctl.errors import Problem, SpecError
from rlctl.render import shapes
from rlctl.render.merging import merged
from rlctl.render.objects import Object, without_nothing
from rlctl.spec import names, yaml
from rlctl.spec.base import ROLES
from rlctl.spec.words import Path as Keys
from rlctl.spec.words import closest, dotted, either
from rlctl.spec.yaml import Location, Tree

SUFFIX: Final = ".patch.yaml"
WORKLOAD: Final = "workload"
KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    WORKLOAD: ("Deployment", "StatefulSet"),
    "service": ("Service",),
    "networkpolicy": ("NetworkPolicy",),
    "poddisruptionbudget": ("PodDisruptionBudget",),
    "persistentvolumeclaim": ("PersistentVolumeClaim",),
    "serviceaccount": ("ServiceAccount",),
}
"""Kind in a file's name -> kinds of objects that it patches; run files and RBAC objects cannot be patched."""
WHOLE_RUN: Final = "run"
MAX_LETTERS: Final = 256 << 10
"""Characters of one patch file, at most."""
PATCHED_ROLES: Final = (*ROLES, "tensorboard", "status", "proxy-tensorboard", "proxy-status", WHOLE_RUN)

_OWN_LABELS: Final = (*names.labels("-", "-"), names.UID, names.SHARD)
_FOUND_BY: Final[tuple[Keys, ...]] = (
    ("apiVersion",),
    ("kind",),
    ("metadata", "name"),
    ("metadata", "annotations", names.UID),
    *(("metadata", "labels", label) for label in _OWN_LABELS),
    *(("spec", "template", "metadata", "labels", label) for label in _OWN_LABELS),
    ("spec", "selector"),
    ("spec", "podSelector"),
    ("spec", "serviceName"),
)
_ELSEWHERE: Final[Mapping[Keys, str]] = {
    ("metadata", "namespace"): "documents name no namespace; say -n, or RLCTL_NAMESPACE",
    ("spec", "replicas"): "`rlctl scale` and `roles` of the spec say how many",
}


@dataclass(frozen=True, slots=True)
class Patch:
    """One patch file."""

    path: Path
    role: str  # "" for what belongs to no single role
    kinds: tuple[str, ...]
    tree: Tree


@dataclass(frozen=True, slots=True)
class Patches:
    """All patches of a run, in the order in which they are applied to an object."""

    patches: tuple[Patch, ...] = ()

    @classmethod
    def read(cls, folders: Sequence[Path]) -> Patches:
        """All patches below `templates/` of these folders.

        Raises:
            SpecError: with every fault of every file: its name says nothing, or it is not a mapping in YAML.
        """
        found: list[Patch] = []
        problems: list[Problem] = []
        for folder in folders:
            for path in sorted((folder / "templates").glob("*.patch.y*ml")):
                if not path.name.endswith(SUFFIX):
                    problems.append(Problem("", f"patches nothing: its name must end in {SUFFIX}", str(path)))
                    continue
                role, _, kind = path.name.removesuffix(SUFFIX).partition(".")
                if misnamed := list(_misnamed(path, role, kind)):
                    problems += misnamed
                    continue
                tree = _read(path)
                problems += tree.problems
                if not problems:
                    found.append(Patch(path, "" if role == WHOLE_RUN else role, KINDS[kind or WORKLOAD], tree))
        if problems:
            raise SpecError(problems)
        return cls(tuple(found))

    def applied(self, ours: Object, role: str) -> tuple[Object, tuple[str, ...]]:
        """Apply every patch for an object; returns the patched object and the paths of the patches.

        Raises:
            SpecError: a patch has the wrong form, or alters what rlctl finds its objects by, with file and line.
        """
        files: list[str] = []
        problems: list[Problem] = []
        for patch in self.patches:
            if patch.role != role or ours["kind"] not in patch.kinds or not _concerns(ours, role):
                continue
            files.append(str(patch.path))
            misshapen = [_problem(patch, *fault) for fault in shapes.faults(ours["kind"], patch.tree.value)]
            if misshapen:
                problems += misshapen
                continue
            laid = without_nothing(merged(ours, patch.tree.value))
            altered = list(_altered(ours, laid, patch, role))
            problems += altered
            ours = ours if altered else laid
        if problems:
            raise SpecError(problems)
        return ours, tuple(files)

    def missed(self, there: Collection[tuple[str, str]]) -> None:
        """Refuse patches that match no object.

        Args:
            there: role and kind of every object of the run. A role that is not there at all is no fault: the same
                patches may serve several specs; nor is a run without a volume of its own.

        Raises:
            SpecError: a role has no object of the kind.
        """
        roles = {role for role, _ in there} - {""}
        problems = [
            Problem("", f"patches nothing: {patch.role} has no {either(patch.kinds)}", str(patch.path))
            for patch in self.patches
            if patch.role in roles and not any((patch.role, kind) in there for kind in patch.kinds)
        ]
        if problems:
            raise SpecError(problems)


def _concerns(ours: Object, role: str) -> bool:
    """Whether an object is for the pods of its role: a NetworkPolicy beside them may be for those of another."""
    selected = _at(ours, ("spec", "podSelector", "matchLabels", names.COMPONENT))
    return ours["kind"] != "NetworkPolicy" or selected in (None, role)


def _read(path: Path) -> Tree:
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MAX_LETTERS + 1)
        if len(text) > MAX_LETTERS:
            tree = Tree({})
            tree.report((), f"cannot be read: longer than {MAX_LETTERS >> 10} KiB", Location(str(path)))
            return tree
        tree = yaml.read(text, str(path))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "is not UTF-8"
        tree = Tree({})
        tree.report((), f"cannot be read: {reason.lower()}", Location(str(path)))
        return tree
    if tree.value is None and not tree.problems:
        tree.value = {}  # nothing but comments: a patch that is switched off
    elif not isinstance(tree.value, dict) and not tree.problems:
        tree.report((), "must be a mapping (key: value) at the top", tree.places[()])
    return tree


def _misnamed(path: Path, role: str, kind: str) -> Iterator[Problem]:
    for said, known, what in ((role, PATCHED_ROLES, "role"), (kind or WORKLOAD, tuple(KINDS), "kind of object")):
        if said not in known:
            near = closest(said, known)
            hint = f"did you mean `{near}`?" if near else f"there is {either(known)}"
            yield Problem("", f"patches nothing: no {what} `{said}`; {hint}", str(path))
    if role == WHOLE_RUN and not kind:
        yield Problem("", f"name what it is for, as in {WHOLE_RUN}.persistentvolumeclaim{SUFFIX}", str(path))


def _altered(ours: Object, laid: Object, patch: Patch, role: str) -> Iterator[Problem]:
    for keys in (*_FOUND_BY, *_ELSEWHERE):
        if _at(ours, keys) != _at(laid, keys):
            why = _ELSEWHERE.get(keys, "rlctl finds its objects by it")
            yield _problem(patch, keys, f"is not for a patch: {why}; remove it")
    yield from _containers(ours, laid, patch, role)


def _containers(ours: Object, laid: Object, patch: Patch, role: str) -> Iterator[Problem]:
    """Problems of a patch that removes one of our containers, or changes its image."""
    there: Keys = ("spec", "template", "spec", "containers")
    after = {container["name"]: container for container in _at(laid, there) or ()}
    for container in _at(ours, there) or ():
        name = container["name"]
        if name not in after:
            yield _problem(patch, there, f"is not for a patch: our container `{name}` would be gone; keep it")
        elif after[name].get("image") != container["image"]:
            said = "`kubernetes.proxy.image`" if role.startswith("proxy-") else "`images`"
            index = next(number for number, it in enumerate(_at(patch.tree.value, there)) if it["name"] == name)
            yield _problem(patch, (*there, index, "image"), f"is not for a patch: {said} of the spec says which")


def _problem(patch: Patch, keys: Keys, message: str) -> Problem:
    """Problem at the location of the deepest key along the path that the patch has."""
    places = (patch.tree.places.get(keys[:length]) for length in range(len(keys), -1, -1))
    return Problem(dotted(keys), message, *next((place for place in places if place), Location(str(patch.path))))


def _at(value: Any, keys: Keys) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value
