"""Build and push of images: our own from what is installed, and the user's code over published images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

from rlctl import __version__
from rlctl.errors import BackendUnreachable, UsageError
from rlctl.image_names import LOCAL, Reference
from rlctl.images import code as layers
from rlctl.images import context
from rlctl.images.builders.base import Build, Builder, Name
from rlctl.images.code import CodeArchive
from rlctl.images.registry import referrers
from rlctl.images.registry.client import Manifest, Registry
from rlctl.images.sbom import FILE

CODE_IN: Final[tuple[Name, ...]] = ("actor", "learner")
"""Images whose roles import the user's code; manager and modelpool never do."""


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """Build options common to all images."""

    registry: str | None  # host[:port][/path]; None: the images stay on this machine
    tag: str = __version__
    bases: Mapping[str, str] = field(default_factory=dict)  # name -> base image
    args: Mapping[str, str] = field(default_factory=dict)
    volumes: tuple[str, ...] = ()
    network: str | None = None
    verify: bool = True
    plain: str | None = None  # a registry that speaks plain HTTP, whatever `verify` says

    def verifies(self, registry: str) -> bool:
        """Whether certificates of a registry are verified."""
        return self.verify and registry != self.plain

    def reference(self, name: Name, tag: str) -> Reference:
        """The full name of an image.

        Raises:
            UsageError: registry or tag is malformed.
        """
        return Reference.parse(f"{self.registry or LOCAL}/rlctl-{name}:{tag}")

    def build(
        self, name: Reference, context: Path, file: Path, target: str | None, args: Mapping[str, str], base: str = ""
    ) -> Build:
        """Build of one image.

        Args:
            base: registry that its base is pulled from.
        """
        return Build(str(name), context, file, target, args, self.volumes, self.network, self.verifies(base))


@dataclass(frozen=True, slots=True)
class BuiltImage:
    """One image that exists now."""

    name: Name
    reference: Reference  # by tag; pushed: by digest
    tag: str
    what: Literal["built", "pushed", "there"]
    config: str = ""  # digest of its configuration, where it was built or found on this machine
    manifest: Manifest | None = None  # if the registry tells it
    base: str = ""  # base image, by digest if a registry has told it
    sbom: str = ""  # list of its packages (SBOM), beside it in the registry


@dataclass(frozen=True, slots=True)
class ImageMaker:
    """Builds and pushes images with one builder.

    Args:
        builder: builds and pushes.
        registry: queried for existing images; stores the list of packages (SBOM) of each that is pushed.
        options: options of the build.
        workspace: an empty folder.
        push: push what is built.
        say: called with every line.
        check: raises if an image may not be laid under code, before its registry is queried.
    """

    builder: Builder
    registry: Registry
    options: BuildOptions
    workspace: Path
    push: bool
    say: Callable[[str], object]
    check: Callable[[Reference], object] = lambda _: None

    def own(self, names: Sequence[Name]) -> Iterator[BuiltImage]:
        """Build our own images.

        Raises:
            BuildFailed, PushFailed, UsageError: see Builder.
        """
        folder = self.workspace / "context"
        context.stage(folder)
        for name in names:
            file = folder / context.DOCKERFILES[name]
            given = {"BASE": self._own_base(self.options.bases[name])} if name in self.options.bases else {}
            base = {**given, **self.options.args}.get("BASE") or context.usual_base(file)
            known = Reference.parse(base)
            about = {"BASE_NAME": str(known.by_tag), "BASE_DIGEST": known.digest}
            reference = self.options.reference(name, self.options.tag)
            args = {"VERSION": __version__, **about, **given, **self.options.args}
            build = self.options.build(reference, folder, file, name, args)
            yield self._finish(name, reference, self._built(build), base)

    def _own_base(self, text: str) -> str:
        """A base with its tag's current digest, so that it is recorded exactly; unchanged if no registry tells."""
        base = Reference.parse(text)
        if base.digest or not base.remote:
            return text
        try:
            manifest = self.registry.manifest(base)
        except BackendUnreachable as error:
            self.say(f"note: {error.message}; the digest of {base} is not recorded")
            return text
        return text if manifest is None else str(replace(base, digest=manifest.digest))

    def with_code(
        self, code: CodeArchive, published: Mapping[str, str | None], names: Sequence[Name]
    ) -> Iterator[BuiltImage]:
        """Build images of the user's code over published ones; none is built or pushed where it exists already.

        Args:
            code: code to lay over the base.
            published: name -> image in the spec; `bases` of the options takes precedence.
            names: names of CODE_IN.

        Raises:
            UsageError: there is no base.
            BackendUnreachable: a registry does not answer about a base, or does not have it.
            BuildFailed, PushFailed: see Builder.
        """
        for name in names:
            base = self._base(name, published.get(name))
            reference = self.options.reference(name, code.tag(self._identity(base)))
            manifest = self._there(reference) if self.push else None
            if manifest is not None:
                self.say(f"{reference} is there already")
                listed = self._listed(reference, manifest.digest)
                pushed = reference.by_digest(manifest.digest)
                yield BuiltImage(name, pushed, reference.tag, "there", "", manifest, str(base), listed)
                continue
            config = self.builder.find(str(reference))
            if config is None:
                folder = self.workspace / name
                folder.mkdir()
                file = layers.stage(code, str(base), folder)
                config = self._built(self.options.build(reference, folder, file, None, {}, base.registry))
            elif not self.push:
                self.say(f"{reference} is here already")
                yield BuiltImage(name, reference, reference.tag, "there", config, None, str(base))
                continue
            yield self._finish(name, reference, config, str(base))

    def _base(self, name: Name, published: str | None) -> Reference:
        """Base image for the code, by digest if its registry can be queried; of an image with code, its own base."""
        text = self.options.bases.get(name) or published
        if text is None:
            raise UsageError(
                f"there is no {name} image to lay the code over",
                hint="rlctl image push --registry R --write images.yaml makes them; then name that file after the spec",
                objects=(name,),
            )
        base = Reference.parse(text)
        self.check(base)
        if not base.remote:
            return base
        manifest = self.registry.manifest(base)
        if manifest is None:
            raise BackendUnreachable(
                f"registry {base.registry} has no {base}",
                hint=f"push it, or name another: --base {name}=REF",
                objects=(str(base),),
            )
        pinned = replace(base, digest=manifest.digest)
        if below := self.registry.label(pinned, layers.BASE_LABEL):
            base = Reference.parse(below)
            self.check(base)
            return base
        return pinned

    def _identity(self, base: Reference) -> str:
        """Identity of a base: a name on this machine alone may mean another image tomorrow, so its digest is added."""
        return str(base) if base.digest else f"{base} {self.builder.find(str(base)) or ''}"

    def _there(self, reference: Reference) -> Manifest | None:
        """Manifest in the registry under this name; None without one, or if the registry does not answer."""
        try:
            return self.registry.manifest(reference)
        except BackendUnreachable as error:
            self.say(f"note: {error.message}; it is built and pushed")
            return None

    def _built(self, build: Build) -> str:
        self.say(f"{self.builder.name} builds {build.tag}")
        return self.builder.build(build, self.say)

    def _finish(self, name: Name, reference: Reference, config: str, base: str) -> BuiltImage:
        if not self.push:
            return BuiltImage(name, reference, reference.tag, "built", config, None, base)
        self.say(f"{self.builder.name} pushes {reference}")
        digest = self.builder.push(str(reference), verify=self.options.verifies(reference.registry), say=self.say)
        pushed = reference.by_digest(digest)
        try:
            manifest = self.registry.manifest(pushed)
        except BackendUnreachable:
            manifest = None  # it is pushed, only its size is not known
        listed = self._listed(reference, digest)
        return BuiltImage(name, pushed, reference.tag, "pushed", config, manifest, base, listed)

    def _listed(self, reference: Reference, digest: str) -> str:
        """Store the list of packages (SBOM) of a pushed image beside it; returns its name, or "" with a note."""
        try:
            found = referrers.sbom(self.registry, reference, digest)
        except BackendUnreachable as error:
            self.say(f"note: no SBOM beside {reference}: {error.message}; it is in the image, /{FILE}")
            return ""
        if found is None:
            self.say(f"note: no SBOM beside {reference}: there is none in it, /{FILE}")
        return "" if found is None else str(found)
