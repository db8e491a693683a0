"""SLSA provenance 1.0 of an image: its commit, its base, its builder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rlctl import __version__
from rlctl_ci.core.build_attempt import Job


def statement(job: Job, subjects: Sequence[tuple[str, str]], bases: Mapping[str, str]) -> dict[str, Any]:
    """in-toto statement about what a build has made.

    Args:
        job: the attempt at the build.
        subjects: name and digest (`sha256:...`) of what was made.
        bases: image -> its base, by digest.
    """
    build, project = job.build, job.project
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": digest.removeprefix("sha256:")}} for name, digest in subjects],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": f"https://rlctl.dev/ci/{project.builder}/v1",
                "externalParameters": {"repository": project.repository, "ref": build.ref, "spec": project.spec},
                "internalParameters": {"recipe": build.recipe, "bases": dict(bases)},
                "resolvedDependencies": [
                    {"uri": f"git+{project.repository}", "digest": {"gitCommit": build.sha}},
                    *({"uri": base} for base in bases.values()),
                ],
            },
            "runDetails": {
                "builder": {"id": "https://rlctl.dev/ci", "version": {"rlctl": __version__}},
                "metadata": {
                    "invocationId": f"build-{build.id}-{build.attempts}",
                    "startedOn": _started(job),
                },
            },
        },
    }


def notes(job: Job) -> dict[str, str]:
    """Annotations by which tools show the source of an image.

    They lie beside the image and are no labels of it: with a commit in it, equal code would no longer be one image,
    and every push would restart every role.
    """
    return {
        "org.opencontainers.image.revision": job.build.sha,
        "org.opencontainers.image.source": job.project.repository,
        "org.opencontainers.image.created": _started(job),
    }


def _started(job: Job) -> str:
    return datetime.fromtimestamp(job.build.updated, UTC).isoformat()
