"""The manager process: leases, matches, generations, stop conditions, status. Imports neither torch nor a simulator."""

from __future__ import annotations

import logging
import tempfile
import time
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from rlctl.spec.layout import Layout
from rlctl_agents.manager.checkpoints.fencing_term import PodOrder
from rlctl_agents.manager.coordinator import ROUTES, Coordinator
from rlctl_agents.manager.lifecycle import finished
from rlctl_agents.manager.lifecycle.scale_down import Cluster, Release, workloads
from rlctl_agents.manager.lifecycle.stop import NothingLearned
from rlctl_agents.manager.logs.log_queries import LogQueries
from rlctl_agents.manager.logs.log_store import LogStore
from rlctl_agents.manager.loop import ManagerContext, RunningLoop
from rlctl_agents.manager.membership.boot_rate import BootRateLimiter
from rlctl_agents.manager.state_store import Damaged
from rlctl_agents.manager.status.history import RunHistory
from rlctl_agents.manager.timing import Clock
from rlctl_agents.manager.trackers.base import TrackedRun
from rlctl_agents.manager.trackers.curves import Curves, config_of, opened_trackers
from rlctl_agents.manager.trackers.tensorboard import CurveWriter
from rlctl_agents.manager.web import status_page
from rlctl_agents.manager.web.control_api import ControlApi
from rlctl_agents.manager.web.initial_policy import InitialPolicy
from rlctl_agents.manager.web.stored_files import StoredFiles
from rlctl_agents.manager.web.stored_page import stored_generations
from rlctl_agents.runtime.addresses import Addresses
from rlctl_agents.runtime.logs import Lines
from rlctl_agents.runtime.process import (
    Process,
    Refusals,
    UserFault,
    as_users_fault,
    open_wire,
    refused_connections,
    serve,
)
from rlctl_agents.runtime.storage import patiently
from rlctl_agents.types.control import Hello
from rlctl_agents.wire.classes import MANAGER
from rlctl_agents.wire.rpc.server import RpcServer
from rlctl_agents.wire.sockets import Wire

SERVE_S = 0.05

log = logging.getLogger(__name__)


RunPhase = RunningLoop | finished.EndedRun
"""Phase of the run, which answers requests, carries out orders and does all that is due."""


def main(process: Process) -> None:
    """Manage until the run is finished, or until asked to stop.

    With `--stay` the manager then answers for a run that is finished, or has failed, until it is asked to stop, also
    after a restart, unless the run goes on: a finished one by other settings, a failed one when it is asked to.

    Raises:
        UserFault: the command line or live.json is not usable, the volume takes nothing, or the last model was not
            saved.
        NothingLearned: without `--stay`: the time is over, and nothing was ever learned from.
        Fenced: another manager has taken over; on a cluster an older pod then waits to be deleted.
    """
    arguments = process.arguments
    if arguments.volume is None or arguments.addresses is None or arguments.control is None or arguments.live is None:
        raise UserFault("command line: a manager needs --volume, --addresses, --control and --live")
    layout = Layout(arguments.volume)
    layout.make()
    if arguments.stay:
        pods = pods_of(process, layout)
        pods.begin()
        if pods.superseded():
            stand_aside(process)
            return
    with ExitStack() as stack:
        wire = open_wire(arguments)
        stack.callback(wire.close)
        server = RunServer(process, wire)
        stack.callback(server.rpc.close)
        refusals = Refusals(process.metrics, lambda: server.rpc.rejected, lambda: refused_connections(wire))
        lines, store = Lines(), LogStore(layout.logs, process.boot) if arguments.logs else None
        if store is not None:
            lines.keep = store.add
            store.start()
            stack.callback(store.close)
        with as_users_fault(ValueError, said="--control: "):
            queries = LogQueries(layout.logs, lines, store, process.boot)
            control = ControlApi(
                arguments.control, queries.answer, StoredFiles(layout).answer, InitialPolicy(layout).answer
            )
        stack.callback(control.close)
        context = ManagerContext(process, lines, store, refusals, control)
        newest = partial(lines.newest, status_page.MOST_LINES)
        process.pages.update(status_page.pages(lambda: context.shown, lines=newest, episodes=layout.episodes))
        manage_phases(server, context)


class RunServer:
    """Server for the processes of the run; the present phase answers their requests.

    Raises:
        UserFault: its address cannot be used.
    """

    phase: RunPhase

    def __init__(self, process: Process, wire: Wire) -> None:
        self.keys, self._boot_rate = wire.keys, BootRateLimiter(time.monotonic)
        routes = dict.fromkeys(ROUTES, self._answer)
        with as_users_fault(ValueError, said="--manager: "):
            self.rpc = RpcServer(wire, process.arguments.manager, process.boot, routes, MANAGER)

    def admit(self, hello: Hello, known: bool) -> None:
        """Limit the rate of actors that join, as `admit` of `LeaseAdmission`."""
        if hello.role == "actor":
            self._boot_rate.admit(hello.boot, self.rpc.caller_address, known=known)

    def _answer(self, request: msgspec.Struct, _buffers: object) -> tuple[msgspec.Struct, list[bytes]]:
        return self.phase.answer(request), []


def pods_of(process: Process, layout: Layout) -> PodOrder:
    """Order of the run's manager pods; this pod's file goes with it, for its /tmp is a volume of its own."""
    return PodOrder(layout.run, Path(tempfile.gettempdir()) / f"rlctl-manager-{process.uid}")


def stand_aside(process: Process) -> None:
    """Do nothing until asked to stop: an exit would only have this process started again."""
    log.error("a manager in a newer pod has taken over: this pod waits until it is deleted")
    while not process.stop.wait(SERVE_S):
        process.pulse.beat()


def manage_phases(server: RunServer, context: ManagerContext) -> None:
    """Manage one phase after the other: with `--stay` a run may end, and go on, several times."""
    process, layout = context.process, context.layout
    found = end = finished.read_end(layout) if process.arguments.stay else None
    while True:
        with ExitStack() as opened:
            if end is None:
                manage_running(server, context, opened)
            else:
                manage(server, context, resting(context, opened, end, found=end is found))
        if process.stop.is_set() or not process.arguments.stay:
            return
        end = finished.read_end(layout)


def manage_running(server: RunServer, context: ManagerContext, opened: ExitStack) -> None:
    """Manage the phase in which the run goes on; with `--stay` a run that has learned nothing ends as a failed one.

    Raises:
        NothingLearned: without `--stay`.
    """
    loop = running(server, context, opened)
    try:
        manage(server, context, loop)
    except NothingLearned as fault:
        if not context.process.arguments.stay:
            raise
        loop.fail(str(fault))


def manage(server: RunServer, context: ManagerContext, phase: RunPhase) -> None:
    """Answer requests and do all that is due until the phase is over."""
    server.phase = phase
    while not phase.over:
        serve(server.rpc, SERVE_S)
        context.turn(phase.carry_out)
        phase.turn()
    phase.end()


def running(server: RunServer, context: ManagerContext, opened: ExitStack) -> RunningLoop:
    """Begin the phase in which the run goes on, with the state that is stored.

    Args:
        opened: closes what is opened here.
    """
    process, layout, keys = context.process, context.layout, server.keys
    assert process.arguments.addresses is not None
    with as_users_fault(ValueError):
        settings, addresses = context.settings.read(), Addresses(process.arguments.addresses, time.monotonic)
    make = partial(
        Coordinator,
        run=process.run,
        uid=process.uid,
        boot=process.boot,
        settings=settings,
        layout=layout,
        addresses=addresses,
        clock=Clock(time.monotonic, time.time),
        admit=server.admit,
        **({"ticket": partial(keys.ticket, process.uid)} if keys is not None else {}),
    )
    with as_users_fault(Damaged, ValueError):
        coordinator = patiently(make, stop=process.stop, beat=process.pulse.beat)
    term = coordinator.life.term
    if process.arguments.stay:
        patiently(pods_of(process, layout).enter, stop=process.stop, beat=process.pulse.beat)
    coordinator.members.lines = context.lines
    draw = partial(CurveWriter, layout.results / "tensorboard", term)
    tensorboard = patiently(draw, stop=process.stop, beat=process.pulse.beat)
    config = partial(config_of, context.settings.mounted.with_name("spec.json"))
    tracked = TrackedRun(process.run, process.uid, term, layout.results, layout.root.parents[1], config())
    curves = Curves(
        tensorboard,
        opened_trackers(coordinator.settings.trackers, tracked),
        config=config,
        gave_up=layout.failure_file.exists,
        hurry=process.stop.is_set,
        beat=process.pulse.beat,
    )

    @opened.callback
    def tell_losses() -> None:
        for text in curves.losses:
            coordinator.events.add("tracker", text)

    opened.enter_context(curves)
    loop = RunningLoop(context, coordinator, curves)
    process.families, process.pulse.ready = loop.families, True
    log.info("listening", extra={"kv": {"address": server.rpc.address, "term": term}})
    return loop


def resting(context: ManagerContext, opened: ExitStack, end: finished.RunEnd, *, found: bool) -> finished.EndedRun:
    """Begin the phase in which the run is over.

    Args:
        opened: closes what is opened here.
        found: whether it was over when this process began.
    """
    process, live = context.process, context.settings.mounted

    def release() -> Release:
        with as_users_fault(ValueError, said="workloads: "):
            return Release(workloads(finished.workloads_of(live)), Cluster.found())

    run = finished.EndedRun(
        process, context.layout, end, context.lines, found=found, settings=context.settings, release=release
    )
    opened.callback(run.end)
    context.control.events = run.events
    generations: list[dict[str, Any]] = []
    with suppress(OSError):  # the volume does not let them be read just now
        generations = stored_generations(context.layout, run.status)
    context.control.checkpoints = {"generations": generations, "wanted": {}}
    history = RunHistory(context.layout.results).view()
    context.show(status_page.StatusSnapshot.of(run.status, generations, history=history))
    process.families, process.pulse.ready = None, True
    log.info("the run %s: %s", "has failed" if end.failed else "is finished", end.met)
    run.begin()
    return run
