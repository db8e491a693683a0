"""Record of a run: its state (verbs write it), its end (the watch writes it), its documents."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rlctl.backends.base import Document, Failure, Phase, RunState
from rlctl.backends.files import broken, read_json, to_json, write_changed
from rlctl.backends.local.proc import boot_time
from rlctl.backends.local.state import lock
from rlctl.backends.local.state.places import Place
from rlctl.backends.records.tail import read_tail
from rlctl.backends.run_states import FORMAT, from_stored, to_stored
from rlctl.errors import BackendUnreachable, Unreadable
from rlctl.spec.layout import Layout


@dataclass(frozen=True, slots=True)
class End:
    """The end of a run that ended by itself."""

    phase: Phase  # finished or failed
    failure: Failure | None  # failed


def state_file(layout: Layout) -> Path:
    return layout.run / "state.json"


def watch_file(layout: Layout) -> Path:
    """Restarts and reasons by process name: the watch writes it, for `rlctl status`."""
    return layout.run / "watch.json"


def write_state(layout: Layout, state: RunState) -> None:
    """Store a state.

    Raises:
        OSError: the file cannot be written.
    """
    write_changed(state_file(layout), to_json(to_stored(state)))


def read_stored(place: Place) -> RunState | None:
    """State as the last verb stored it; the phase is the wanted one, not the actual one. None: nothing was applied.

    Raises:
        Unreadable: the file is torn or foreign.
    """
    with _recorded(place, "begins from the newest generation, and cannot know whether the spec still fits"):
        return _read_stored(place)


def _read_stored(place: Place) -> RunState | None:
    path, what = state_file(place.layout), f"the state of run {place.run}"
    stored = read_json(path, what)
    if stored is None:
        return None
    try:
        if stored["format"] != FORMAT or stored["run"] != place.run or stored["uid"] != place.uid:
            raise broken(path, what, "another format, or another run's")
        known = from_stored(stored)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise broken(path, what, f"{type(error).__name__}: {error}") from error
    phase: Phase = "running" if known.phase == "running" else "stopped"
    return replace(known, phase=phase, storage=str(place.layout.root))


def read(place: Place) -> RunState | None:
    """The run as it is: running while its supervisor lives, else how it ended.

    Raises:
        Unreadable: one of its files is torn or foreign.
    """
    stored = read_stored(place)
    if stored is None:
        return None
    if lock.alive(place.life):
        return replace(stored, phase="running")
    with _recorded(place, "goes on as after any other end"):
        end = read_end(place.layout)
    if end is not None:
        return replace(stored, phase=end.phase, failure=end.failure)
    if stored.phase == "running":
        return replace(stored, phase="failed", failure=_vanished(place.layout))
    return stored


@contextmanager
def _recorded(place: Place, up_then: str) -> Iterator[None]:
    """Raise Unreadable for a file that cannot be read, and leave the file: only its user knows whether to repair it."""
    try:
        yield
    except BackendUnreachable as error:
        run = place.run
        raise Unreadable(
            error.message,
            run=run,
            storage=str(place.layout.root),
            hint=(
                f"Move the file away to go on: `rlctl up` then {up_then}. "
                f"Until then `rlctl logs --run {run}` and `rlctl down {run}` answer."
            ),
            objects=error.objects,
        ) from error


def read_end(layout: Layout) -> End | None:
    """The end that the watch recorded, or None.

    Raises:
        BackendUnreachable: the file is torn or foreign.
    """
    path, what = layout.failure_file, "why the run failed"
    stored = read_json(path, what)
    if stored is not None:
        try:
            failure = Failure(
                process=str(stored["process"]),
                text=str(stored["text"]),
                last_lines=tuple(map(str, stored["last_lines"])),
                at=datetime.fromisoformat(stored["at"]),
                stopped_because=tuple(map(str, stored["stopped_because"])),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise broken(path, what, f"{type(error).__name__}: {error}") from error
        return End("failed", failure)
    return End("finished", None) if layout.finished_file.exists() else None


def write_failure(layout: Layout, failure: Failure) -> None:
    write_changed(layout.failure_file, to_json({**asdict(failure), "at": failure.at.isoformat()}))


def clear_end(layout: Layout) -> None:
    """Remove the recorded end, before the run starts again."""
    layout.failure_file.unlink(missing_ok=True)
    layout.finished_file.unlink(missing_ok=True)


def _vanished(layout: Layout) -> Failure:
    """Failure of a run whose supervisor is gone without a record: killed, or the machine went down."""
    try:
        started = (layout.run / "supervisord.pid").stat().st_mtime
    except OSError:
        started = 0.0
    booted = boot_time()
    if 0.0 < started < booted:
        text, at = "the machine was restarted while the run was up", datetime.fromtimestamp(booted, UTC)
        return Failure(process="supervisord", text=text, last_lines=(), at=at)
    text, said = "supervisord is gone without a word: it was killed, or memory ran out", _told_to_end(layout)
    if said:
        by = found[1] if (found := _TOLD_TO_END.search(said)) else "a signal"
        text = f"supervisord received {by} and ended the run: a kill from outside, or the end of a session or container"
    return Failure(process="supervisord", text=text, last_lines=(said,) if said else (), at=_last_sign(layout))


_TOLD_TO_END = re.compile(r" received (SIG[A-Z]+) indicating exit request")


def _told_to_end(layout: Layout) -> str:
    """The line of its log in which the last supervisor says that a signal told it to end; empty when there is none."""
    for line in reversed(read_tail(layout.logs / "supervisord.log")):
        if _TOLD_TO_END.search(line):
            return line
        if "supervisord started with pid" in line:  # what came before is another supervisor's
            break
    return ""


def _last_sign(layout: Layout) -> datetime:
    """Time at which the run last wrote something: the best guess of when it ended."""
    times = [0.0]
    for folder in (layout.logs, layout.results):
        try:
            times += [entry.stat().st_mtime for entry in os.scandir(folder) if entry.is_file(follow_symlinks=False)]
        except OSError:
            continue
    return datetime.fromtimestamp(max(times), UTC)


def write_documents(layout: Layout, documents: Iterable[Document]) -> bool:
    """Store documents in one file, atomically, beside the files that processes read; returns whether any differed."""
    return write_changed(layout.run / "documents.json", to_json({"documents": [asdict(each) for each in documents]}))


def read_documents(layout: Layout) -> list[Document]:
    """Documents as last applied; none when nothing was.

    Raises:
        BackendUnreachable: the file is torn or foreign.
    """
    path, what = layout.run / "documents.json", "the documents of the run"
    stored = read_json(path, what)
    try:
        found: list[Mapping[str, Any]] = [] if stored is None else stored["documents"]
        return [Document(each["name"], each["text"], each["role"], each["origin"]) for each in found]
    except (KeyError, TypeError) as error:
        raise broken(path, what, f"{type(error).__name__}: {error}") from error
