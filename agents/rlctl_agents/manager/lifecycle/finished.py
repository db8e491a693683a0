"""Finished: the last phase of a run, in which its manager releases the pods and, on a cluster, keeps replying.

The run folder records that the run is finished, or has failed, so a restarted manager knows it too. A finished run goes
on when settings arrive under which it would not have ended; a failed one when `up` asks for it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from rlctl.spec.layout import API_VERSION, EVENTS, Layout
from rlctl.spec.schema import Spec
from rlctl_agents.checkpoint.parts import sync_folder
from rlctl_agents.manager.checkpoints.fencing_term import TornTerm, read_term
from rlctl_agents.manager.evaluation.selection import reached, read_selected
from rlctl_agents.manager.events import Events
from rlctl_agents.manager.lifecycle.scale_down import Release
from rlctl_agents.manager.lifecycle.stop import met
from rlctl_agents.manager.settings import LiveSettings
from rlctl_agents.manager.state_store import Damaged, StateStore, load_progress
from rlctl_agents.manager.timing import Every
from rlctl_agents.runtime.logs import Lines
from rlctl_agents.runtime.process import Process
from rlctl_agents.runtime.storage import read_file, refusal, replace_file
from rlctl_agents.types.control import Commit, Contribute, EvalResult, Hello, Orders, Reply, Report, Sampled

ON_REQUEST = "stopped on request"
OVER = "the run is finished"
FAILED = "the run has failed"
GOES_ON = "the run that had failed goes on, with all its time again"
PATIENCE_S = 120.0
"""Seconds after which pods that are there again are released once more: longer than the grace period of any role."""

STORE_S = 5.0

log = logging.getLogger(__name__)


class RunEnd(msgspec.Struct):
    """Content of run/finished.json."""

    at: str  # RFC 3339
    met: str  # stop condition, or why the run has failed
    term: int
    released: bool = False  # its pods were released
    failed: bool = False


def read_end(layout: Layout) -> RunEnd | None:
    """End of the run; None: it has not ended. An unreadable file counts as an end.

    Raises:
        OSError: the volume refuses.
    """
    data = read_file(layout.finished_file)
    try:
        return None if data is None else msgspec.json.decode(data, type=RunEnd)
    except msgspec.MsgspecError as error:
        log.error("%s cannot be read, and says all the same that the run is finished: %s", layout.finished_file, error)
        return RunEnd("", OVER, 0)


def record_end(layout: Layout, end: RunEnd, state: StateStore | None = None) -> None:
    """Record that the run has ended, durably.

    Args:
        state: remembers a failure to store it.

    Raises:
        OSError: the volume refuses.
    """
    path, data = layout.finished_file, msgspec.json.encode(end) + b"\n"
    if state is None:
        replace_file(path, data, durable=True)
    else:
        state.save(path, data, durable=True)
        state.require_stored(path)


def still_met(settings: Spec, layout: Layout) -> str | None:
    """Reason, in words, why the run has succeeded under these settings; None: it has not.

    Raises:
        ValueError: the progress cannot be read.
        OSError: the volume refuses.
    """
    try:
        progress, _, _ = load_progress(layout.results)
    except Damaged as fault:
        raise ValueError(str(fault)) from fault
    policy = settings.policy_names[0]
    found = met(
        settings.stop,
        goal=reached(read_selected(layout.models, "goal"), settings.evaluation.mode),
        steps=progress.steps.get(policy, 0),
        wall_s=progress.wall_s,
        learned=progress.started,
    )
    return None if found is None else found.why


class EndedRun:
    """Manager of a finished run, which replies in place of the coordinator.

    Args:
        end: end of the run.
        found: the run was over when this process began. Pods of a failed run that join then were made by an `up`, for
            those from before its end had been released.
        settings: settings of the run.
        release: makes a new release of the pods with each call.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        process: Process,
        layout: Layout,
        end: RunEnd,
        lines: Lines,
        *,
        found: bool,
        settings: LiveSettings,
        release: Callable[[], Release],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._layout, self._end, self._clock, self._stop = layout, end, clock, process.stop
        self._begins_again = found and end.failed
        self._over = FAILED if end.failed else OVER
        self._make_release, self._release = release, release()
        self._pods_heard: tuple[float, float] | None = None  # after the release: first and last time
        self._settings = settings
        self._told = ""
        self._unstored, self._store_due = False, Every(STORE_S, clock)
        self.lines = lines
        self.events = Events(layout.results / EVENTS, time.time)
        self.status = _last_status(process, layout, end)
        self.goes_on = False
        """True if the run has not ended under other settings, and goes on."""
        try:
            self.term = max(end.term, read_term(layout.run))
        except TornTerm:
            self.term = end.term

    @property
    def over(self) -> bool:
        """True if the run goes on, or the manager was asked to leave."""
        return self.goes_on or self._stop.is_set()

    def begin(self) -> None:
        """Judge the end by the present settings, which may have changed, and release the pods.

        A failed run whose pods were not released goes on: they may be those of an `up` after a `down`.
        """
        if self._end.failed:
            judged = self._begins_again and not self._end.released
        else:
            judged = self._end.met != ON_REQUEST and bool(self._end.at)
        if judged:
            try:
                self._judge(self._settings.read())
            except ValueError as fault:
                log.error("it stays as it ended: %s", fault)
        if not self.goes_on and not self._end.released:
            self._release.start()

    def turn(self) -> None:
        """Run all tasks that are due."""
        self.events.settle()
        said = self._release.said
        if said and said != self._told and not self.goes_on:
            self._told = said
            self.events.add("release", said)
            self._end.released = self._unstored = self._release.done
        if self._unstored and not self.goes_on and self._store_due.due():
            try:
                record_end(self._layout, self._end)
                self._unstored = False
            except OSError as error:  # another manager releases them once more
                log.error("cannot store that the pods were released: %s", refusal(error) or error)
        self._release_again()

    def end(self) -> None:
        """Cancel the release of pods."""
        self._release.cancel()

    def answer(self, request: msgspec.Struct) -> msgspec.Struct:
        """Reply to processes that still run: they must stop; their log lines are stored. Other requests are too late.

        Raises:
            ValueError: no process can join, or learn in a group, any more.
        """
        match request:
            case Report():
                self._heard()
                self.lines.add(request.log, request.role)
                return Orders(self.term, known=True, peers={}, stop=True)
            case EvalResult() | Commit() | Contribute() | Sampled():
                return Reply(False, self._over)
            case Hello():
                self._heard()
                if self._begins_again and self._end.released and not self.goes_on:
                    self._go_on(GOES_ON)
        raise ValueError(self._over)

    def carry_out(self, what: str, body: dict[str, Any]) -> dict[str, Any]:
        """Carry out an order of the control API.

        Raises:
            ValueError: it comes too late, or cannot be carried out.
        """
        if what == "/reload":
            self._judge(self._settings.reload(body.get("live")))
            return {"changes": [], "resumed": self.goes_on}
        if what == "/stop":
            return {"stopping": True}
        raise ValueError(self._over)

    def _heard(self) -> None:
        if self._end.released and not self.goes_on:
            now = self._clock()
            self._pods_heard = (now if self._pods_heard is None else self._pods_heard[0], now)

    def _release_again(self) -> None:
        """Release workloads once more that were scaled up, but not by settings under which the run would go on."""
        now = self._clock()
        if self._pods_heard is None or self.goes_on or now - self._pods_heard[0] < PATIENCE_S:
            return
        still_there = now - self._pods_heard[1] < PATIENCE_S / 4
        self._pods_heard = None
        if still_there:
            self._release, self._told, self._end.released = self._make_release(), "", False
            self._release.start()

    def _judge(self, settings: Spec) -> None:
        if self._end.failed:
            self._go_on(GOES_ON)
            return
        try:
            over = still_met(settings, self._layout)
        except OSError as error:
            raise ValueError(str(error)) from error
        if over is None:
            self._go_on("by the settings of now the run is not finished: it goes on")

    def _go_on(self, why: str) -> None:
        """Let the run go on.

        Raises:
            ValueError: the volume refuses.
        """
        try:
            self._layout.finished_file.unlink(missing_ok=True)
            sync_folder(self._layout.run)
        except OSError as error:
            raise ValueError(str(error)) from error
        self.goes_on = True
        self._release.cancel()  # before the client hears of it, and scales everything up again
        self.events.add("resume", why)


def workloads_of(live: Path) -> str:
    """Names of the run's other workloads, from the file beside live.json, which may change; "" without one."""
    try:
        return live.with_name("workloads").read_text().strip()
    except OSError:
        return ""


def _last_status(process: Process, layout: Layout, end: RunEnd) -> dict[str, Any]:
    """Last status that the manager stored before the run ended."""
    try:
        status = msgspec.json.decode(layout.status_file.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError) as error:
        log.error("the last status cannot be read: %s", error)
        status = {"apiVersion": API_VERSION, "run": process.run, "uid": process.uid, "term": end.term}
    stop = {"conditions": {}, **(status.get("stop") or {})}
    if end.failed:
        return {
            **status,
            "phase": "failed",
            "failure": {"process": "manager/0", "text": end.met, "at": end.at},
            "problems": [{"text": end.met, "next": f"rlctl down {process.run}"}],  # for where its pods have to stay
            "stop": {**stop, "met": None},
        }
    return {**status, "phase": "finished", "problems": [], "stop": {**stop, "met": stop.get("met") or end.met}}
