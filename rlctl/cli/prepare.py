"""From spec files to what a target is told: load, plan, render; and what differs from what runs."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlctl.cli.target import recorded_target
from rlctl.cli.world import World
from rlctl.errors import Conflict, UsageError

if TYPE_CHECKING:
    from rlctl.backends.base import Backend, Document, RunState
    from rlctl.plan import Change, Plan
    from rlctl.spec import Loaded
    from rlctl.spec.schema import Spec

NO_UID = "0" * 32
"""Stands for the uid of a run that has not been started: two renderings of it are equal."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A spec beside the run of its name."""

    loaded: Loaded
    spec: Spec  # of `loaded`, with an absolute storage.path
    backend: Backend
    state: RunState | None  # None: it would be a new run
    plan: Plan
    documents: list[Document]
    changes: list[Change]  # from what was applied last; empty for a new run

    @property
    def refused(self) -> list[Change]:
        return [change for change in self.changes if change.action == "refuse"]

    @property
    def stored(self) -> Mapping[str, Any]:
        """The spec as the target records it."""
        return self.spec.model_dump(mode="json")


def load(world: World, specs: Sequence[Path], sets: Sequence[str] | None, target: str | None = None) -> Loaded:
    """The spec; RLCTL_RUN counts as an early --set, -t and RLCTL_TARGET as --set target=.

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


def prepare(
    world: World, specs: Sequence[Path], sets: Sequence[str] | None, target: str | None, *, mint: bool
) -> Prepared:
    """Everything that `up`, `render` and `diff` have in common; writes nothing.

    Args:
        world: this invocation.
        specs: files, merged from left to right.
        sets: `path=value`.
        target: -t.
        mint: give a new run a uid of its own; else it is NO_UID.

    Raises:
        SpecError: the spec or a template is invalid.
        Conflict: the run is recorded for another target, or by a release whose spec this one cannot read.
    """
    from rlctl.plan import changes, make
    from rlctl.render import documents
    from rlctl.spec.layout import Layout

    loaded = load(world, specs, sets, target)
    storage = storage_of(loaded)
    spec = loaded.spec.model_copy(update={"storage": loaded.spec.storage.model_copy(update={"path": storage})})
    recorded = recorded_target(spec.run)
    if recorded is not None and recorded != spec.target and recorded in world.target_names():
        raise Conflict(
            f"run {spec.run} is recorded for target {recorded}, the spec says {spec.target}",
            hint=f"choose another name, or remove it first: rlctl down {spec.run} --volumes -t {recorded}",
            objects=(spec.run,),
        )
    backend = world.backend(spec.target)
    state = backend.find(spec.run)
    place = backend.place(spec.run, storage)
    uid, layout, sockets = place.uid, place.layout, place.sockets
    if state is None and not mint:
        uid = NO_UID
        layout = Layout(layout.root.with_name(f"{spec.run}-{uid[:8]}"))
        sockets = sockets.with_name(uid[:8])
    plan = make(spec, uid=uid, base=loaded.base)
    return Prepared(
        loaded=loaded,
        spec=spec,
        backend=backend,
        state=state,
        plan=plan,
        documents=documents(plan, layout=layout, sockets=sockets, python=sys.executable),
        changes=[] if state is None else changes(stored_spec(state), spec),
    )


def storage_of(loaded: Loaded) -> str | None:
    """The folder that the spec wants, absolute: relative ones begin at the spec file."""
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


def say_findings(world: World, loaded: Loaded) -> None:
    """Findings of a valid spec: worth a look, no reason to stop."""
    for finding in loaded.findings:
        world.say(f"note: {finding}")
