"""The index of runs of this user, for runs on clusters: which cluster and namespace a run was started in.

One file a run, beside those of the runs on this machine. It is what keeps a command from reaching a run of the same
name on another cluster because the current context has changed meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rlctl.backends.files import read_json, to_json, write_changed
from rlctl.errors import BackendUnreachable, Conflict
from rlctl.spec.layout import state_home


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """Cluster and namespace in which a run was started."""

    run: str
    uid: str
    context: str
    namespace: str
    server: str  # https://...
    target: str = "kubernetes"
    images: Mapping[str, str] = field(default_factory=dict)  # as applied last, by digest: `render` asks no cluster

    @property
    def where(self) -> str:
        return f"namespace {self.namespace} of context {self.context} ({self.server})"


def find(run: str) -> IndexEntry | None:
    """Entry of the run of that name, or None; a run on this machine is an entry of target local.

    Raises:
        BackendUnreachable: the entry is torn or cannot be read.
    """
    found = read_json(_path(run), f"the index entry of run {run}")
    if found is None:
        return None
    texts = {name: str(found.get(name, "")) for name in ("uid", "context", "namespace", "server", "target")}
    images = found.get("images")
    return IndexEntry(
        run, **{**texts, "target": texts["target"] or "local"}, images=images if isinstance(images, dict) else {}
    )


def check(run: str, context: str, namespace: str, server: str, *, explicit: bool) -> IndexEntry | None:
    """The entry of the run, unless it says that the run is somewhere else.

    Args:
        explicit: the user has named context or namespace: what they say holds.

    Raises:
        Conflict: the run was started on another cluster or in another namespace.
    """
    entry = find(run)
    if entry is None or entry.target != "kubernetes":
        return None
    if (entry.server, entry.namespace) == (server, namespace):
        return entry
    if not explicit:
        raise Conflict(
            f"run {run} was started in {entry.where}; at present that is context {context}, namespace {namespace} "
            f"({server})",
            hint=f"Say which is meant: --context {entry.context} -n {entry.namespace}",
            objects=(run,),
        )
    return None


def check_free(run: str) -> None:
    """Check that no run of this machine has the name.

    Raises:
        Conflict: a run on this machine has this name, and would be lost from the index.
    """
    entry = find(run)
    if entry is not None and entry.target == "local":
        raise Conflict(
            f"there is a run {run} on this machine (target local)",
            hint=f"Choose another name (--set run={run}-2), or remove that one: rlctl down {run} -t local --volumes",
            objects=(run,),
        )


def record(entry: IndexEntry) -> bool:
    """Note where the run is; says whether that wrote. A home that cannot be written is no reason to stop."""
    path = _path(entry.run)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return write_changed(path, to_json({"format": 1, **asdict(entry)}))
    except OSError:
        return False


def forget(run: str, uid: str) -> None:
    """Remove the entry, if it is this run's."""
    try:
        entry = find(run)
        if entry is not None and entry.target == "kubernetes" and entry.uid == uid:
            _path(run).unlink(missing_ok=True)
    except (OSError, BackendUnreachable):
        pass


def _path(run: str) -> Path:
    return state_home() / "index" / f"{run}.json"
