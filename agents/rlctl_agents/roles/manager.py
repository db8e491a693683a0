"""The manager process: leases, matches, generations, stop conditions, status. Imports neither torch nor a simulator."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from rlctl.spec.layout import Layout
from rlctl.spec.schema import Spec
from rlctl_agents.roles import metrics_page, status
from rlctl_agents.roles.addresses import Addresses
from rlctl_agents.roles.control_api import ControlApi
from rlctl_agents.roles.files import replace_file
from rlctl_agents.roles.overseer import Overseer
from rlctl_agents.roles.pace import Clock
from rlctl_agents.roles.process import Process, RunFile, UserFault, parse_spec
from rlctl_agents.roles.progress import Damaged
from rlctl_agents.roles.tensorboard import CurveWriter
from rlctl_agents.roles.terms import standing_term
from rlctl_agents.roles.volume import patiently
from rlctl_agents.types.control import Commit, EvalResult, Hello, Lease, Orders, Report, Said, to_plain
from rlctl_agents.wire.rpc import RpcServer
from rlctl_agents.wire.sockets import Wire

SERVE_S = 0.05
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


def main(process: Process) -> None:
    """Manage until the run is finished, or until asked to leave.

    Raises:
        UserFault: the command line or live.json is not usable, the time is over in vain, the volume takes nothing, or
            the last model was not saved.
        Fenced: another manager has taken over.
    """
    arguments = process.arguments
    if arguments.volume is None or arguments.addresses is None or arguments.control is None:
        raise UserFault("command line: a manager needs --volume, --addresses and --control")
    layout = Layout(arguments.volume)
    layout.make()
    with ExitStack() as stack:
        make = partial(
            Overseer,
            run=process.run,
            uid=process.uid,
            boot=process.boot,
            settings=settings(arguments.run_file, arguments.live),
            layout=layout,
            addresses=Addresses(arguments.addresses, time.monotonic),
            clock=Clock(time.monotonic, time.time),
        )
        try:
            overseer = patiently(make, stop=process.stop, beat=process.pulse.beat)
        except (Damaged, ValueError) as fault:
            raise UserFault(str(fault)) from fault
        control = ControlApi(arguments.control, overseer.events, overseer.members.lines)
        stack.callback(control.close)
        wire = Wire()
        stack.callback(wire.close)
        server = RpcServer(wire, arguments.manager, process.boot, handlers(overseer))
        stack.callback(server.close)
        draw = partial(CurveWriter, layout.results / "tensorboard", overseer.term)
        curves = patiently(draw, stop=process.stop, beat=process.pulse.beat)
        stack.callback(curves.close)
        desk = Desk(process, overseer, control, curves)
        process.page = desk.metrics_text
        process.pulse.ready = True
        log.info("listening", extra={"kv": {"address": server.address, "term": overseer.term}})
        while not overseer.over:
            serve(server)
            desk.turn()
        desk.end()


def handlers(overseer: Overseer) -> Mapping[type[msgspec.Struct], Callable[..., tuple[msgspec.Struct, list[bytes]]]]:
    """What the RPC server answers."""
    answers: dict[type[msgspec.Struct], Callable[[Any], Lease | Orders | Said]] = {
        Hello: overseer.hello,
        Report: overseer.report,
        EvalResult: overseer.result,
        Commit: overseer.commit,
    }
    return {kind: lambda request, _buffers, answer=answer: (answer(request), []) for kind, answer in answers.items()}


def serve(server: RpcServer) -> None:
    """Answer what has come. A request that makes us fail is the sender's loss: a run must not end by one message."""
    try:
        server.serve(SERVE_S)
    except Exception as error:
        log.exception("a request failed: %s: %s", type(error).__name__, error)


def settings(run_file: Path, live: Path | None) -> Spec:
    """The manager's part of the spec: what restarts it from the run file, what applies live from live.json.

    Raises:
        UserFault: one of them cannot be used.
    """
    values = RunFile.read(run_file, "manager").spec
    if live is not None:
        try:
            now = json.loads(live.read_bytes())
        except (OSError, ValueError) as error:
            raise UserFault(f"{live}: {error}") from error
        if not isinstance(now, dict):
            raise UserFault(f"{live}: must hold an object")
        values = merged(values, now)
    return parse_spec(values, live or run_file)


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Both trees; where both have a leaf, the one above."""
    found = dict(below)
    for key, value in above.items():
        here = found.get(key)
        found[key] = merged(here, value) if isinstance(here, dict) and isinstance(value, dict) else value
    return found


class Every:
    """Says when a period has gone by.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, period_s: float, clock: Callable[[], float]) -> None:
        self._period_s = period_s
        self._clock = clock
        self._last = -float("inf")

    def due(self) -> bool:
        """Whether it has, since the last time this said so."""
        now = self._clock()
        if now - self._last < self._period_s:
            return False
        self._last = now
        return True


class Desk:
    """What the manager does between two requests, each at its own pace."""

    def __init__(self, process: Process, overseer: Overseer, control: ControlApi, curves: CurveWriter) -> None:
        self._process, self._overseer, self._control, self._curves = process, overseer, control, curves
        self._layout = overseer.layout
        self._builder = status.StatusBuilder(overseer)
        self._status: dict[str, Any] = {}
        self._page = ""
        clock = overseer.clock.monotonic
        self._turn, self._build, self._write = Every(TURN_S, clock), Every(BUILD_S, clock), Every(WRITE_S, clock)
        self._store, self._draw, self._term = Every(STORE_S, clock), Every(DRAW_S, clock), Every(SAME_TERM_S, clock)

    def turn(self) -> None:
        """Whatever is due.

        Raises:
            Fenced: another manager has taken over.
        """
        process, overseer = self._process, self._overseer
        process.pulse.beat()
        self._control.carry_out(self._carry_out)
        if process.stop.is_set():
            overseer.leave()
        if self._turn.due():
            overseer.turn()
        if self._term.due() and (newest := standing_term(self._layout.run, overseer.term)) != overseer.term:
            raise Fenced(f"a manager of term {newest} has taken over from term {overseer.term}")
        if self._build.due():
            self._publish(finished=False)
        if self._write.due():
            self._write_status()
        if self._draw.due():
            self._draw_curves()
        if self._store.due():
            overseer.store()

    def end(self) -> None:
        """The last words: everything is stored, and that the run is finished, if it is.

        Raises:
            UserFault: it could have been finished, but the last model was not saved, or the volume takes nothing.
        """
        overseer = self._overseer
        done = overseer.progress.met is not None and overseer.ending.how == "finish"
        unsaved = overseer.unsaved if done else ""
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
            end = {"at": _rfc3339(overseer.clock.unix()), "met": overseer.progress.met, "term": overseer.term}
            self._patiently(partial(overseer.store_end, json.dumps(end).encode() + b"\n"))
            self._publish(finished=True)
            self._write_status()

    def _patiently(self, act: Callable[[], None]) -> None:
        def waiting() -> None:
            self._publish(finished=False)  # with the problem
            self._write_status()

        process, clock = self._process, self._overseer.clock.monotonic
        patiently(act, stop=process.stop, beat=process.pulse.beat, clock=clock, waiting=waiting)

    def metrics_text(self) -> str:
        """The page /metrics: all roles together. From any thread."""
        return self._page

    def _carry_out(self, what: str) -> dict[str, Any]:
        overseer, arguments = self._overseer, self._process.arguments
        if what == "/reload":
            try:
                return {"changes": overseer.reload(settings(arguments.run_file, arguments.live))}
            except UserFault as fault:
                raise ValueError(str(fault)) from fault
        if what == "/checkpoint":
            return {"number": overseer.order_checkpoint()}
        overseer.finish("stopped on request")
        return {"stopping": True}

    def _publish(self, *, finished: bool) -> None:
        overseer = self._overseer
        overseer.members.totals.hear("manager", overseer.boot, self._process.metrics.values().counters)
        overseer.members.rates.hear(overseer.boot, self._process.metrics.values().counters)
        self._status = self._builder.build(finished=finished)
        self._control.status = status.encode(self._status)
        manifests = overseer.checkpoints.manifests
        self._control.checkpoints = {
            "generations": [to_plain(one) for policy in overseer.policies for one in manifests.of(policy)],
            "wanted": {policy: overseer.checkpoints.wanted(policy) for policy in overseer.policies},
        }
        self._page = metrics_page.text(overseer, self._status)

    def _write_status(self) -> None:
        try:
            replace_file(self._layout.results / "status.json", status.encode(self._status))
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
            learners = overseer.members.leases.live("learner")
            seen = overseer.members.seen.get(learners[0].boot) if learners else None
            self._curves.add(overseer.rows, status.scalars(self._status, seen.gauges if seen is not None else {}))


def _rfc3339(unix: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(unix))
