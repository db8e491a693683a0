"""Main loop of a manager while its run goes on: decisions, status, files, curves, each at its own pace."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
from prometheus_client import Metric

from rlctl.spec.layout import Layout
from rlctl_agents.manager.accounting.averages import LearnerAverages
from rlctl_agents.manager.checkpoints.fencing_term import standing_term
from rlctl_agents.manager.coordinator import Coordinator
from rlctl_agents.manager.lifecycle import finished
from rlctl_agents.manager.logs.log_store import LogStore
from rlctl_agents.manager.membership.leases import Holder
from rlctl_agents.manager.settings import SCALED, LiveSettings
from rlctl_agents.manager.status.history import RunHistory
from rlctl_agents.manager.status.report import StatusBuilder
from rlctl_agents.manager.timing import Every
from rlctl_agents.manager.trackers.curves import Curves, curve_values
from rlctl_agents.manager.web import metrics_page
from rlctl_agents.manager.web.control_api import ControlApi
from rlctl_agents.manager.web.status_page import StatusSnapshot
from rlctl_agents.runtime.logs import Lines
from rlctl_agents.runtime.process import Process, Refusals, UserFault
from rlctl_agents.runtime.profiling import Profiler
from rlctl_agents.runtime.storage import patiently, replace_file
from rlctl_agents.types.control import Sampling, to_plain

TURN_S = 0.25
BUILD_S = 1.0
WRITE_S = 2.0
STORE_S = 5.0
DRAW_S = 5.0
POINTS = 17_280
"""Points of a curve over the first day; afterwards the interval is run time / POINTS, so their number grows with the
logarithm of the run time."""
STORE_HISTORY_S = 60.0
AWAY_S = 5.0
"""Seconds between two turns of the loop after which the silence of processes is our own: a volume hung, say."""
SAME_TERM_S = 5.0
"""Seconds between two checks whether another manager has taken over."""

log = logging.getLogger(__name__)


class Fenced(Exception):
    """Another manager of the run has taken over."""


class ManagerContext:
    """Surroundings of a manager, the same in every phase of its run.

    Args:
        store: stores log lines; None: they are not stored.
        refusals: counts messages from processes that may not talk to this manager.
    """

    def __init__(
        self, process: Process, lines: Lines, store: LogStore | None, refusals: Refusals, control: ControlApi
    ) -> None:
        arguments = process.arguments
        assert arguments.volume is not None
        assert arguments.live is not None
        self.process, self.lines, self.store, self.control = process, lines, store, control
        self.layout = Layout(arguments.volume)
        self.settings = LiveSettings(arguments.run_file, arguments.live, self.layout.results / SCALED)
        self.shown = StatusSnapshot()
        """The newest status, for watchers; replaced as a whole."""
        self._refusals = refusals
        self._own = Every(BUILD_S, time.monotonic)
        self._lost = 0  # log lines that are counted as lost

    def turn(self, carry_out: Callable[[str, dict[str, Any]], Any]) -> None:
        """Send a heartbeat, update counters, and carry out orders of the control API; to be called often."""
        self.process.pulse.beat()
        if self._own.due():
            self._refusals.count()
            if self.store is not None:
                self.lines.add(self.process.recent.take(), "manager")
                lost = self.store.lost
                self.process.metrics.add("log_lines_lost", lost - self._lost)
                self._lost = lost
        self.control.carry_out(carry_out)

    def show(self, snapshot: StatusSnapshot) -> None:
        """Replace the status for watchers."""
        self.shown, self.control.status = snapshot, snapshot.encoded


class RunningLoop:
    """Periodic tasks of a manager while its run goes on. Slow tasks become rarer: there may be ten thousand actors.

    Args:
        curves: curves for TensorBoard and other trackers.
    """

    def __init__(self, context: ManagerContext, coordinator: Coordinator, curves: Curves) -> None:
        self._context, self._coordinator, self._curves = context, coordinator, curves
        self._profiler = Profiler("manager", coordinator.life.boot, context.process.stop)
        self._builder = StatusBuilder(coordinator)
        self._status: dict[str, Any] = {}
        self._averages = LearnerAverages()
        self._history = RunHistory(context.layout.results)
        self._families: Sequence[Metric] = ()
        self._drawn = -math.inf  # time of the newest point
        self._looked = coordinator.clock.monotonic()  # start of the newest turn
        context.control.events, context.control.profiles = coordinator.events, coordinator.profiles
        clock = coordinator.clock.monotonic
        self._term, self._build = Every(SAME_TERM_S, clock), Every(BUILD_S, clock)
        self._due: list[tuple[Every, Callable[[], object]]] = [
            (self._build, self._publish),  # before the first turn, which may end the run: an end needs a status
            (Every(TURN_S, clock), coordinator.turn),
            (Every(WRITE_S, clock), self._write_status),
            (Every(DRAW_S, clock), self._draw_curves),
            (Every(STORE_S, clock), coordinator.store),
            (Every(STORE_HISTORY_S, clock), lambda: self._history.store(coordinator.state)),
        ]

    @property
    def over(self) -> bool:
        """True if the manager has done all its work."""
        return self._coordinator.stop.phase == "over"

    def answer(self, request: msgspec.Struct) -> msgspec.Struct:
        """The coordinator's reply to a request."""
        return self._coordinator.answer(request)

    def turn(self) -> None:
        """Run all tasks that are due.

        Raises:
            Fenced: another manager has taken over.
        """
        coordinator, term = self._coordinator, self._coordinator.life.term
        if self._context.process.stop.is_set():
            coordinator.stop.leave()
        if self._term.due() and (newest := self._standing_term(term)) != term:
            self._curves.outcome = "replaced"
            raise Fenced(f"a manager of term {newest} has taken over from term {term}")
        before, self._looked = self._looked, coordinator.clock.monotonic()
        if self._looked - before >= AWAY_S:
            coordinator.members.leases.excuse(self._looked - before)
        for every, do in self._due:
            if every.due():
                do()
                every.spent()

    def _standing_term(self, own: int) -> int:
        """Term of the newest manager; our own if the volume cannot be read: a commit reads it again."""
        try:
            return standing_term(self._context.layout.run, own)
        except OSError as error:
            log.error("the newest manager's term cannot be read: %s", error.strerror or error)
            return own

    def end(self) -> None:
        """Store everything, and mark the run as finished, if it is.

        Raises:
            UserFault: the run could have finished, but the last model was not saved, or the volume takes nothing.
        """
        coordinator, state, stop = self._coordinator, self._coordinator.state, self._coordinator.stop
        coordinator.commit_held(last=True)
        done = state.progress.met is not None and stop.how == "finish"
        unsaved = stop.unsaved if done else ""
        if unsaved:
            coordinator.events.add("not_saved", unsaved)
        is_finished = done and not unsaved
        self._publish(is_finished=is_finished)
        self._draw_curves(last=True)
        try:
            state.progress.requested = ""  # it is done, or cannot be: whatever comes next goes on
            if is_finished:
                self._patiently(self._store)
            else:
                self._store()
        except OSError:
            log.error("%s", coordinator.disk)
        self._write_status()
        if unsaved:
            why = f" ({coordinator.disk})" if coordinator.disk else ""
            raise UserFault(unsaved + why)
        if is_finished:
            self._store_end(state.progress.met or "")
            self._curves.outcome = "finished"
            self._publish(is_finished=True)
            self._write_status()

    def fail(self, why: str) -> None:
        """Store everything, and mark the run as failed. The status stays as of before wall time was reset."""
        self._draw_curves(last=True)
        self._write_status()
        self._coordinator.state.progress.requested = ""
        self._patiently(self._store)
        self._store_end(why, failed=True)
        self._curves.outcome = "failed"

    def _store(self) -> None:
        coordinator = self._coordinator
        coordinator.store()
        self._history.store(coordinator.state)
        coordinator.state.require_stored()

    def _store_end(self, why: str, *, failed: bool = False) -> None:
        coordinator = self._coordinator
        at = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(coordinator.clock.unix()))
        end = finished.RunEnd(at, why, coordinator.life.term, failed=failed)
        self._patiently(partial(finished.record_end, self._context.layout, end, coordinator.state))

    def families(self) -> Sequence[Metric]:
        """Metrics of all roles together, for /metrics. Thread-safe."""
        return self._families

    def _patiently(self, act: Callable[[], None]) -> None:
        def waiting() -> None:
            self._publish()  # with the problem
            self._write_status()

        process, clock = self._context.process, self._coordinator.clock.monotonic
        patiently(act, stop=process.stop, beat=process.pulse.beat, clock=clock, waiting=waiting)

    def carry_out(self, what: str, body: dict[str, Any]) -> dict[str, Any]:
        """Carry out an order of the control API.

        Raises:
            ValueError: the order is refused.
        """
        coordinator = self._coordinator
        if what == "/reload":
            return {"changes": self._reload(body.get("live"))}
        if what == "/checkpoint":
            return {"number": coordinator.order_checkpoint()}
        if what == "/profile":
            return self._order_profile(body)
        if what == "/stop":
            coordinator.stop.finish(finished.ON_REQUEST)
            return {"stopping": True}
        raise ValueError(f"{what} is no order that this manager knows")

    def _reload(self, live: dict[str, Any] | None) -> list[str]:
        found = self._context.settings.reload(live)
        try:
            return self._coordinator.reload(found)
        except ValueError:
            self._context.settings.take_back()
            raise

    def _order_profile(self, body: dict[str, Any]) -> dict[str, Any]:
        """Order a profile: of another process with the reply to its next report, of this one at once."""
        coordinator, boot = self._coordinator, self._coordinator.life.boot

        def live(role: str) -> list[Holder]:
            own = Holder("manager", 0, boot, since=coordinator.state.began, heard=coordinator.clock.monotonic())
            return [own] if role == "manager" else coordinator.members.leases.live(role)

        made = coordinator.profiles.order(body, live, coordinator.members.report_every_s)
        if made.boot == boot:
            self._profiler.obey(Sampling(made.id, made.seconds), coordinator.profiles.take)
        within_s = made.until - coordinator.clock.monotonic()
        return {"id": made.id, "process": made.process, "seconds": made.seconds, "within_s": round(within_s, 1)}

    def _publish(self, *, is_finished: bool = False) -> None:
        context, coordinator, members = self._context, self._coordinator, self._coordinator.members
        coordinator.events.settle()
        counters = context.process.metrics.values().counters
        members.totals.hear("manager", coordinator.life.boot, counters)
        members.rates.hear(coordinator.life.boot, counters)
        self._status = self._builder.build(finished=is_finished)
        if context.store is not None and context.store.failure:
            self._status["problems"].insert(0, {"text": context.store.failure, "next": "df -h; df -i"})
        self._status["problems"] += self._curves.problems
        checkpoints, policies = coordinator.checkpoints, coordinator.learners.policies
        generations = [to_plain(one) for policy in policies for one in checkpoints.manifests.of(policy)]
        context.show(StatusSnapshot.of(self._status, generations, self._build.period_s, self._history.view()))
        context.control.checkpoints = {
            "generations": generations,
            "wanted": {policy: checkpoints.wanted(policy) for policy in policies},
        }
        self._families = metrics_page.families(coordinator, self._status)

    def _write_status(self) -> None:
        try:
            replace_file(self._context.layout.status_file, self._context.shown.encoded)
        except OSError as error:
            log.error("cannot write results/status.json: %s", error)

    def _draw_curves(self, *, last: bool = False) -> None:
        coordinator, learners = self._coordinator, self._coordinator.learners
        for steps, values in coordinator.evaluations.undrawn:
            if values is None:
                self._curves.void_from(steps)
            else:
                self._curves.add(steps, values)
        coordinator.evaluations.undrawn.clear()
        clock = coordinator.clock
        rare_s = coordinator.state.wall_s / POINTS  # a month of points each 5 s would be gigabytes
        if coordinator.state.progress.started and (last or clock.monotonic() - self._drawn >= rare_s):
            self._drawn = clock.monotonic()
            learner = self._averages.look(coordinator.members.heard("learner"))
            steps, curves = learners.steps(learners.policies[0]), curve_values(self._status, learner)
            self._curves.add(steps, curves)
            self._history.sample(clock.unix(), clock.monotonic() - coordinator.state.began, steps, curves)
        else:
            self._history.look()
        for text in self._curves.turn():
            coordinator.events.add("tracker", text)
