"""The default on a cluster: the code of a commit as one layer over the published images, by the registry's own API."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlctl.errors import UsageError
from rlctl.image_names import Reference
from rlctl.images import append as appending
from rlctl.images.append import Base, Layer
from rlctl.images.builders.base import Name
from rlctl.images.code import CodeArchive
from rlctl.images.make import CODE_IN
from rlctl.images.registry.client import sha256
from rlctl.images.registry.referrers import sbom as listed
from rlctl_ci.builders.bases import Bases
from rlctl_ci.builders.child import Reader, read
from rlctl_ci.builders.provenance import notes, statement
from rlctl_ci.builders.registry import attach, registry_of, tag
from rlctl_ci.core.build_attempt import Job, Live, images_of
from rlctl_ci.core.errors import BuildStopped
from rlctl_ci.store.records import Artifact


@dataclass(frozen=True, slots=True)
class AppendedImages:
    """Layer of code to push, and the images to lay it over."""

    code: CodeArchive
    layer: Layer
    bases: dict[Name, Base]


@dataclass(frozen=True, slots=True)
class Append:
    """`ArtifactBuilder` that appends a layer. No program is started, and no instruction of the repository is followed.

    Args:
        look: finds the run as it is; None: it does not run.
        read: reads the commit.
    """

    look: Callable[[Job], Live | None] = lambda _: None
    read: Reader = read

    def make(self, job: Job, source: Path) -> AppendedImages | None:
        found = self.read(job, source, "layer")
        code, layer = found.code, found.layer
        if code is None or layer is None:
            return None
        job.say(f"code: {code.files} files, {code.size / 1e6:.1f} MB")
        allowed, bases = Bases(job.project, lambda: images_of(self.look(job))), {}
        registry = registry_of(job.project)
        for name in CODE_IN:
            image = found.images.get(name)
            if image is None:
                raise BuildStopped(
                    "base", f"the spec names no {name} image to lay the code over",
                    hint=f"sets: [images.{name}=REGISTRY/NAME@sha256:...] in ci.yaml, or images in the spec",
                )  # fmt: skip
            try:
                named = Reference.parse(image)
                allowed.check(named)
                bases[name] = appending.read_base(registry, allowed.held(named), job.project.platform, allowed.check)
            except UsageError as error:
                raise BuildStopped("base", error.message, hint=error.hint) from error
        return AppendedImages(code, layer, bases)

    def push(self, job: Job, made: Any) -> Sequence[Artifact]:
        return [] if made is None else [self._one(job, made, name) for name in made.bases]

    def _one(self, job: Job, made: AppendedImages, name: Name) -> Artifact:
        base = made.bases[name]
        # `rlctl image push` gives the same code another tag, because its bytes differ
        image = Reference.parse(f"{job.project.registry}/rlctl-{name}:ci-{made.code.tag(str(base.reference))}")
        to = registry_of(job.project)
        done = appending.append(base, made.layer, {})
        there = to.document(image)
        digest = sha256(done.manifest)
        if there is not None and sha256(there[0]) == digest:
            job.say(f"{image} is there already")
        else:
            job.say(f"pushing {image}")
            appending.push(done, to, image)
        tag(to, image.by_digest(digest), job)
        pushed = str(image.by_digest(digest))
        attach(to, image, digest, statement(job, [(pushed, digest)], {name: str(base.reference)}), notes(job))
        listed(to, image, digest)
        return Artifact(name, pushed, str(base.reference), made.layer.size)
