"""Pinning of image tags: `name:tag` becomes `name:tag@digest`. A registry is queried once, then the digest is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Final

from rlctl.errors import BackendUnreachable, Problem, RlctlError, SpecError
from rlctl.image_names import LOCAL, Reference
from rlctl.images.registry.client import Registry

GIVE_A_DIGEST: Final = "give a digest (NAME@sha256:..., as `rlctl image push` prints it), or check network and login"


@dataclass(frozen=True, slots=True)
class Pinned:
    """Images of a spec, each with a digest."""

    images: Mapping[str, str] = field(default_factory=dict)  # core, actor, learner -> reference
    asked: frozenset[str] = frozenset()  # names whose digest a registry has told just now


def pin(
    images: Mapping[str, str | None], recorded: Mapping[str, str], registry: Callable[[str], Registry], *,
    pull: bool = False,
) -> Pinned:  # fmt: skip
    """Give every image of a spec its digest.

    Args:
        images: name -> reference as the spec has it, or None.
        recorded: the images as last applied, with digests; the digest of an equal tag is kept.
        registry: client of a host, as an image names it.
        pull: query every tag, whatever is recorded.

    Raises:
        BackendUnreachable: a registry does not tell the digest of a tag.
        SpecError: a registry has no such image.
    """
    given = {name: image for name, image in images.items() if image is not None}
    found = {name: image for name, image in given.items() if Reference.parse(image).digest}
    if not pull:
        found |= {name: recorded[name] for name, image in given.items() if _is(recorded.get(name, ""), image)}
    tags = {name: image for name, image in given.items() if name not in found}
    if tags:
        found |= _asked(tags, registry)
    return Pinned({name: found[name] for name in given}, frozenset(tags))


def held(image: Reference, known: Reference) -> bool:
    """Whether an image known by digest was named by this tag."""
    return bool(image.tag and known.digest) and not image.digest and known.by_tag == image


def _is(recorded: str, image: str) -> bool:
    try:
        return bool(recorded) and held(Reference.parse(image), Reference.parse(recorded))
    except RlctlError:  # recorded by another release, or by hand
        return False


def _asked(tags: Mapping[str, str], registry: Callable[[str], Registry]) -> dict[str, str]:
    """Digests from registries, queried concurrently; an image that several roles share is queried once."""

    def ask(image: str) -> str | RlctlError:
        try:
            return str(_resolved(Reference.parse(image), registry))
        except RlctlError as error:
            return error

    different = list(dict.fromkeys(tags.values()))
    with ThreadPoolExecutor(len(different)) as threads:
        told = dict(zip(different, threads.map(ask, different), strict=True))
    failed = {name: error for name, image in tags.items() if isinstance(error := told[image], RlctlError)}
    problems = [Problem(f"images.{name}", error.message) for name, error in failed.items()]
    if any(isinstance(error, BackendUnreachable) for error in failed.values()):
        raise BackendUnreachable(
            "\n".join(map(str, problems)), hint=GIVE_A_DIGEST, objects=tuple(tags[name] for name in failed)
        )
    if problems:
        raise SpecError(problems)
    return {name: str(told[image]) for name, image in tags.items()}


def _resolved(image: Reference, registry: Callable[[str], Registry]) -> Reference:
    if image.registry == LOCAL:
        raise RlctlError(f"{image} lies on one machine alone; `rlctl image push` sends it to a registry")
    asked = image.asked
    manifest = registry(asked.registry).manifest(asked)
    if manifest is None:
        raise RlctlError(f"registry {asked.registry} has no {image}; push it, or name another")
    return replace(image, digest=manifest.digest)
