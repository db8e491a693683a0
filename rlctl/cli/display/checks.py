"""Checks of `doctor` and of the preflight of `up`, as lines and as an exit code."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from rlctl.cli.context import ON_CLUSTERS, World
from rlctl.cli.text import plain
from rlctl.errors import Conflict, Problem, RlctlError, SpecError

if TYPE_CHECKING:
    from rlctl.backends.base import Check
    from rlctl.cli.run.prepare import Prepared

CORE = "images.core"
OF_THE_SPEC = frozenset({"environment", "objects", "services", "pod security", CORE})
"""Checks whose problem lies in the spec (exit 3); the problem of any other lies in this cluster (exit 5)."""
_MARKS = {"ok": "ok", "problem": "PROBLEM", "warning": "warning", "not checked": "-"}


def preflight(world: World, prepared: Prepared) -> list[Check]:
    """Preflight checks of the target; registries are queried for image sizes that it does not know.

    They are not queried when nothing changes: then only problems are reported.
    """

    def sizes(images: Collection[str]) -> Mapping[str, int]:
        from rlctl.images.registry.logins import logins
        from rlctl.images.registry.sizes import sizes as ask

        return ask(images, logins(world.environ))

    backend = prepared.backend
    if prepared.state is None or prepared.changes:
        backend.image_sizes = sizes
    return [*backend.preflight(prepared.plan, prepared.documents), *_code_in_core(world, prepared)]


def _code_in_core(world: World, prepared: Prepared) -> Iterator[Check]:
    """Problem of a core image with user code laid over it, which its roles never run; queried when the image is new."""
    from rlctl.backends.base import Check

    image = prepared.spec.images.core if prepared.spec.target in ON_CLUSTERS else None
    new = prepared.state is None or any(change.path == CORE for change in prepared.changes)
    if image is None or not new:
        return
    from rlctl.image_names import Reference
    from rlctl.images.code import BASE_LABEL

    try:
        below = world.label(world.environ, Reference.parse(image).asked, BASE_LABEL)
    except RlctlError as error:
        yield Check(CORE, "not checked", f"whether code was laid over it: {error.message}")
        return
    if below:
        text = f"{image} is {below} with code laid over it, and code runs in actor, evaluator and learner alone"
        yield Check(CORE, "problem", text, "name the image that `rlctl image push` has made of rlctl itself")


def as_lines(checks: Iterable[Check], indent: str = "") -> list[str]:
    """One line for each check, and the next command below it."""
    found = list(checks)
    width = max((len(check.name) for check in found), default=0)
    lines = []
    for check in found:
        lines.append(f"{indent}{_MARKS[check.verdict]:<8} {check.name:<{width}}  {plain(check.text)}")
        if check.next and check.verdict != "ok":
            lines.append(f"{indent}{'':<8} {'':<{width}}  next: {plain(check.next)}")
    return [line.rstrip() for line in lines]


def problems(checks: Iterable[Check]) -> list[Check]:
    return [check for check in checks if check.verdict == "problem"]


def refuse(run: str, checks: Iterable[Check]) -> None:
    """Refuse a run whose checks found a problem, before anything is sent.

    Raises:
        SpecError: all problems lie in the spec.
        Conflict: a problem lies in the cluster.
    """
    found = problems(checks)
    if found:
        raise _error(run, found)


def _error(run: str, found: list[Check]) -> RlctlError:
    if all(check.name in OF_THE_SPEC for check in found):
        told = [f"{check.text}; {check.next}" if check.next else check.text for check in found]
        return SpecError([Problem(check.name, text) for check, text in zip(found, told, strict=True)],
                         hint="nothing was sent")  # fmt: skip
    lines = "\n".join(f"  {check.name}: {check.text}" for check in found)
    return Conflict(
        f"run {run} would not come up; nothing was sent:\n{lines}",
        hint=next((check.next for check in found if check.next), "rlctl doctor"),
        objects=tuple(check.name for check in found),
    )
