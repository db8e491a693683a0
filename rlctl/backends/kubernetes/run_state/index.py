"""Entries of runs on clusters in this user's index: the cluster and namespace in which each was started.

They keep a command from reaching a run of the same name on another cluster because the current context has changed
meanwhile.
"""

from __future__ import annotations

from contextlib import suppress

from rlctl.backends.files import to_json, write_changed
from rlctl.errors import Conflict
from rlctl.spec.runs import run_index
from rlctl.spec.runs.run_index import IndexEntry, Torn


def check(run: str, context: str, namespace: str, server: str, *, explicit: bool) -> IndexEntry | None:
    """Index entry of a run, if it is in this namespace of this cluster; else None.

    Args:
        explicit: the user has named context or namespace, which take precedence.

    Raises:
        Conflict: the run was started on another cluster or in another namespace, and not `explicit`.
        Torn: the entry cannot be read.
    """
    entry = run_index.read(run)
    if entry is None or entry.target != "kubernetes":
        return None
    if (entry.server, entry.namespace) == (server, namespace):
        return entry
    if not explicit:
        there = f"namespace {entry.namespace} of context {entry.context} ({entry.server})"
        raise Conflict(
            f"run {run} was started in {there}; at present that is context {context}, namespace {namespace} ({server})",
            hint=f"Say which is meant: --context {entry.context} -n {entry.namespace}",
            objects=(run,),
        )
    return None


def check_free(run: str) -> None:
    """Check that no run of this machine has the name.

    Raises:
        Conflict: a run on this machine has this name, and would be lost from the index.
        Torn: the entry cannot be read.
    """
    entry = run_index.read(run)
    if entry is not None and entry.target == "local":
        raise Conflict(
            f"there is a run {run} on this machine (target local)",
            hint=f"Choose another name (--set run={run}-2), or remove that one: rlctl down {run} -t local --volumes; "
            f"if its folder is gone: rlctl down {run} --forget",
            objects=(run,),
        )


def record(entry: IndexEntry) -> bool:
    """Record the place of a run; returns whether that wrote. A home that cannot be written is no reason to stop."""
    path = run_index.path(entry.run)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return write_changed(path, to_json(entry.stored()))
    except OSError:
        return False


def forget(run: str, uid: str) -> None:
    """Remove the entry of a run, if it has this uid."""
    with suppress(OSError, Torn):
        entry = run_index.read(run)
        if entry is not None and entry.target == "kubernetes" and entry.uid == uid:
            run_index.path(run).unlink(missing_ok=True)
