"""The manager process: leases, matches, generations, stop conditions, status. Imports neither torch nor a simulator."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, Protocol

import msgspec

from rlctl.spec.layout import Layout
from rlctl_agents.manager import finished_run
from rlctl_agents.manager.coordinator import Overseer
from rlctl_agents.manager.events import Lines
from rlctl_agents.manager.lifecycle.scale_down import Cluster, Release, workloads
from rlctl_agents.manager.logs.log_queries import LogQueries
from rlctl_agents.manager.logs.log_store import LogStore
from rlctl_agents.manager.loop import Desk, Shared
from rlctl_agents.manager.membership.newcomers import Newcomers
from rlctl_agents.manager.state_store import Damaged
from rlctl_agents.manager.timing import Clock
from rlctl_agents.manager.web import status_page
from rlctl_agents.manager.web.control_api import ControlApi
from rlctl_agents.manager.web.tensorboard import CurveWriter
from rlctl_agents.runtime.addresses import Addresses
from rlctl_agents.runtime.process import Process, Refusals, UserFault, open_wire, refused_connections
from rlctl_agents.runtime.storage import patiently
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
from rlctl_agents.wire.classes import MANAGER
from rlctl_agents.wire.keys import Keys
from rlctl_agents.wire.rpc.server import RpcServer

SERVE_S = 0.05

log = logging.getLogger(__name__)


class Answering(Protocol):
    """Whoever answers for the run now. A ValueError is a refusal."""

    def hello(self, hello: Hello) -> Lease: ...

    def report(self, report: Report) -> Orders: ...

    def result(self, result: EvalResult) -> Said: ...

    def commit(self, commit: Commit) -> Said: ...

    def enlist(self, ask: Enlist) -> Place: ...

    def note(self, note: Note) -> Noted: ...

    def sampled(self, sampled: Sampled) -> Said: ...


def main(process: Process) -> None:
    """Manage until the run is finished, or until asked to leave.

    With `--stay` a finished run is answered for until then, also after a restart, unless by other settings it goes on.

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
        wire = open_wire(arguments)
        stack.callback(wire.close)
        answering: list[Answering] = []
        newcomers = Newcomers(time.monotonic)

        def admit(hello: Hello, known: bool) -> None:
            if hello.role == "actor":
                newcomers.admit(hello.boot, server.caller_address, known=known)

        try:
            server = RpcServer(wire, arguments.manager, process.boot, handlers(lambda: answering[-1]), MANAGER)
        except ValueError as fault:
            raise UserFault(f"--manager: {fault}") from fault
        stack.callback(server.close)
        refusals = Refusals(process.metrics, lambda: server.rejected, lambda: refused_connections(wire))
        lines, store = Lines(), LogStore(layout.logs, process.boot) if arguments.logs else None
        if store is not None:
            lines.keep = store.add
            store.start()
            stack.callback(store.close)
        shared = Shared(process, lines, store, refusals)
        process.pages.update(status_page.pages(lambda: shared.shown))
        try:
            control = ControlApi(arguments.control, LogQueries(layout.logs, lines, store, process.boot).answer)
        except ValueError as fault:
            raise UserFault(f"--control: {fault}") from fault
        stack.callback(control.close)
        while True:
            end = finished_run.finished(layout) if arguments.stay else None
            if end is None:
                manage(shared, layout, control, server, answering.append, wire.keys, admit)
            elif not rest(shared, layout, control, server, answering.append, end):
                return
            if process.stop.is_set() or not arguments.stay:
                return


def manage(
    shared: Shared,
    layout: Layout,
    control: ControlApi,
    server: RpcServer,
    answers: Callable[[Answering], None],
    keys: Keys | None,
    admit: Callable[[Hello, bool], None],
) -> None:
    """One life of the manager of a run.

    Args:
        answers: is told who answers from now on.
        keys: of this process.
        admit: as the overseer's.
    """
    process, arguments = shared.process, shared.process.arguments
    assert arguments.addresses is not None
    with ExitStack() as stack:
        make = partial(
            Overseer,
            run=process.run,
            uid=process.uid,
            boot=process.boot,
            settings=shared.settings(),
            layout=layout,
            addresses=Addresses(arguments.addresses, time.monotonic),
            clock=Clock(time.monotonic, time.time),
            admit=admit,
            **({"ticket": partial(keys.ticket, process.uid)} if keys is not None else {}),
        )
        try:
            overseer = patiently(make, stop=process.stop, beat=process.pulse.beat)
        except (Damaged, ValueError) as fault:
            raise UserFault(str(fault)) from fault
        overseer.members.lines = shared.lines
        control.events, control.profiles = overseer.events, overseer.profiles
        draw = partial(CurveWriter, layout.results / "tensorboard", overseer.term)
        curves = patiently(draw, stop=process.stop, beat=process.pulse.beat)
        stack.callback(curves.close)
        desk = Desk(shared, overseer, control, curves)
        answers(overseer)
        process.families = desk.families
        process.pulse.ready = True
        log.info("listening", extra={"kv": {"address": server.address, "term": overseer.term}})
        while not overseer.over:
            serve(server)
            desk.turn()
        desk.end()


def rest(
    shared: Shared,
    layout: Layout,
    control: ControlApi,
    server: RpcServer,
    answers: Callable[[Answering], None],
    end: finished_run.End,
) -> bool:
    """Answer for a finished run; True: it goes on, False: asked to leave."""
    process = shared.process

    def release() -> Release:
        try:
            return Release(workloads(finished_run.workloads_of(process.arguments)), Cluster.found())
        except ValueError as fault:
            raise UserFault(f"--workloads: {fault}") from fault

    finished = finished_run.Finished(
        process, layout, end, shared.lines, settings=shared.settings, reload=shared.reload, release=release
    )
    try:
        answers(finished)
        control.events = finished.events
        shared.shown, control.status = finished.shown, finished.shown.encoded
        process.families, process.pulse.ready = None, True
        log.info("the run is finished: %s", end.met)
        finished.begin()
        while not process.stop.is_set() and not finished.goes_on:
            serve(server)
            shared.turn()
            finished.turn(control)
        return finished.goes_on
    finally:
        finished.close()


def handlers(
    answering: Callable[[], Answering],
) -> Mapping[type[msgspec.Struct], Callable[..., tuple[msgspec.Struct, list[bytes]]]]:
    """What the RPC server answers."""
    answers: dict[type[msgspec.Struct], Callable[[Any], Lease | Noted | Orders | Place | Said]] = {
        Hello: lambda hello: answering().hello(hello),
        Report: lambda report: answering().report(report),
        EvalResult: lambda result: answering().result(result),
        Commit: lambda commit: answering().commit(commit),
        Enlist: lambda ask: answering().enlist(ask),
        Note: lambda note: answering().note(note),
        Sampled: lambda sampled: answering().sampled(sampled),
    }
    return {kind: lambda request, _buffers, answer=answer: (answer(request), []) for kind, answer in answers.items()}


def serve(server: RpcServer) -> None:
    """Answer what has come. A request that makes us fail is the sender's loss: a run must not end by one message."""
    try:
        server.serve(SERVE_S)
    except Exception as error:
        log.exception("a request failed: %s: %s", type(error).__name__, error)
