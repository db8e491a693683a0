"""Removal of images, code folders and builds that are not needed any more; those of a run's history are never."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rlctl.backends.base import Backend
from rlctl.backends.kubernetes.backend import KubernetesBackend
from rlctl.backends.local import LocalBackend
from rlctl.image_names import Reference
from rlctl_ci.builders.folder import remove as remove_folder
from rlctl_ci.builders.registry import proofs, registry_of
from rlctl_ci.config.settings import Config
from rlctl_ci.core.logs import size
from rlctl_ci.sandbox.locks import held
from rlctl_ci.store import pruning
from rlctl_ci.store.reading import Reading

KEEP_EACH: Final = 10
"""Of each branch, the newest so many builds keep what they made."""
KEEP_YOUNG_S: Final = 7 * 86_400.0
_DIGEST: Final = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
"""In a document: of an image, or the name of a code folder."""


@dataclass(frozen=True, slots=True)
class Waste:
    """Something that may go."""

    project: str
    reference: str  # an image by digest, or a folder
    bytes: int


@dataclass(frozen=True, slots=True)
class Old:
    """Builds that may go."""

    builds: list[int]
    log_bytes: int


def needed(backends: Iterable[Backend]) -> set[str]:
    """Digests of images and names of code folders of every revision of every run that a target knows: of its spec, and
    of its documents, because a role with `on_push: manual` runs what no spec names any more.

    Raises:
        RlctlError: one of them cannot be read; then nothing may be removed.
    """
    found: set[str] = set()
    for backend in backends:
        for state in backend.runs():
            kept = backend.revisions(state.run)
            for spec in (state.spec, *(one.spec for one in kept)):
                named = [*(spec.get("images") or {}).values(), (spec.get("code") or {}).get("path")]
                found |= {_content(one) for one in named if isinstance(one, str)}
            for number in (None, *(one.number for one in kept)):
                for document in backend.documents(state.run, number):
                    found |= {*_DIGEST.findall(document.text)}
    return found


def waste(
    config: Config, reading: Reading, now: float, *, keep: int = KEEP_EACH, young_s: float = KEEP_YOUNG_S,
    gone: Collection[tuple[str, str]] = (),
    targets: Callable[[Config, Reading, Collection[tuple[str, str]]], Iterable[Backend]] | None = None,
) -> list[Waste]:  # fmt: skip
    """Artifacts beyond every run's history, each branch's newest `keep` builds, and the builds of the last days.

    Args:
        gone: context and namespace of clusters that are no more, and are not asked.
    """
    stays, kept = needed((targets or asked)(config, reading, gone)), set[str]()
    seen: dict[tuple[str, str], list[int]] = {}
    candidates: dict[str, Waste] = {}
    for build in reading.all_made():
        branch = seen.setdefault((build.project, build.ref), [])
        branch.append(build.id)
        fresh = len(branch) <= keep or now - build.updated < young_s or not build.terminal
        for one in reading.artifacts(build.id):
            if fresh:
                kept.add(one.reference)
            else:
                candidates.setdefault(one.reference, Waste(build.project, one.reference, one.bytes))
    stays |= {_content(reference) for reference in kept}
    return [one for name, one in candidates.items() if _content(name) not in stays]


def old(
    config: Config, reading: Reading, found: Iterable[Waste], now: float, *, keep: int = KEEP_EACH,
    young_s: float = KEEP_YOUNG_S,
) -> Old:  # fmt: skip
    """Builds that may go together with what `waste` has found, with their logs."""
    gone = [one.reference for one in found if one.project in config.projects]
    builds = pruning.old(reading.database, keep=keep, until=now - young_s, gone=gone)
    return Old(builds, sum(size(_log(config, build)) for build in builds))


def forget(config: Config, reading: Reading, those: Old, now: float, *, young_s: float = KEEP_YOUNG_S) -> None:
    """Drop what `old` has found; after `remove`, as without them what they have made is not found any more."""
    for build in those.builds:  # first: on a full disk they are the room that the database needs for the rest
        _log(config, build).unlink(missing_ok=True)
    pruning.forget(reading.database, those.builds, delivered_until=now - max(young_s, pruning.DELIVERED_S))


def _log(config: Config, build: int) -> Path:
    return config.folder / "logs" / f"{build}.log"


def remove(config: Config, found: Iterable[Waste], code: Path, listed: float) -> int:
    """Remove what `waste` has found, with what lies beside it; a folder only from below `code`, and only if no build
    has made the same code again since the moment `listed`. Returns how many.

    With an image a registry forgets all its tags; those of builds that are not kept, on an image that is, stay.
    """
    count, known = 0, dict[tuple[str, str], dict[str, list[Reference]]]()
    for one in found:
        project = config.projects.get(one.project)
        if one.reference.startswith("/"):
            path = Path(one.reference)
            if path.parent == code and path.is_dir() and not path.is_symlink():
                count += _remove_code(path, listed)
        elif project is not None:
            image = Reference.parse(one.reference)
            to, where = registry_of(project), (image.registry, image.repository)
            if where not in known:
                known[where] = proofs(to, image)
            for proof in known[where].get(one.reference, ()):
                to.remove(proof)
            to.remove(image)
            count += 1
    return count


def _remove_code(path: Path, listed: float) -> bool:
    """Remove a folder of code; False if a build has made it again meanwhile. One that is removed in part has a name
    that the next build removes.
    """
    proof = path.with_name(f"{path.name}.provenance.json")
    with held(path.parent / ".lock"):
        if proof.exists() and proof.stat().st_mtime >= listed:
            return False
        part = path.with_name(f".{path.name}.part")
        path.rename(part)
        remove_folder(part)
        proof.unlink(missing_ok=True)
    return True


def _content(reference: str) -> str:
    """Equal for names of one image, whatever its tag; a folder is named by its content."""
    if reference.startswith("/"):
        return reference.rpartition("/")[2]
    found = _DIGEST.findall(reference)  # not parsed: a run may name an image as another release of rlctl takes it
    return str(found[-1]) if found else ""


def asked(config: Config, reading: Reading, gone: Collection[tuple[str, str]] = ()) -> Iterable[Backend]:
    """Targets where a run may need what was built: this machine, and every namespace that ci.yaml names or that was
    ever deployed to. A run stays where it is when its project goes elsewhere, or out of ci.yaml.
    """
    found: dict[tuple[str, str], Backend] = {("", ""): LocalBackend()}
    named = [(one.context, one.namespace) for one in config.projects.values() if one.target == "kubernetes"]
    for context, namespace in (*named, *(one for one in reading.targets() if one not in gone)):
        cluster = KubernetesBackend(context, namespace)
        found.setdefault((cluster.context, cluster.namespace), cluster)
    return found.values()
