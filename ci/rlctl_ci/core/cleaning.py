"""Removal of images, code folders and builds that are not needed any more; those in a run's history are kept."""

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
from rlctl_ci.git.refs import slug
from rlctl_ci.git.repository import drop
from rlctl_ci.sandbox.locks import held
from rlctl_ci.store import pruning
from rlctl_ci.store.reading import Reading

KEEP_EACH: Final = 10
"""Newest builds of each branch that keep their artifacts."""
KEEP_YOUNG_S: Final = 7 * 86_400.0
_DIGEST: Final = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
"""Digest of an image, or name of a code folder, in a document."""


@dataclass(frozen=True, slots=True)
class UnusedArtifact:
    """Image or code folder that no run and no kept build needs."""

    project: str
    reference: str  # an image by digest, or a folder
    bytes: int


@dataclass(frozen=True, slots=True)
class ExpiredBuilds:
    """Builds to delete, and the size of their logs."""

    builds: list[int]
    log_bytes: int


def needed(backends: Iterable[Backend]) -> set[str]:
    """Digests of images and names of code folders that any revision of any run on these targets uses.

    They are read from specs and documents, because a role with `on_push: manual` runs what no spec names any more.

    Raises:
        RlctlError: a run cannot be read; then nothing may be removed.
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
) -> list[UnusedArtifact]:  # fmt: skip
    """Artifacts that neither a run's history nor a kept build needs.

    A build is kept if it has not ended, has changed in the last `young_s` seconds, or is one of the newest `keep` of
    its branch.

    Args:
        gone: context and namespace of clusters that no longer exist, and are not asked.
    """
    stays, kept = needed((targets or asked)(config, reading, gone)), set[str]()
    seen: dict[tuple[str, str], list[int]] = {}
    candidates: dict[str, UnusedArtifact] = {}
    for build in reading.all_made():
        branch = seen.setdefault((build.project, build.ref), [])
        branch.append(build.id)
        fresh = len(branch) <= keep or now - build.updated < young_s or not build.terminal
        for one in reading.artifacts(build.id):
            if fresh:
                kept.add(one.reference)
            else:
                candidates.setdefault(one.reference, UnusedArtifact(build.project, one.reference, one.bytes))
    stays |= {_content(reference) for reference in kept}
    return [one for name, one in candidates.items() if _content(name) not in stays]


def old(
    config: Config, reading: Reading, found: Iterable[UnusedArtifact], now: float, *, keep: int = KEEP_EACH,
    young_s: float = KEEP_YOUNG_S,
) -> ExpiredBuilds:  # fmt: skip
    """Builds that can be deleted together with the artifacts that `waste` has found, and the bytes of their logs."""
    gone = [one.reference for one in found if one.project in config.projects]
    builds = pruning.old(reading.database, keep=keep, until=now - young_s, gone=gone)
    return ExpiredBuilds(builds, sum(size(_log(config, build)) for build in builds))


def forget(
    config: Config, reading: Reading, those: ExpiredBuilds, now: float, *, young_s: float = KEEP_YOUNG_S
) -> None:
    """Delete the builds that `old` has found, with their logs. After `remove`: artifacts are found by their builds."""
    for build in those.builds:  # logs first: on a full disk they free the room that the database needs
        _log(config, build).unlink(missing_ok=True)
    pruning.forget(reading.database, those.builds, delivered_until=now - max(young_s, pruning.DELIVERED_S))


def _log(config: Config, build: int) -> Path:
    return config.folder / "logs" / f"{build}.log"


def stale_copies(config: Config) -> dict[Path, int]:
    """Copies of repositories that ci.yaml does not name any more, and the bytes of each."""
    named = {slug(one.repository) for one in config.projects.values()}
    found = (
        path for path in sorted((config.folder / "git").glob("*.git")) if path.name.rpartition("-")[0] not in named
    )
    return {path: sum(map(_bytes, path.rglob("*"))) for path in found}


def _bytes(path: Path) -> int:
    try:
        return path.lstat().st_blocks * 512
    except FileNotFoundError:  # a file of git's, while it works
        return 0


def drop_copies(those: Iterable[Path]) -> None:
    """Remove what `stale_copies` has found; waits for a service that still has the former ci.yaml and is using one."""
    for path in those:
        with held(path.with_suffix(".lock")):
            drop(path)


def remove(
    config: Config, reading: Reading, found: Iterable[UnusedArtifact], code: Path, listed: float
) -> list[UnusedArtifact]:  # fmt: skip
    """Remove what `waste` has found, with provenance and package lists; returns what exists no more.

    A folder is removed only if it lies in `code`. Neither folder nor image goes that a build has made again since the
    time `listed`, no image while a build of its project is at it. With an image, a registry forgets all its tags; tags
    of deleted builds on an image that is kept stay.
    """
    gone, known = list[UnusedArtifact](), dict[tuple[str, str], dict[str, list[Reference]]]()
    for one in found:
        project = config.projects.get(one.project)
        if one.reference.startswith("/"):
            path = Path(one.reference)
            if path.parent == code and not path.is_symlink() and (not path.is_dir() or _remove_code(path, listed)):
                gone.append(one)
        elif project is not None and not reading.made_since(one.project, _content(one.reference), listed):
            image = Reference.parse(one.reference)
            to, where = registry_of(project), (image.registry, image.repository)
            if where not in known:
                known[where] = proofs(to, image)
            for proof in known[where].get(one.reference, ()):
                to.remove(proof)
            to.remove(image)
            gone.append(one)
    return gone


def _remove_code(path: Path, listed: float) -> bool:
    """Remove a code folder; False if a build has made it again since `listed`.

    It is renamed first: the next build clears away what an interrupted removal has left.
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
    """Digest of an image, whatever its tag, or name of a code folder; empty where there is none."""
    if reference.startswith("/"):
        return reference.rpartition("/")[2]
    found = _DIGEST.findall(reference)  # not parsed: another release of rlctl may write the name differently
    return str(found[-1]) if found else ""


def asked(config: Config, reading: Reading, gone: Collection[tuple[str, str]] = ()) -> Iterable[Backend]:
    """Targets where a run may need what was built: this machine, and every namespace that ci.yaml names or that was
    ever deployed to. A run stays where it is when its project moves, or is removed from ci.yaml.
    """
    found: dict[tuple[str, str], Backend] = {("", ""): LocalBackend()}
    named = [(one.context, one.namespace) for one in config.projects.values() if one.target == "kubernetes"]
    for context, namespace in (*named, *(one for one in reading.targets() if one not in gone)):
        cluster = KubernetesBackend(context, namespace)
        found.setdefault((cluster.context, cluster.namespace), cluster)
    return found.values()
