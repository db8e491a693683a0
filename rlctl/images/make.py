"""Builds and pushes: our own images from what is installed, and the user's code over images that are published."""

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
class Wish:
    """Options of a build that hold for every image."""

    registry: str | None  # host[:port][/path]; None: the images stay here
    tag: str = __version__
    bases: Mapping[str, str] = field(default_factory=dict)  # name -> the image that it is built upon
    args: Mapping[str, str] = field(default_factory=dict)
    volumes: tuple[str, ...] = ()
    network: str | None = None
    verify: bool = True
    plain: str | None = None  # a registry that speaks plain HTTP, whatever holds for all others

    def verifies(self, registry: str) -> bool:
        """Certificates of this registry are verified."""
        return self.verify and registry != self.plain

    def reference(self, name: Name, tag: str) -> Reference:
        """The full name of an image.

        Raises:
            UsageError: registry or tag are not of the kind.
        """
        return Reference.parse(f"{self.registry or LOCAL}/rlctl-{name}:{tag}")

    def build(
        self, name: Reference, context: Path, file: Path, target: str | None, args: Mapping[str, str], base: str = ""
    ) -> Build:
        """One image to build.

        Args:
            base: the registry that the image below is pulled from.
        """
        return Build(str(name), context, file, target, args, self.volumes, self.network, self.verifies(base))


@dataclass(frozen=True, slots=True)
class Made:
    """One image that is there now."""

    name: Name
    reference: Reference  # by tag; pushed: by digest
    tag: str
    what: Literal["built", "pushed", "there"]
    config: str = ""  # digest of its configuration, where it was built or found on this machine
    manifest: Manifest | None = None  # where the registry tells
    base: str = ""  # the image that it was built upon, by digest where a registry has told
    sbom: str = ""  # the list of its packages, beside it in the registry


@dataclass(frozen=True, slots=True)
class Maker:
    """One way to build and push.

    Args:
        builder: does the work.
        registry: is asked what is there, and takes artifacts.
        wish: what is asked for.
        workspace: an empty folder.
        push: push what is built.
        say: told every line.
        check: raises where an image may not be laid under code, before its registry is asked.
        artifacts: the list of its packages is laid beside each image.
    """

    builder: Builder
    registry: Registry
    wish: Wish
    workspace: Path
    push: bool
    say: Callable[[str], object]
    check: Callable[[Reference], object] = lambda _: None
    artifacts: bool = False

    def own(self, names: Sequence[Name]) -> Iterator[Made]:
        """Our own images.

        Raises:
            BuildFailed, PushFailed, UsageError: see Builder.
        """
        folder = self.workspace / "context"
        context.stage(folder)
        for name in names:
            recipe = context.RECIPES[name]
            given = {"BASE": self._own_base(self.wish.bases[name])} if name in self.wish.bases else {}
            base = {**given, **self.wish.args}.get("BASE") or context.usual_base(folder / recipe.file)
            known = Reference.parse(base)
            about = {"BASE_NAME": str(known.by_tag), "BASE_DIGEST": known.digest}
            reference = self.wish.reference(name, self.wish.tag)
            args = {"VERSION": __version__, **about, **given, **self.wish.args}
            build = self.wish.build(reference, folder, folder / recipe.file, recipe.target, args)
            yield self._finish(name, reference, self._built(build), base)

    def _own_base(self, text: str) -> str:
        """A base with the digest that its tag stands for now, so that what is built upon is known; as it is where no
        registry tells.
        """
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
    ) -> Iterator[Made]:
        """The user's code over published images; nothing is built or pushed where the same is there already.

        Args:
            code: what is laid over.
            published: name -> image that the spec names; `bases` of the wish comes first.
            names: of CODE_IN.

        Raises:
            UsageError: there is no base.
            BackendUnreachable: a registry does not say what a base is.
            BuildFailed, PushFailed: see Builder.
        """
        for name in names:
            base = self._base(name, published.get(name))
            reference = self.wish.reference(name, code.tag(self._identity(base)))
            manifest = self._there(reference) if self.push else None
            if manifest is not None:
                self.say(f"{reference} is there already")
                listed = self._listed(reference, manifest.digest)
                pushed = reference.by_digest(manifest.digest)
                yield Made(name, pushed, reference.tag, "there", "", manifest, str(base), listed)
                continue
            config = self.builder.find(str(reference))
            if config is None:
                folder = self.workspace / name
                folder.mkdir()
                file = layers.stage(code, str(base), folder)
                config = self._built(self.wish.build(reference, folder, file, None, {}, base.registry))
            elif not self.push:
                self.say(f"{reference} is here already")
                yield Made(name, reference, reference.tag, "there", config, None, str(base))
                continue
            yield self._finish(name, reference, config, str(base))

    def _base(self, name: Name, published: str | None) -> Reference:
        """The image below the code, by digest where a registry can be asked; never one that holds code itself."""
        text = self.wish.bases.get(name) or published
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
        below = self.registry.labels(base, manifest).get(layers.BASE_LABEL)
        if below:
            base = Reference.parse(below)
            self.check(base)
            return base
        return replace(base, digest=manifest.digest)

    def _identity(self, base: Reference) -> str:
        """Identity of a base; the name of one on this machine alone may stand for another image tomorrow."""
        return str(base) if base.digest else f"{base} {self.builder.find(str(base)) or ''}"

    def _there(self, reference: Reference) -> Manifest | None:
        """Manifest that the registry has under this name; a registry that does not tell is only asked to take it."""
        try:
            return self.registry.manifest(reference)
        except BackendUnreachable as error:
            self.say(f"note: {error.message}; it is built and pushed")
            return None

    def _built(self, build: Build) -> str:
        self.say(f"{self.builder.name} builds {build.tag}")
        return self.builder.build(build, self.say)

    def _finish(self, name: Name, reference: Reference, config: str, base: str) -> Made:
        if not self.push:
            return Made(name, reference, reference.tag, "built", config, None, base)
        self.say(f"{self.builder.name} pushes {reference}")
        digest = self.builder.push(str(reference), verify=self.wish.verifies(reference.registry), say=self.say)
        pushed = reference.by_digest(digest)
        try:
            manifest = self.registry.manifest(pushed)
        except BackendUnreachable:
            manifest = None  # it is there, only its size is not known
        listed = self._listed(reference, digest)
        return Made(name, pushed, reference.tag, "pushed", config, manifest, base, listed)

    def _listed(self, reference: Reference, digest: str) -> str:
        """The list of its packages, laid beside an image that is pushed; it goes on without, and says so."""
        if not self.artifacts:
            return ""
        try:
            found = referrers.sbom(self.registry, reference, digest)
        except BackendUnreachable as error:
            self.say(f"note: no SBOM beside {reference}: {error.message}; it is in the image, /{FILE}")
            return ""
        if found is None:
            self.say(f"note: no SBOM beside {reference}: there is none in it, /{FILE}")
        return "" if found is None else str(found)
