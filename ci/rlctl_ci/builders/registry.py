"""Registry of a project: its address, our logins there, and the provenance that lies beside an image."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, Final

from rlctl.image_names import Reference, registry_of_folder
from rlctl.images.registry import referrers
from rlctl.images.registry.client import Registry, sha256
from rlctl.images.registry.logins import logins
from rlctl_ci.config.settings import Project
from rlctl_ci.core.build_attempt import Job
from rlctl_ci.git.refs import slug

_PROOF: Final = ".provenance"
PROVENANCE: Final = "application/vnd.in-toto+json"


def plain(project: Project) -> str | None:
    """The one registry with plain HTTP: that of the project, which the configuration requires to be on loopback."""
    return registry_of_folder(project.registry or "") if project.plain_http else None


def registry_of(project: Project) -> Registry:
    """Client for all registries that a project names, with the logins of its file, else those of this user."""
    return Registry(credentials=logins(project.logins(os.environ)), plain=plain(project))


def tags(job: Job) -> tuple[str, str]:
    """Tags by which a person finds the image of a commit, or the last one of a branch; deployments use digests.

    They begin with letters, because readers of YAML take a short commit name for a number, or for 1e12.
    """
    return f"git-{job.build.sha[:12]}", f"branch-{slug(job.build.ref)}-{job.build.id}"


def tag(to: Registry, image: Reference, job: Job) -> None:
    """Give an image the tags of a build, unless it has them: the same image under further names.

    Args:
        to: the registry.
        image: by digest, as it was pushed.
        job: the attempt at the build.
    """
    found = to.document(image)
    assert found is not None, image
    for name in tags(job):
        named = Reference(image.registry, image.repository, name)
        there = to.document(named)
        if there is None or there[0] != found[0]:
            to.put(named, found[0], found[1].partition(";")[0])


def proofs(to: Registry, image: Reference) -> dict[str, list[Reference]]:
    """Image -> its provenance and package list, by digest, for all images in the repository of `image`."""
    found: dict[str, list[Reference]] = {}
    for name in to.tags(image):
        ours = name.endswith((_PROOF, referrers.SBOM))
        there = to.document(Reference(image.registry, image.repository, name)) if ours else None
        if there is not None:
            subject = (json.loads(there[0]).get("annotations") or {}).get(referrers.SUBJECT, "")
            found.setdefault(str(subject), []).append(image.by_digest(sha256(there[0])))
    return found


def attach(to: Registry, image: Reference, digest: str, proof: Mapping[str, Any], notes: Mapping[str, str]) -> None:
    """Attach provenance to an image, unless it is there: an artifact under the tag of the image and `.provenance`.

    Args:
        to: the registry.
        image: by tag.
        digest: of the image.
        proof: see `provenance.statement`.
        notes: annotations, for tools that look at a registry without reading it.
    """
    referrers.attach(to, image, digest, json.dumps(proof, sort_keys=True).encode(), PROVENANCE, _PROOF, notes)
