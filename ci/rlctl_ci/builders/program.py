"""buildah and docker, for code that needs packages: their steps run with limits, without our environment.

buildah needs no daemon, and with BUILDAH_ISOLATION=chroot no more rights than a container has. docker is for a machine
of its own, and never with the socket of a cluster's node.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from rlctl.image_names import Reference
from rlctl.images.builders.base import Run
from rlctl.images.builders.choose import choose
from rlctl.images.code import CodeArchive
from rlctl.images.make import CODE_IN, BuildOptions, ImageMaker
from rlctl.images.registry.logins import merged
from rlctl_ci.builders.bases import Bases
from rlctl_ci.builders.child import Reader, read
from rlctl_ci.builders.provenance import notes, statement
from rlctl_ci.builders.registry import attach, plain, registry_of, tag
from rlctl_ci.config.settings import Project
from rlctl_ci.core.build_attempt import Job, Live, images_of
from rlctl_ci.core.errors import BuildStopped
from rlctl_ci.git.plumbing import PROXIES
from rlctl_ci.sandbox.programs import Bounds, Programs, clean
from rlctl_ci.store.records import Artifact

Look = Callable[[Job], Live | None]

NICE: Final = 10
"""Niceness of a builder: it takes all cores for minutes, and hooks and the roles of this machine come first."""


@dataclass(frozen=True, slots=True)
class Program:
    """`ArtifactBuilder` that runs buildah or docker.

    Args:
        name: buildah or docker.
        home: its own `HOME`, in place of a person's.
        look: finds the run as it is; None: it does not run.
        environ: of this process; most of it is not passed on.
        read: reads the commit.
    """

    name: str
    home: Path
    look: Look = lambda _: None
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    read: Reader = read

    def make(self, job: Job, source: Path) -> tuple[CodeArchive, Mapping[str, str | None]] | None:
        found = self.read(job, source, "code")
        if found.code is None:
            return None
        if job.project.registry is None:
            raise BuildStopped("config", f"builder {self.name} needs a registry", hint="registry: in ci.yaml")
        return found.code, found.images

    def push(self, job: Job, made: Any) -> Sequence[Artifact]:
        if made is None:
            return []
        code, published = made
        project = job.project
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        scratch, workspace = job.folder / "scratch", job.folder / "images"
        scratch.mkdir()
        workspace.mkdir()
        builder = choose(
            self.name,
            which=lambda name: shutil.which(name, path=self.environ.get("PATH", "")),
            run=self.run(job),
            scratch=scratch,
        )
        registry = registry_of(project)
        options = BuildOptions(project.registry, plain=plain(project))
        allowed = Bases(project, lambda: images_of(self.look(job)))
        published = {name: base_of(project, allowed, published.get(name)) for name in CODE_IN}
        maker = ImageMaker(
            builder, registry, options, workspace, True, job.output or job.say, allowed.check,
        )  # fmt: skip
        found = []
        for one in maker.with_code(code, published, CODE_IN):
            job.stop()
            base = published.get(one.name) or ""
            image, digest = one.reference, one.reference.digest
            proof = statement(job, [(str(image), digest)], {one.name: base})
            tagged = Reference(image.registry, image.repository, one.tag)
            tag(registry, image, job)
            attach(registry, tagged, digest, proof, notes(job))
            size = one.manifest.size if one.manifest is not None else 0
            found.append(Artifact(one.name, str(image), base, size))
        return found

    def run(self, job: Job) -> Run:
        """Runner of its programs: no kubeconfig, no token, no home of ours; registry credentials by file alone."""
        limits, config = job.project.limits, job.folder.absolute() / "logins"
        config.mkdir(mode=0o700)
        (config / "config.json").write_text(merged(job.project.logins(self.environ)))
        more = {"REGISTRY_AUTH_FILE": str(config / "config.json"), "DOCKER_CONFIG": str(config)}
        more |= {name: self.environ[name] for name in PROXIES if name in self.environ}
        return Programs(
            clean(self.environ, self.home, **more), Bounds(limits.time_s, limits.memory_mib, nice=NICE),
            job.stop, job.folder, runs_code=True,
        )  # fmt: skip


def base_of(project: Project, allowed: Bases, image: str | None) -> str | None:
    """Image to lay the code over, with a digest; None where `image` is None.

    Raises:
        BuildStopped: it is not allowed, or does not exist.
        BackendUnreachable: a registry does not say what it is.
    """
    if image is None:
        return None
    named = Reference.parse(image)
    allowed.check(named)
    found = allowed.held(named)
    if not found.digest:
        manifest = registry_of(project).manifest(found.asked)
        if manifest is None:
            raise BuildStopped("base", f"there is no {image}", hint="push it, or name another")
        found = replace(found, digest=manifest.digest)
    return str(found)
