"""Choice of the cluster: the one that a run is recorded on, unless the command line names another.

The index of runs is read before any backend is made: a user without a run on a cluster never waits for its client to be
imported, and a verb never reaches a run of the same name elsewhere because the current context changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rlctl.cli.context import ON_CLUSTERS, Cluster, World
from rlctl.errors import BackendUnreachable, Conflict, RlctlError, Unreadable
from rlctl.spec.names import IN_CLUSTER
from rlctl.spec.runs import run_index
from rlctl.spec.runs.run_index import IndexEntry, Torn

if TYPE_CHECKING:
    from rlctl.backends.base import Backend, RunState


def cluster_of(entry: IndexEntry) -> Cluster:
    """Context and namespace that a run is recorded in."""
    context = entry.context if entry.context != IN_CLUSTER else ""
    return Cluster(context or None, entry.namespace or None)


def recorded(run: str) -> IndexEntry | None:
    """Entry of the run in the index; None when it is not there, or cannot be read."""
    try:
        return run_index.read(run)
    except Torn:
        return None


def all_recorded() -> list[IndexEntry]:
    """Every run of the index."""
    from rlctl.cli.options import run_names

    return [entry for name in run_names() if (entry := recorded(name)) is not None]


def wanted_target(world: World, target: str | None) -> str | None:
    """Target of -t, else of RLCTL_TARGET, else a cluster for -n or --context; None when none is given."""
    return target or world.environ.get("RLCTL_TARGET") or ("kubernetes" if any(world.cluster) else None)


def backend_of(world: World, run: str, target: str | None) -> Backend:
    """Backend of a run: that of the index of runs, unless the command line names another.

    Raises:
        Conflict: it is recorded elsewhere than RLCTL_TARGET, RLCTL_CONTEXT or RLCTL_NAMESPACE say, or its context has
            become another cluster.
        UsageError: there is no such target.
        BackendUnreachable: its packages are not installed, or the kubeconfig no longer has its context.
    """
    entry = recorded(run)
    usual = world.environ.get("RLCTL_TARGET")
    said = target or any(world.cluster)
    if entry is not None and usual in world.target_names() and usual != entry.target and not said:
        raise Conflict(
            f"run {run} is recorded for target {entry.target}, and RLCTL_TARGET is {usual}",
            hint=f"say which is meant: -t {entry.target}, or -t {usual}",
            objects=(run,),
        )
    name = wanted_target(world, target) or ("local" if entry is None else entry.target)
    if name not in ON_CLUSTERS or entry is None or entry.target != name:
        return world.backend(name)
    return _recorded_backend(world, entry)


def _recorded_backend(world: World, entry: IndexEntry) -> Backend:
    said, usual, was = world.cluster, world.usual_cluster, cluster_of(entry)
    for what, option in (("context", "--context"), ("namespace", "-n")):
        meant, there = getattr(usual, what), getattr(was, what)
        if meant and there and meant != there and not getattr(said, what):
            raise Conflict(
                f"run {entry.run} is recorded in {what} {there}, and RLCTL_{what.upper()} is {meant}",
                hint=f"say which is meant: {option} {there}, or {option} {meant}",
                objects=(entry.run,),
            )
    cluster = Cluster(said.context or was.context, said.namespace or was.namespace)
    try:
        backend = world.backend(entry.target, cluster)
        server = backend.server
    except BackendUnreachable as error:
        raise BackendUnreachable(
            error.message,
            hint=or_forget(entry.run, error.hint),
            objects=error.objects,
        ) from error
    if not said.context and entry.server and server and server != entry.server:
        raise Conflict(
            f"run {entry.run} is recorded on {entry.server}, and context {entry.context} now means {server}",
            hint=f"if that is the same cluster at a new address: --context {entry.context}; "
            f"if the recorded one is gone: rlctl down {entry.run} --forget",
            objects=(entry.run,),
        )
    return backend


def or_forget(run: str, hint: str) -> str:
    """Append to a hint, once, the remedy for a recorded cluster that no longer exists."""
    away = f"if the cluster that run {run} is recorded on is gone: rlctl down {run} --forget"
    return hint if away in hint else "; ".join(part for part in (hint.removesuffix("."), away) if part)


@contextmanager
def way_out(world: World, run: str, target: str | None) -> Iterator[None]:
    """Add the remedy `--forget` to errors of a recorded cluster that does not answer: it may be gone."""
    try:
        yield
    except Unreadable:  # the cluster answers
        raise
    except BackendUnreachable as error:
        if getattr(error, "status", 0) in (401, 403):  # the API server answers
            raise
        entry = recorded(run)
        if entry is None or entry.target not in ON_CLUSTERS or wanted_target(world, target) not in (None, entry.target):
            raise
        raise BackendUnreachable(error.message, hint=or_forget(run, error.hint), objects=error.objects) from error


def where(backend: Backend, target: str) -> str:
    """The target in words: `local`, or `kubernetes, context prod, namespace team`."""
    parts = [f"{what} {value}" for what in ("context", "namespace") if (value := getattr(backend, what))]
    return ", ".join([target, *parts])


def runs_everywhere(
    world: World, target: str | None, leave_out: Callable[[RlctlError], object]
) -> Iterator[tuple[Backend, RunState]]:
    """Every run of the wanted target; where none is named all of this machine, and on clusters those that
    were started from here.

    Args:
        world: this invocation.
        target: -t.
        leave_out: called for each unreadable record, and for each cluster of a recorded run that does not answer.
    """
    chosen = wanted_target(world, target)
    if chosen is not None:
        backend = world.backend(chosen)
        yield from ((backend, state) for state in backend.runs(leave_out))
        return
    for name in world.target_names():
        if name not in ON_CLUSTERS:
            backend = world.backend(name)
            yield from ((backend, state) for state in backend.runs(leave_out))
    mine: dict[tuple[str, Cluster], set[str]] = {}
    for entry in all_recorded():
        if entry.target in ON_CLUSTERS and entry.target in world.target_names():
            mine.setdefault((entry.target, cluster_of(entry)), set()).add(entry.uid)
    for (name, cluster), uids in mine.items():
        try:
            backend = world.backend(name, cluster)
            found = backend.runs(leave_out)
        except RlctlError as error:
            leave_out(error)  # a cluster that is gone hides no run that is elsewhere
            continue
        yield from ((backend, state) for state in found if state.uid in uids)
