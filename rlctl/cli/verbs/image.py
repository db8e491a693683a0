"""`rlctl image`: images of pods, built and pushed with buildah, podman or docker."""

from __future__ import annotations

import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlctl.cli.context import World
from rlctl.cli.options import OptionalSpecs, verb
from rlctl.cli.text import plain, table
from rlctl.errors import RlctlError, UsageError

if TYPE_CHECKING:
    from rlctl.images.builders.base import Name
    from rlctl.images.make import BuildOptions, BuiltImage, ImageMaker
    from rlctl.spec import Loaded

LARGE_MB = 100
"""Megabytes of code above which a note is printed: so much is hardly all code, and every node pulls it."""

app = typer.Typer(rich_markup_mode=None, help="Build and push the images of a cluster.")


class BuilderName(StrEnum):
    """Choices of --builder."""

    auto = "auto"
    buildah = "buildah"
    podman = "podman"
    docker = "docker"


class ImageName(StrEnum):
    """Choices of --only."""

    core = "core"
    actor = "actor"
    learner = "learner"
    ci = "ci"


Only = Annotated[list[ImageName] | None, typer.Option("--only", help="This image alone; repeatable.")]
Tag = Annotated[
    str | None,
    typer.Option("--tag", metavar="T", help="Default: the version of rlctl; not with SPEC, whose content names it."),
]
BuilderOption = Annotated[BuilderName, typer.Option("--builder", help="auto: the first of these that can be used.")]
Bases = Annotated[
    list[str] | None,
    typer.Option("--base", metavar="NAME=REF", help="What an image is built upon; repeatable."),
]
BuildArgs = Annotated[
    list[str] | None,
    typer.Option("--build-arg", metavar="KEY=VALUE", help="An ARG of the Dockerfiles; repeatable; not with SPEC."),
]
Volumes = Annotated[
    list[str] | None,
    typer.Option("--volume", metavar="HOST:CONTAINER[:ro]", help="A folder or file bound while it builds; repeatable."),
]
Network = Annotated[str | None, typer.Option("--network", metavar="MODE", help="Of the build, as in host.")]
Verify = Annotated[
    bool, typer.Option("--tls-verify/--no-tls-verify", help="Look at certificates; without, plain HTTP will do.")
]


@app.command()
@verb()
def build(
    world: World,
    specs: OptionalSpecs = None,
    registry: Annotated[
        str | None, typer.Option("--registry", metavar="HOST[/PATH]", help="Part of the names; default: localhost.")
    ] = None,
    tag: Tag = None,
    only: Only = None,
    builder: BuilderOption = BuilderName.auto,
    base: Bases = None,
    build_arg: BuildArgs = None,
    volume: Volumes = None,
    network: Network = None,
    tls_verify: Verify = True,
) -> int:
    """Build images on this machine.

    Without SPEC rlctl's own: core, actor, learner. With one, its `code` as a layer over the actor's and the learner's.
    `--only ci`: the image of `rlctl ci serve` on a cluster, which is none of a run.
    """
    _check_own(specs, tag, build_arg)
    build_options = _build_options(registry, tag, base, build_arg, volume, network, tls_verify)
    with _maker(world, build_options, builder, push=False) as maker:
        made = list(_made(world, maker, specs, only, ())[0])
    world.lines(table((image.name, image.what, image.config, str(image.reference)) for image in made))
    world.document({"images": [as_plain(image) for image in made]})
    return 0


@app.command()
@verb()
def push(
    world: World,
    specs: OptionalSpecs = None,
    registry: Annotated[str | None, typer.Option("--registry", metavar="HOST[/PATH]", help="Where to; needed.")] = None,
    tag: Tag = None,
    only: Only = None,
    builder: BuilderOption = BuilderName.auto,
    base: Bases = None,
    build_arg: BuildArgs = None,
    volume: Volumes = None,
    network: Network = None,
    tls_verify: Verify = True,
    write: Annotated[
        Path | None, typer.Option("--write", metavar="FILE", help="Write the digests for `rlctl up spec.yaml FILE`.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite FILE whatever it holds.")] = False,
) -> int:
    """Build images and push them; print their digests.

    What is printed is a spec file with nothing but `images`. Layers that the registry has are not sent again, and code
    that it has is not even built. `--only ci` prints the image of the service, for `rlctl ci manifest --image`.
    """
    from rlctl.images import overlay

    if registry is None:
        raise UsageError("push needs --registry", hint="rlctl image push --registry registry.example.org/team")
    service = ImageName.ci in (only or ())
    if service and (write is not None or len(set(only or ())) > 1):
        raise UsageError("--only ci goes alone: it is no image of a run, and no spec names it")
    _check_own(specs, tag, build_arg)
    build_options = _build_options(registry, tag, base, build_arg, volume, network, tls_verify)
    if write is not None and not force:
        overlay.read(write)  # a refusal at the end would come after all the work
    if write is not None:
        overlay.check_folder(write)
    with _maker(world, build_options, builder, push=True) as maker:
        images, published = _made(world, maker, specs, only, () if write is None else (write,))
        made = list(images)
    named = {name: image for name, image in published.items() if image} | {
        image.name: str(image.reference) for image in made if not service
    }
    notes = {str(image.name): _note(image) for image in made}
    if write is not None:
        try:
            named = overlay.write(write, named, force=force, notes=notes)
        except RlctlError:
            world.data(
                overlay.text(named, notes).removesuffix("\n")
            )  # they are pushed, and their digests would be lost
            raise
    sizes = [(image.name, image.what, _size(image), image.tag) for image in made]
    for line in table(sizes):
        world.say(line)
    if write is not None:
        world.say(f"next: rlctl up {shlex.join(map(str, specs)) if specs else 'SPEC'}" + _unless_there(write, specs))
    world.data(str(made[0].reference) if service else overlay.text(named, notes).removesuffix("\n"))
    world.document(
        {
            "images": [as_plain(image) for image in made],
            "overlay": {"images": named},
            "written": None if write is None else str(write),
        }
    )
    return 0


def as_plain(image: BuiltImage) -> dict[str, Any]:
    """Record of one image for `-o json`; sizes are in bytes, as pulled."""
    layers = () if image.manifest is None else image.manifest.layers
    return {
        "name": image.name,
        "reference": str(image.reference),
        "tag": image.tag,
        "what": image.what,
        "config": image.config or None,
        "base": image.base or None,
        "sbom": image.sbom or None,
        "bytes": image.manifest.size if image.manifest is not None and layers else None,
        "layers": [{"digest": layer.digest, "bytes": layer.size} for layer in layers],
    }


def _check_own(specs: Sequence[Path] | None, tag: str | None, build_arg: Sequence[str] | None) -> None:
    """Check that options of rlctl's own images are not given for code that is laid over them.

    Raises:
        UsageError: they are.
    """
    given = [option for option, value in (("--tag", tag), ("--build-arg", build_arg)) if value]
    if specs and given:
        raise UsageError(
            f"{' and '.join(given)}: for rlctl's own images, and SPEC lays code over them, named by its content",
            hint="leave out SPEC, or the option",
        )


def _build_options(
    registry: str | None,
    tag: str | None,
    base: Sequence[str] | None,
    build_arg: Sequence[str] | None,
    volume: Sequence[str] | None,
    network: str | None,
    verify: bool,
) -> BuildOptions:
    from rlctl import __version__
    from rlctl.images.context import DOCKERFILES
    from rlctl.images.make import BuildOptions

    if tag is not None and not re.fullmatch(r"\w[\w.-]{0,127}", tag, re.ASCII):
        raise UsageError(f"--tag {tag}: no tag of an image", hint="letters, digits, _ . and -, at most 128")
    bases = _pairs("--base", base)
    for name in bases:
        if name not in DOCKERFILES:
            raise UsageError(f"--base {name}={bases[name]}: no such image", hint=f"images: {', '.join(DOCKERFILES)}")
    return BuildOptions(
        registry=None if registry is None else registry.removeprefix("https://").rstrip("/"),
        tag=tag or __version__,
        bases=bases,
        args=_pairs("--build-arg", build_arg),
        volumes=tuple(volume or ()),
        network=network,
        verify=verify,
    )


def _pairs(option: str, values: Sequence[str] | None) -> dict[str, str]:
    found = {}
    for value in values or ():
        key, equals, text = value.partition("=")
        if not key or not equals:
            raise UsageError(f"{option} {value}: must be KEY=VALUE")
        found[key] = text
    return found


@contextmanager
def _maker(world: World, build_options: BuildOptions, wanted: BuilderName, *, push: bool) -> Iterator[ImageMaker]:
    """Builder and registry of one command, with temporary folders."""
    from rlctl.images.builders.choose import choose
    from rlctl.images.builders.programs import Programs
    from rlctl.images.make import ImageMaker
    from rlctl.images.registry.client import Registry
    from rlctl.images.registry.logins import logins

    with tempfile.TemporaryDirectory(prefix="rlctl-image-") as folder:
        scratch, workspace = Path(folder, "scratch"), Path(folder, "work")
        scratch.mkdir()
        workspace.mkdir()
        chosen = choose(
            None if wanted is BuilderName.auto else wanted.value,
            which=lambda name: shutil.which(name, path=world.environ.get("PATH", "")),
            run=Programs(world.environ),
            scratch=scratch,
        )
        registry = Registry(build_options.verify, logins(world.environ))
        yield ImageMaker(
            chosen, registry, build_options, workspace, push, lambda line: world.say(plain(line))
        )  # fmt: skip


def _made(
    world: World,
    maker: ImageMaker,
    specs: Sequence[Path] | None,
    only: Sequence[ImageName] | None,
    written: Sequence[Path],
) -> tuple[Iterator[BuiltImage], Mapping[str, str | None]]:
    """The requested images, built one after the other as they are iterated, and those that the spec names already."""
    from rlctl.images.builders.base import NAMES
    from rlctl.images.code import collect
    from rlctl.images.context import DOCKERFILES
    from rlctl.images.make import CODE_IN

    possible: tuple[Name, ...] = CODE_IN if specs else tuple(DOCKERFILES)
    for name in only or ():
        if name.value not in possible:
            raise UsageError(f"--only {name.value}: holds no code of yours", hint=f"images: {', '.join(possible)}")
    wanted = {name.value for name in only} if only else set(NAMES)
    names = [name for name in possible if name in wanted]
    if not specs:
        return maker.own(names), {}
    loaded = _load(world, specs)
    section = loaded.spec.code
    if section is None:
        raise UsageError(
            f"{', '.join(map(str, specs))}: no `code`, so there is nothing to lay over the images",
            hint="without SPEC rlctl's own images are made",
        )
    requirements = None if section.requirements is None else loaded.base / section.requirements
    # specs and what is written beside them change without the code: they would restart roles that they do not concern
    code = collect(
        loaded.base / section.path, requirements, into=maker.workspace / "code.tar", without=(*specs, *written)
    )
    megabytes = code.size / 1e6
    world.say(f"code: {code.files} files, {megabytes:.1f} MB")
    if megabytes > LARGE_MB:
        ignore = loaded.base / section.path / ".dockerignore"
        world.say(f"note: every node pulls that; name what is no code in {ignore}")
    published = loaded.spec.images.model_dump(mode="json")
    return maker.with_code(code, published, names), published


def _load(world: World, specs: Sequence[Path]) -> Loaded:
    """The spec as far as it concerns images: those that a cluster needs may still be missing, as they are made here."""
    from rlctl.spec import load

    return load(list(specs), ["target=local"], machine=world.machine)


def _note(image: BuiltImage) -> str:
    """Comment above an image in the file of digests."""
    return f"over {image.base}" + (f"; SBOM: {image.sbom}" if image.sbom else "")


def _size(image: BuiltImage) -> str:
    if image.manifest is None or not image.manifest.layers:
        return "-"
    return f"{image.manifest.size / 1e6:.1f} MB in {len(image.manifest.layers)} layers"


def _unless_there(write: Path, specs: Sequence[Path] | None) -> str:
    return "" if write in (specs or ()) else f" {shlex.quote(str(write))}"
