"""Convergence: makes the supervisor run exactly the replicas wanted, from whatever runs now.

Nothing here trusts a record of what was done before: files are compared with files, and the supervisor reports which of
its processes differ from the configuration on disk. So the same call resumes after a kill at any moment.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rlctl.backends.base import Applied, Document
from rlctl.backends.files import write_changed
from rlctl.backends.local.names import in_order, shown
from rlctl.backends.local.process.stopping import GRACE_S, stop, waves
from rlctl.backends.local.process.supervisord import ALREADY_STARTED, STILL_RUNNING, Supervisor
from rlctl.errors import BackendUnreachable, PartlyApplied
from rlctl.plan import live_with
from rlctl.spec.layout import LIVE, Layout

_REPLICAS = "replicas"


@contextmanager
def half_done(what: str) -> Iterator[None]:
    """Turn the end of a supervisor's answers, where something has been changed, into what it leaves: `what`.

    Raises:
        PartlyApplied: instead of BackendUnreachable.
    """
    try:
        yield
    except BackendUnreachable as error:
        raise PartlyApplied(
            f"{what}: {error.message}",
            hint=f"{error.hint}; then the same command again" if error.hint else "the same command again",
            objects=error.objects,
        ) from error


def sections(documents: Iterable[Document], replicas: Mapping[str, int]) -> dict[str, str]:
    """One configuration file per replica: process name -> text."""
    bodies = {document.role: document.text for document in documents if document.name.startswith("programs/")}
    return {
        f"{role}-{index}": f"[program:{role}-{index}]\n{bodies[role]}"
        for role, count in replicas.items()
        for index in range(count)
    }


def write_files(layout: Layout, documents: Iterable[Document], replicas: Mapping[str, int]) -> None:
    """Write documents and replica files.

    Older run files stay until `remove_old`: processes that still run may be started again from them.

    Raises:
        OSError: a file cannot be written.
    """
    documents = list(documents)
    for document in documents:
        path = layout.run / document.name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_changed(path, as_scaled(document, replicas))
    folder = layout.run / _REPLICAS
    folder.mkdir(mode=0o700, exist_ok=True)
    wanted = sections(documents, replicas)
    for name, text in wanted.items():
        write_changed(folder / f"{name}.conf", text)
    for path in _others(folder, "*.conf", {f"{name}.conf" for name in wanted}):
        path.unlink(missing_ok=True)


def as_scaled(document: Document, replicas: Mapping[str, int]) -> str:
    """Text of a document; that of the manager's live fields has the wanted numbers of replicas."""
    if document.name != LIVE:
        return document.text
    live = json.loads(document.text)
    now = live_with(live, replicas)
    return document.text if now == live else json.dumps(now)


def remove_old(layout: Layout, documents: Iterable[Document]) -> None:
    """Remove run files and program bodies that no document names any more."""
    names = {document.name for document in documents}
    for path in _others(layout.run / "programs", "*.conf", {Path(name).name for name in names}):
        path.unlink(missing_ok=True)
    for path in _others(layout.run, "*-????????????.json", names):
        path.unlink(missing_ok=True)


def _others(folder: Path, pattern: str, keep: set[str]) -> list[Path]:
    return [path for path in sorted(folder.glob(pattern)) if path.name not in keep]


def converge(supervisor: Supervisor, wanted: Iterable[str]) -> Iterator[Applied]:
    """Add, remove and restart processes that differ; every other process keeps its pid.

    Args:
        wanted: names of the role processes in the configuration on disk.

    Raises:
        PartlyApplied: the supervisor refused one step; the same call resumes.
        BackendUnreachable: it does not answer.
    """
    wanted = sorted(wanted, key=in_order)
    before = supervisor.children()
    added, changed, removed = supervisor.reread()
    ended = sorted([*changed, *removed], key=in_order)
    _remove(supervisor, ended)
    for name in sorted(removed, key=in_order):
        yield Applied(shown(name), "removed")
    _all(supervisor, "addProcessGroup", sorted([*added, *changed], key=in_order))
    # Stopped by a command that was killed before it started them again. The watch looks after those that exited.
    resumed = [name for name, child in before.items() if child.state == "STOPPED" and child.start and name not in ended]
    _all(supervisor, "startProcess", resumed, False)
    for name in sorted({*added, *changed, *resumed, *wanted}, key=in_order):
        if name in added:
            yield Applied(shown(name), "created")
        elif name in changed:
            yield Applied(shown(name), "restarted", "its configuration changed")
        elif name in resumed:
            yield Applied(shown(name), "restarted", "it was stopped")
        else:
            yield Applied(shown(name), "unchanged")


def restart(supervisor: Supervisor, names: list[str]) -> list[str]:
    """Stop processes at the same time and start them again, even if a signal interrupts that.

    Returns:
        Names of processes that had to be killed.

    Raises:
        PartlyApplied: the supervisor refused to start one, or stopped answering; the same call resumes.
    """
    interrupted: BaseException | None = None
    with half_done("not all that was stopped has started again"):
        try:
            killed = stop(supervisor, names)
        except Exception:
            raise
        except BaseException as error:  # Ctrl-C, SIGTERM: stopped processes would stay so for ever
            interrupted = error
            killed = stop(supervisor, names)
        _all(supervisor, "startProcess", names, False)
    if interrupted is not None:
        raise interrupted
    return killed


def _remove(supervisor: Supervisor, names: list[str]) -> None:
    """Stop processes and remove them; the watch may restart one in between, which takes another round."""
    for _ in range(3):
        for wave in waves(names):
            stop(supervisor, wave, GRACE_S)
        faults = supervisor.batch("removeProcessGroup", [(name,) for name in names])
        names = [name for name, fault in zip(names, faults, strict=True) if fault and fault.faultCode == STILL_RUNNING]
        if not names:
            return
    _all(supervisor, "removeProcessGroup", names)


def _all(supervisor: Supervisor, method: str, names: list[str], *more: bool) -> None:
    faults = zip(names, supervisor.batch(method, [(name, *more) for name in names]), strict=True)
    refused = [
        f"{shown(name)}: {fault.faultString}"
        for name, fault in faults
        if fault and fault.faultCode != ALREADY_STARTED  # as wanted
    ]
    if refused:
        raise PartlyApplied(
            f"the supervisor refused {method} for {', '.join(refused)}",
            hint="Run the same command again: it goes on where this one stopped.",
            objects=tuple(refused),
        )
