"""What is left of a manager when its run is finished: on a cluster somebody has to go on answering for it.

The run folder says that the run is finished, so a manager that is started again knows it too. It goes on as a run when
settings come by which it would not have ended.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from rlctl.spec.layout import Layout
from rlctl.spec.schema import Policy, Spec
from rlctl_agents.manager.checkpoints.fencing_term import TornTerm, read_term
from rlctl_agents.manager.events import Events, Lines
from rlctl_agents.manager.lifecycle import stopping
from rlctl_agents.manager.lifecycle.scale_down import Release
from rlctl_agents.manager.state_store import Damaged, load_progress
from rlctl_agents.manager.web.control_api import ControlApi
from rlctl_agents.manager.web.status_page import Shown
from rlctl_agents.runtime.process import Arguments, Process
from rlctl_agents.runtime.storage import read_file, replace_file, sync_folder
from rlctl_agents.types.control import (
    Commit,
    Enlist,
    EvalResult,
    Hello,
    Lease,
    Note,
    Noted,
    Orders,
    Place,
    Report,
    Said,
    Sampled,
)

ON_REQUEST = "stopped on request"
OVER = "the run is finished"
PATIENCE_S = 120.0
"""Pods that are there for so long after all were given back are given back again: longer than the grace of any role."""

log = logging.getLogger(__name__)


class End(msgspec.Struct):
    """run/finished.json."""

    at: str  # RFC 3339
    met: str
    term: int
    released: bool = False  # its pods were given back


def finished(layout: Layout) -> End | None:
    """How the run ended; None: it has not.

    Raises:
        OSError: the volume refuses.
    """
    data = read_file(_file(layout))
    try:
        return None if data is None else msgspec.json.decode(data, type=End)
    except msgspec.MsgspecError as error:
        log.error("%s cannot be read, and says all the same that the run is finished: %s", _file(layout), error)
        return End("", OVER, 0)


def encode(end: End) -> bytes:
    """As it is stored."""
    return msgspec.json.encode(end) + b"\n"


def finish(layout: Layout, end: End) -> None:
    """The run has ended; it is on the disk when this returns.

    Raises:
        OSError: the volume refuses.
    """
    replace_file(_file(layout), encode(end), durable=True)


def still_met(settings: Spec, layout: Layout) -> str | None:
    """Why the run has succeeded by these settings; None: it has not.

    Raises:
        ValueError: how far it has come cannot be read.
        OSError: the volume refuses.
    """
    try:
        progress, _, _ = load_progress(layout.results)
    except Damaged as fault:
        raise ValueError(str(fault)) from fault
    policy = next(iter(settings.policies or {"main": Policy()}))
    met = stopping.met(
        settings.stop,
        evaluation=progress.evaluation,
        rows=progress.rows.get(policy, 0),
        wall_s=progress.wall_s,
        learned=progress.started,
    )
    return None if met is None else met.why


class Finished:
    """Answers for a run that is finished; where a manager answers, it does.

    Args:
        end: how it ended.
        settings: of the run as they are; raises ValueError.
        reload: likewise, given what `/reload` brings.
        release: one that gives its pods back, each time it is asked for.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        process: Process,
        layout: Layout,
        end: End,
        lines: Lines,
        *,
        settings: Callable[[], Spec],
        reload: Callable[[Mapping[str, Any] | None], Spec],
        release: Callable[[], Release],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._layout, self._end, self._clock = layout, end, clock
        self._another, self._release = release, release()
        self._back: tuple[float, float] | None = None  # heard of pods after all had been given back: first, last
        self._settings, self._reload = settings, reload
        self._told = ""
        self.lines = lines
        self.events = Events(layout.results / "events.jsonl", time.time)
        self.shown = Shown.of(_last_status(process, layout, end))
        self.goes_on = False
        """By other settings the run has not ended."""
        try:
            self.term = max(end.term, read_term(layout.run))
        except TornTerm:
            self.term = end.term

    def begin(self) -> None:
        """Judge by the settings of now, which may be others; and give the pods back."""
        if self._end.met != ON_REQUEST and self._end.at:
            try:
                self._judge(self._settings())
            except ValueError as fault:
                log.error("it stays finished: %s", fault)
        if not self.goes_on and not self._end.released:
            self._release.start()

    def turn(self, control: ControlApi) -> None:
        """Whatever is due."""
        control.carry_out(self._carry_out)
        self.events.settle()
        said = self._release.said
        if said and said != self._told and not self.goes_on:
            self._told = said
            self.events.add("release", said)
            if self._release.done:
                self._end.released = True
                finish(self._layout, self._end)
        self._give_back_again()

    def close(self) -> None:
        """Give nothing back any more."""
        self._release.cancel()

    def hello(self, hello: Hello) -> Lease:
        """Nobody joins any more.

        Raises:
            ValueError: always.
        """
        self._heard()
        raise ValueError(OVER)

    def report(self, report: Report) -> Orders:
        """Whoever still runs shall stop; what it has to say is kept."""
        self._heard()
        self.lines.add(report.log, report.role)
        return Orders(self.term, known=True, peers={}, stop=True)

    def result(self, result: EvalResult) -> Said:
        """Too late."""
        return Said(False, OVER)

    def commit(self, commit: Commit) -> Said:
        """Too late."""
        return Said(False, OVER)

    def enlist(self, ask: Enlist) -> Place:
        """There is nothing to learn any more.

        Raises:
            ValueError: always.
        """
        raise ValueError(OVER)

    def note(self, note: Note) -> Noted:
        """Nor is there a group.

        Raises:
            ValueError: always.
        """
        raise ValueError(OVER)

    def sampled(self, sampled: Sampled) -> Said:
        """Too late."""
        return Said(False, OVER)

    def _carry_out(self, what: str, body: dict[str, Any]) -> dict[str, Any]:
        if what == "/reload":
            self._judge(self._reload(body.get("live")))
            return {"changes": [], "resumed": self.goes_on}
        if what in ("/checkpoint", "/profile"):
            raise ValueError(OVER)
        return {"stopping": True}

    def _heard(self) -> None:
        if self._end.released and not self.goes_on:
            now = self._clock()
            self._back = (now if self._back is None else self._back[0], now)

    def _give_back_again(self) -> None:
        """Somebody has scaled workloads up, and not by settings by which the run would go on."""
        now = self._clock()
        if self._back is None or self.goes_on or now - self._back[0] < PATIENCE_S:
            return
        still_there = now - self._back[1] < PATIENCE_S / 4
        self._back = None
        if still_there:
            self._release, self._told, self._end.released = self._another(), "", False
            self._release.start()

    def _judge(self, settings: Spec) -> None:
        try:
            met = still_met(settings, self._layout)
            if met is None:
                _file(self._layout).unlink(missing_ok=True)
                sync_folder(self._layout.run)
        except OSError as error:
            raise ValueError(str(error)) from error
        if met is None:
            self.goes_on = True
            self._release.cancel()  # before whoever asked hears of it, and scales everything up again
            self.events.add("resume", "by the settings of now the run is not finished: it goes on")


def workloads_of(arguments: Arguments) -> str:
    """Names of the run's other workloads: from the file beside live.json, which a change reaches while we run."""
    if arguments.live is not None:
        try:
            return arguments.live.with_name("workloads").read_text().strip()
        except OSError:
            pass
    return arguments.workloads


def _last_status(process: Process, layout: Layout, end: End) -> dict[str, Any]:
    """As the manager stored it when the run ended."""
    try:
        status = msgspec.json.decode((layout.results / "status.json").read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError) as error:
        log.error("the last status cannot be read: %s", error)
        status = {"apiVersion": "rlctl/v1", "run": process.run, "uid": process.uid, "term": end.term}
    stop = {"conditions": {}, **(status.get("stop") or {})}
    return {**status, "phase": "finished", "problems": [], "stop": {**stop, "met": stop.get("met") or end.met}}


def _file(layout: Layout) -> Path:
    return layout.run / "finished.json"
