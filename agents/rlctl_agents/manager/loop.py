"""What a manager does between two requests while its run goes on, each at its own pace."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from prometheus_client import Metric

from rlctl.spec.schema import Spec
from rlctl_agents.manager import finished_run
from rlctl_agents.manager.accounting.averages import Looks
from rlctl_agents.manager.checkpoints.fencing_term import standing_term
from rlctl_agents.manager.coordinator import Overseer
from rlctl_agents.manager.events import Lines
from rlctl_agents.manager.logs.log_store import LogStore
from rlctl_agents.manager.membership.leases import Holder
from rlctl_agents.manager.status import report
from rlctl_agents.manager.timing import Every
from rlctl_agents.manager.web import metrics_page
from rlctl_agents.manager.web.control_api import ControlApi
from rlctl_agents.manager.web.status_page import Shown
from rlctl_agents.manager.web.tensorboard import CurveWriter
from rlctl_agents.runtime.process import Process, Refusals, RunFile, UserFault, parse_spec
from rlctl_agents.runtime.profiling import Profiler
from rlctl_agents.runtime.storage import patiently, replace_file
from rlctl_agents.types.control import Sampling, to_plain

TURN_S = 0.25
BUILD_S = 1.0
WRITE_S = 2.0
STORE_S = 5.0
DRAW_S = 5.0
SAME_TERM_S = 5.0
"""Between two looks whether another manager has taken over."""

log = logging.getLogger(__name__)


class Fenced(Exception):
    """Another manager of the run has started since."""


class Shared:
    """What a manager has whether its run goes on or is finished.

    Args:
        store: keeps log lines; None: nobody does.
        refusals: of whoever may not talk to us.
    """

    def __init__(self, process: Process, lines: Lines, store: LogStore | None, refusals: Refusals) -> None:
        self.process, self.lines, self.store = process, lines, store
        self.shown = Shown()
        """The newest status, for watchers; replaced as a whole."""
        self._live: Mapping[str, Any] | None = None  # what /reload brought last
        self._refusals = refusals
        self._own = Every(BUILD_S, time.monotonic)
        self._lost = 0  # log lines

    def turn(self) -> None:
        """The loop turns; often called."""
        self.process.pulse.beat()
        if self._own.due():
            self._refusals.count()
            if self.store is not None:
                self.lines.add(self.process.recent.take(), "manager")
                lost = self.store.lost
                self.process.metrics.add("log_lines_lost", lost - self._lost)
                self._lost = lost

    def settings(self) -> Spec:
        """The manager's part of the spec, as it is now.

        Raises:
            ValueError: it cannot be used.
        """
        return self.reload(self._live)

    def reload(self, live: Mapping[str, Any] | None) -> Spec:
        """The manager's part of the spec with other values of what applies live; None: those of live.json.

        Raises:
            ValueError: it cannot be used; nothing is changed then.
        """
        arguments = self.process.arguments
        try:
            found = settings(arguments.run_file, arguments.live, live)
        except UserFault as fault:
            raise ValueError(str(fault)) from fault
        self._live = live
        return found


def settings(run_file: Path, live: Path | None, given: Mapping[str, Any] | None = None) -> Spec:
    """The manager's part of the spec: what restarts it from the run file, what applies live from live.json.

    Args:
        given: instead of what live.json holds: a mounted file may be a minute late.

    Raises:
        UserFault: one of them cannot be used.
    """
    values = RunFile.read(run_file, "manager").spec
    source, now = live or run_file, given
    if given is None and live is not None:
        try:
            now = json.loads(live.read_bytes())
        except (OSError, ValueError) as error:
            raise UserFault(f"{live}: {error}") from error
    if now is not None:
        if not isinstance(now, dict):
            raise UserFault(f"{source if given is None else 'live'}: must hold an object")
        values = merged(values, now)
    return parse_spec(values, source)


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Both trees; where both have a leaf, the one above."""
    found = dict(below)
    for key, value in above.items():
        here = found.get(key)
        found[key] = merged(here, value) if isinstance(here, dict) and isinstance(value, dict) else value
    return found


class Desk:
    """The work of one life of a run's manager. What takes long is done more rarely: there may be ten thousand actors.

    Args:
        curves: drawn for TensorBoard.
    """

    def __init__(self, shared: Shared, overseer: Overseer, control: ControlApi, curves: CurveWriter) -> None:
        self._shared, self._overseer, self._control, self._curves = shared, overseer, control, curves
        self._process, self._layout = shared.process, overseer.layout
        self._profiler = Profiler("manager", overseer.boot, shared.process.stop)
        self._builder = report.StatusBuilder(overseer)
        self._status: dict[str, Any] = {}
        self._looks = Looks()
        self._families: Sequence[Metric] = ()
        clock = overseer.clock.monotonic
        self._turn, self._build, self._write = Every(TURN_S, clock), Every(BUILD_S, clock), Every(WRITE_S, clock)
        self._store, self._draw, self._term = Every(STORE_S, clock), Every(DRAW_S, clock), Every(SAME_TERM_S, clock)

    def turn(self) -> None:
        """Whatever is due.

        Raises:
            Fenced: another manager has taken over.
        """
        process, overseer = self._process, self._overseer
        self._shared.turn()
        self._control.carry_out(self._carry_out)
        if process.stop.is_set():
            overseer.closing.leave()
        self._do(self._turn, overseer.turn)
        if self._term.due() and (newest := standing_term(self._layout.run, overseer.term)) != overseer.term:
            raise Fenced(f"a manager of term {newest} has taken over from term {overseer.term}")
        self._do(self._build, self._publish)
        self._do(self._write, self._write_status)
        self._do(self._draw, self._draw_curves)
        self._do(self._store, overseer.store)

    def end(self) -> None:
        """The last words: everything is stored, and that the run is finished, if it is.

        Raises:
            UserFault: it could have been finished, but the last model was not saved, or the volume takes nothing.
        """
        overseer = self._overseer
        done = overseer.progress.met is not None and overseer.ending.how == "finish"
        unsaved = overseer.closing.unsaved if done else ""
        if unsaved:
            overseer.events.add("not_saved", unsaved)
        finished = done and not unsaved
        self._publish(finished=finished)
        self._draw_curves()
        try:
            if finished:
                self._patiently(overseer.store_at_last)
            else:
                overseer.store_at_last()
        except OSError:
            log.error("%s", overseer.disk)
        self._write_status()
        if unsaved:
            why = f" ({overseer.disk})" if overseer.disk else ""
            raise UserFault(unsaved + why)
        if finished:
            at = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(overseer.clock.unix()))
            end = finished_run.End(at, overseer.progress.met or "", overseer.term)
            self._patiently(partial(overseer.store_end, finished_run.encode(end)))
            self._publish(finished=True)
            self._write_status()

    def _patiently(self, act: Callable[[], None]) -> None:
        def waiting() -> None:
            self._publish(finished=False)  # with the problem
            self._write_status()

        process, clock = self._process, self._overseer.clock.monotonic
        patiently(act, stop=process.stop, beat=process.pulse.beat, clock=clock, waiting=waiting)

    def families(self) -> Sequence[Metric]:
        """What /metrics shows: all roles together. From any thread."""
        return self._families

    def _do(self, every: Every, what: Callable[[], None]) -> None:
        if every.due():
            what()
            every.spent()

    def _carry_out(self, what: str, body: dict[str, Any]) -> dict[str, Any]:
        overseer = self._overseer
        if what == "/reload":
            return {"changes": overseer.reload(self._shared.reload(body.get("live")))}
        if what == "/checkpoint":
            return {"number": overseer.order_checkpoint()}
        if what == "/profile":
            return self._order_profile(body)
        overseer.closing.finish(finished_run.ON_REQUEST)
        return {"stopping": True}

    def _order_profile(self, body: dict[str, Any]) -> dict[str, Any]:
        """Another process hears of it with the answer to its next report; this one looks at itself at once."""
        overseer = self._overseer

        def live(role: str) -> list[Holder]:
            now = overseer.clock.monotonic()
            own = [Holder("manager", 0, overseer.boot, since=overseer.began, heard=now)]
            return own if role == "manager" else overseer.members.leases.live(role)

        made = overseer.profiles.order(body, live, overseer.report_every_s)
        if made.boot == overseer.boot:
            self._profiler.obey(Sampling(made.id, made.seconds), overseer.profiles.take)
        within_s = made.until - overseer.clock.monotonic()
        return {"id": made.id, "process": made.process, "seconds": made.seconds, "within_s": round(within_s, 1)}

    def _publish(self, *, finished: bool = False) -> None:
        overseer, store = self._overseer, self._shared.store
        overseer.events.settle()
        counters = self._process.metrics.values().counters
        overseer.members.totals.hear("manager", overseer.boot, counters)
        overseer.members.rates.hear(overseer.boot, counters)
        self._status = self._builder.build(finished=finished)
        if store is not None and store.failure:
            self._status["problems"].insert(0, {"text": store.failure, "next": "df -h"})
        manifests = overseer.checkpoints.manifests
        generations = [to_plain(one) for policy in overseer.policies for one in manifests.of(policy)]
        self._shared.shown = Shown.of(self._status, generations, self._build.period_s)
        self._control.status = self._shared.shown.encoded
        self._control.checkpoints = {
            "generations": generations,
            "wanted": {policy: overseer.checkpoints.wanted(policy) for policy in overseer.policies},
        }
        self._families = metrics_page.families(overseer, self._status)

    def _write_status(self) -> None:
        try:
            replace_file(self._layout.results / "status.json", report.encode(self._status))
        except OSError as error:
            log.error("cannot write results/status.json: %s", error)

    def _draw_curves(self) -> None:
        overseer = self._overseer
        for rows, mean in overseer.curve:
            if mean is None:
                self._curves.void_from(rows)
            else:
                self._curves.add(rows, {"return/evaluation": mean})
        overseer.curve.clear()
        if overseer.progress.started:
            learner = self._looks.look(overseer.members.reports("learner"))
            self._curves.add(overseer.rows, report.scalars(self._status, learner))
