"""Preparation: spec files loaded, planned and rendered for a target, with the changes to what runs."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlctl.cli.context import ON_CLUSTERS, World
from rlctl.cli.run.clusters import backend_of, recorded, way_out
from rlctl.cli.run.target import recorded_target
from rlctl.errors import Conflict, SpecError, UsageError

if TYPE_CHECKING:
    from rlctl.backends.base import Backend, Document, RunState
    from rlctl.changes import Change
    from rlctl.images.registry.pinning import Pinned
    from rlctl.plan import Plan
    from rlctl.spec import Loaded
    from rlctl.spec.layout import Layout, RunPlace
    from rlctl.spec.schema import Spec

NO_UID = "0" * 32
"""Placeholder for the uid of a run that has not been started, so that two renderings of it are equal."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A spec with its documents."""

    loaded: Loaded
    spec: Spec  # of `loaded`, with an absolute storage.path, and with digests of its images on a cluster
    asked: frozenset[str]  # images whose tag a registry has resolved just now
    plan: Plan
    documents: list[Document]


@dataclass(frozen=True, slots=True)
class Prepared(Rendered):
    """A spec, rendered and compared with the run of its name."""

    backend: Backend
    state: RunState | None  # None: it would be a new run
    changes: list[Change]  # from what was applied last; empty for a new run
    remains: bool  # the run has no record any more, but its folder exists
    unknown: Sequence[str] = ()  # folders of runs of this name that nothing records, beside which a new one begins

    @property
    def refused(self) -> list[Change]:
        return [change for change in self.changes if change.action == "refuse"]

    @property
    def stored(self) -> Mapping[str, Any]:
        """The spec as the target records it."""
        from rlctl.spec.fields import filled

        return filled(self.spec).model_dump(mode="json")


def load(world: World, specs: Sequence[Path], sets: Sequence[str] | None, target: str | None = None) -> Loaded:
    """Load a spec; RLCTL_RUN counts as an early --set, -t and RLCTL_TARGET as --set target=.

    Raises:
        SpecError: with every problem.
        UsageError: no spec is named.
    """
    from rlctl.spec import load as load_spec

    if not specs:
        raise UsageError("no spec is named", hint="rlctl init makes one")
    early = [f"run={world.environ['RLCTL_RUN']}"] if world.environ.get("RLCTL_RUN") else []
    if not target and world.environ.get("RLCTL_TARGET"):
        early.append(f"target={world.environ['RLCTL_TARGET']}")
    late = [f"target={target}"] if target else []
    return load_spec(list(specs), [*early, *(sets or ()), *late], machine=world.machine)


def check_place(world: World, loaded: Loaded, *, pull: bool = False) -> None:
    """Check that options of a cluster are not given for this machine.

    Raises:
        UsageError: the command line names a cluster, or wants images, and the target is this machine.
    """
    if pull and loaded.spec.target not in ON_CLUSTERS:
        raise UsageError(f"--pull is for the images of a cluster, and the target is {loaded.spec.target}")
    if any(world.cluster) and loaded.spec.target not in ON_CLUSTERS:
        raise UsageError(
            f"-n and --context are for a cluster, and the target is {loaded.spec.target}",
            hint="add -t kubernetes, or leave them out",
        )


def prepare(world: World, loaded: Loaded, *, mint: bool, pull: bool = False) -> Prepared:
    """Plan and render a loaded spec, and compare it with the run of its name; writes nothing.

    Args:
        world: this invocation.
        loaded: the spec.
        mint: give a new run a uid of its own; else it is NO_UID.
        pull: ask for the tags of images again, whatever is recorded.

    Raises:
        SpecError: a template is invalid, or a registry has no such image.
        BackendUnreachable: the target does not answer, or a registry whose tag is recorded nowhere.
        Conflict: the run is recorded for another target or cluster, or by a release whose spec this one cannot read.
    """
    from rlctl.changes import changes

    storage = storage_of(loaded)
    spec = _with_storage(loaded, storage)
    elsewhere = recorded_target(spec.run)
    if elsewhere is not None and elsewhere != spec.target and elsewhere in world.target_names():
        raise Conflict(
            f"run {spec.run} is recorded for target {elsewhere}, the spec says {spec.target}",
            hint=_make_room(spec.run, elsewhere),
            objects=(spec.run,),
        )
    with way_out(world, spec.run, spec.target):
        backend = backend_of(world, spec.run, spec.target)
        state = backend.find(spec.run)
    place = backend.place(spec.run, storage)
    spec, asked = _with_digests(world, loaded, spec, {} if state is None else _images_of(state), pull=pull)
    uid = NO_UID if state is None and not mint else place.uid
    plan, documents = _rendered(loaded, spec, uid, place)
    return Prepared(
        loaded=loaded,
        spec=spec,
        asked=asked,
        plan=plan,
        documents=documents,
        backend=backend,
        state=state,
        changes=[] if state is None else changes(stored_spec(state), spec),
        remains=state is None and os.path.exists(place.layout.root),
        unknown=[] if state is not None else _unknown(place.layout.root, spec.run),
    )


def _unknown(root: Path, run: str) -> list[str]:
    """Folders of runs of that name beside one, of this user."""
    named, found = re.compile(rf"{re.escape(run)}-[0-9a-f]{{8}}"), list[str]()
    with suppress(OSError):
        for name in sorted(os.listdir(root.parent)):
            path = root.parent / name
            if named.fullmatch(name) and path != root and (path / "run").stat().st_uid == os.getuid():
                found.append(str(path))
    return found


def _make_room(run: str, target: str) -> str:
    """Hint how to free a name that another target holds, even a cluster that is gone."""
    gone = "that cluster" if target in ON_CLUSTERS else "its folder"
    remove = f"rlctl down {run} --volumes -t {target}; if {gone} is gone: rlctl down {run} --forget"
    return f"choose another name (--set run={run}-2), or remove it first: {remove}"


def offline(world: World, loaded: Loaded, *, pull: bool = False) -> Rendered:
    """Spec and documents that `up` would send to a cluster, with the uid and the images that the index of runs knows.

    Without them: NO_UID, and tags of images as their registry resolves them.

    Raises:
        SpecError: a template is invalid, or a registry has no such image.
        BackendUnreachable: a registry does not say what a tag is.
    """
    entry = recorded(loaded.spec.run)
    if entry is None or entry.target != loaded.spec.target or not entry.uid:
        uid, images = NO_UID, {}
    else:
        uid, images = entry.uid, dict(entry.images)
    spec, asked = _with_digests(world, loaded, _with_storage(loaded, storage_of(loaded)), images, pull=pull)
    return Rendered(loaded, spec, asked, *_rendered(loaded, spec, uid, None))


def _with_digests(
    world: World, loaded: Loaded, spec: Spec, recorded_images: Mapping[str, str], *, pull: bool
) -> tuple[Spec, frozenset[str]]:
    """The spec with a digest for every image that a cluster pulls, and the names of those that a registry resolved.

    Raises:
        SpecError: a registry has no such image; with the location of its name.
        BackendUnreachable: a registry does not say what a tag is, and it is recorded nowhere.
    """
    if spec.target not in ON_CLUSTERS:
        return spec, frozenset()
    from rlctl.image_names import Reference, loopback

    given: dict[str, str | None] = spec.images.model_dump()
    if all(Reference.parse(image).digest for image in given.values() if image is not None):
        return spec, frozenset()
    from rlctl.images.registry.client import Registry
    from rlctl.images.registry.logins import logins
    from rlctl.images.registry.pinning import pin
    from rlctl.spec.yaml import located

    known = logins(world.environ)
    try:
        found: Pinned = pin(given, recorded_images, lambda host: Registry(not loopback(host), known), pull=pull)
    except SpecError as error:
        problems = [located(tuple(one.path.split(".")), one.message, loaded.places) for one in error.problems]
        raise SpecError(problems, hint=error.hint) from error
    return spec.model_copy(update={"images": spec.images.model_copy(update=dict(found.images))}), found.asked


def _images_of(state: RunState) -> dict[str, str]:
    from rlctl.backends.revisions import images_of

    return images_of(state.spec)


def _with_storage(loaded: Loaded, storage: str | None) -> Spec:
    return loaded.spec.model_copy(update={"storage": loaded.spec.storage.model_copy(update={"path": storage})})


@dataclass(frozen=True, slots=True)
class _Unstarted:
    """Place of a run that has not been started, under another uid than the one that was minted for it."""

    uid: str
    layout: Layout
    sockets: Path


def _rendered(loaded: Loaded, spec: Spec, uid: str, place: RunPlace | None) -> tuple[Plan, list[Document]]:
    """Plan and documents; a place is needed except for a cluster."""
    from rlctl.plan import make
    from rlctl.render import for_target
    from rlctl.spec.layout import Layout

    plan = make(spec, uid=uid, base=loaded.base)
    if place is not None and place.uid != uid:
        root = place.layout.root.with_name(f"{spec.run}-{uid[:8]}")
        place = _Unstarted(uid, Layout(root), place.sockets.with_name(uid[:8]))
    return plan, for_target(plan, spec, place, sys.executable)


def storage_of(loaded: Loaded) -> str | None:
    """Absolute path of the storage folder, relative ones from the spec file; None: the spec names none."""
    path = loaded.spec.storage.path
    return None if path is None else str((loaded.base / Path(path).expanduser()).resolve())


def stored_spec(state: RunState) -> Spec:
    """The spec that was applied last.

    Raises:
        Conflict: this release cannot read it.
    """
    from pydantic import ValidationError

    from rlctl.spec.schema import Spec

    try:
        return Spec.model_validate(dict(state.spec))
    except ValidationError as error:
        raise Conflict(
            f"run {state.run} was started by rlctl {state.rlctl_version}, whose spec this release cannot read",
            hint=f"use that release, or give the spec another `run:` name ({error.error_count()} fields differ)",
            objects=(state.run,),
        ) from error


def say_notes(world: World, rendered: Rendered) -> None:
    """Print the findings of a valid spec; on a cluster also tag and digest of each image that it names by tag."""
    for finding in rendered.loaded.findings:
        world.say(f"note: {finding}")
    if rendered.spec.target not in ON_CLUSTERS:
        return
    from rlctl.image_names import Reference

    for name, image in rendered.loaded.spec.images.model_dump().items():
        if image is not None and not Reference.parse(image).digest:
            digest = Reference.parse(getattr(rendered.spec.images, name)).digest
            how = "" if name in rendered.asked else " (recorded; `up --pull` asks the registry again)"
            world.say(f"images.{name}: {image} is {digest}{how}")


def by_field(changes: Iterable[Change]) -> list[Change]:
    """One change for each field."""
    return list({change.path: change for change in changes}.values())


def refuse(prepared: Prepared) -> None:
    """Refuse a change of a field that is fixed for a run, before anything is changed.

    Raises:
        Conflict: there is such a change; the message lists the fields and a remedy.
    """
    if prepared.refused:
        run = prepared.plan.run
        fields = "\n".join(f"  {change.why}" for change in by_field(prepared.refused))
        raise Conflict(
            f"these fields of run {run} cannot change; its experience and weights would no longer fit:\n{fields}",
            hint=f"another name (--set run={run}-2), or remove this run and its data: rlctl down {run} --volumes",
            objects=tuple(dict.fromkeys(change.path for change in prepared.refused)),
        )
