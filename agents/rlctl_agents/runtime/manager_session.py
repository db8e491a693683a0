"""Session of a process with the manager: hello, lease, reports, orders. Survives a restart of the manager."""

from __future__ import annotations

import logging
import os
import platform
import random
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Generic, NamedTuple, TypeVar

from msgspec import Struct

from rlctl_agents.runtime import logs
from rlctl_agents.runtime.process import IMAGE, NODE, Process
from rlctl_agents.runtime.profiling import Profiler
from rlctl_agents.types.control import (
    MOST_NAMES,
    Account,
    Channels,
    Experience,
    Hello,
    Lease,
    Match,
    Orders,
    Origin,
    Peers,
    Reply,
    Report,
    Sampled,
)
from rlctl_agents.types.experience import Ledger, ModelRef
from rlctl_agents.types.figures import Moments
from rlctl_agents.wire.rpc.client import RemoteError, RpcClient
from rlctl_agents.wire.sockets import Wire

HELLO_S = 5.0
"""Timeout of one hello; it is repeated until there is a reply."""
ASK_AGAIN_S = 0.5
"""Time between two hellos while there is no full lease yet."""
ASK_AGAIN_MOST_S = 5.0
"""Longest backoff while there is no reply: ten thousand processes that ask twice a second leave the manager no time."""
LAST_REPORT_S = 1.0
PROFILE_S = 10.0
"""Timeout of sending a profile."""
LOG_LINES = 400
"""Most log lines that wait for a manager that does not reply; the oldest are dropped."""

T = TypeVar("T", bound=Struct)
V = TypeVar("V")
log = logging.getLogger(__name__)


class Snapshot(NamedTuple):
    """Contents of a report besides the metrics."""

    sent: dict[str, Ledger] = {}
    pending: int = 0
    accounts: dict[str, Account] = {}
    model: ModelRef | None = None
    gauges: dict[str, float] = {}  # that belong to the model; they replace those of the metrics
    figures: list[Moments] = []


def origin(process: Process) -> Origin:
    """Origin of a process: node and image, named by environment variables, and the digest of its run file."""
    return Origin(os.environ.get(NODE) or platform.node(), os.environ.get(IMAGE, ""), process.settings)


class ManagerSession:
    """Session of one process: says hello, then reports from a thread of its own and keeps the newest orders.

    Everything that can change after `join` is an attribute, replaced as a whole: read it from any thread.

    Args:
        process: this process; its `stop` is set when the manager orders it or its index went to another process.
        wire: of this process.
        streams: slots of this process.
    """

    lease: Lease
    """Newest lease; set by `join`."""
    term: int = -1
    """Term of the manager that granted the lease: stamped on experience, models and commits."""
    peers: Peers
    match: Match | None = None
    checkpoint: int = 0
    """Number of the newest generation ordered."""
    wanted: int = 0
    """Number of the generation that is ordered now; 0: none, the newest one is saved."""
    ticket: str = ""
    """Ticket of the lease, shown to learners."""
    leased_since_s: int = 0
    """Unix time: a learner gives credit to boots with a ticket that is not older."""
    stop_steps: int = 0
    """Agent steps that a learner's weights may be learned from, after which it makes no update; 0: no limit."""
    group: int = 0
    """Number of the group of learners that is being formed; 0: none is."""
    moved: str = ""
    """Reason why this process cannot go on under its lease; "" as long as it can."""

    def __init__(self, process: Process, wire: Wire, *, streams: int = 0) -> None:
        self._process = process
        self._wire = wire
        self._client = RpcClient(wire, process.arguments.manager, process.boot)
        self._streams = streams
        self._experience: Experience | None = None
        self._profiler = Profiler(process.role, process.boot, process.stop)
        self.snapshot: Callable[[], Snapshot] = Snapshot
        """Contents of reports besides the metrics; called by the reporting thread."""
        self._closing, self._mute = threading.Event(), False
        self._thread: threading.Thread | None = None
        self._unsaid: list[str] = []
        self._unsaid_from = 0  # number of the first among the lines of this boot
        self._left_out = False  # figures of reports, and it was said
        self._refused = ""  # why the manager refused the last hello
        self._told: dict[str, Account] = {}  # accounts that the manager of `term` has received
        self._report_every_s = 1.0
        self.heard = threading.Event()
        """Set whenever new orders have come; cleared by the thread that waits for it."""
        self.peers = {}

    def join(self, experience: Experience | None = None, *, needs_experience: bool = False) -> Lease | None:
        """Say hello until there is a lease.

        Args:
            experience: description of its environment by this process; None: it has none.
            needs_experience: wait until the manager knows the run's experience from another process's hello.

        Returns:
            The lease, or None when the process was asked to stop meanwhile.
        """
        self._experience = experience
        told, pause_s = False, ASK_AGAIN_S
        while not self._process.stop.is_set():
            lease = self._hello()
            if lease is not None and lease.wait:
                self._waits(lease.wait)
            elif lease is not None and (lease.experience is not None or not needs_experience):
                self._take_lease(lease)
                self._process.known_as(lease.index)
                self._process.pulse.ready = False  # it may have waited
                kv = {"index": lease.index, "term": lease.term, "name": self._process.arguments.name}
                log.info("lease granted", extra={"kv": kv})
                return lease
            elif lease is not None and not told:
                told = True
                log.info("waiting for an actor to say what the environment looks like")
            pause_s = ASK_AGAIN_S if lease is not None else min(1.2 * pause_s, ASK_AGAIN_MOST_S)
            self._process.stop.wait(pause_s * random.uniform(0.8, 1.0))
        return None

    def start(self, snapshot: Callable[[], Snapshot]) -> None:
        """Start to report, every `report_every_s`, from a thread of its own.

        Args:
            snapshot: contents of a report besides the metrics; may be replaced.
        """
        self.snapshot = snapshot
        self._thread = threading.Thread(target=self._run, name="reports", daemon=True)
        self._thread.start()

    def call(
        self, request: Struct, reply: type[T], *, deadline_s: float, keep_waiting: Callable[[], bool] = lambda: True
    ) -> T:
        """Send the manager another request, over a connection of its own. From any thread.

        Raises:
            TimeoutError: no reply in time, or `keep_waiting` has returned False.
            RemoteError: the manager refuses.
        """
        with closing(self.line()) as client:
            return client.call(request, reply, deadline_s=deadline_s, keep_waiting=keep_waiting)[0]

    def agreed_experience(self, deadline_s: float = HELLO_S) -> Experience | None:
        """The experience of the run by now; None where the manager does not reply in time.

        From any thread; it is asked for by another hello, which changes nothing.
        """
        try:
            return self.call(self._make_hello(), Lease, deadline_s=deadline_s).experience
        except (TimeoutError, RemoteError):
            return None

    def line(self) -> RpcClient:
        """Open a connection to the manager for many requests; the caller closes it."""
        return RpcClient(self._wire, self._process.arguments.manager, self._process.boot)

    def peers_of(self, role: str) -> dict[int, Channels]:
        """Index -> channels of the peers of one role, as they are now."""
        return {
            int(name.rpartition("/")[2]): channels
            for name, channels in sorted(self.peers.items())
            if name.rpartition("/")[0] == role
        }

    def assigned(self, role: str) -> Channels | None:
        """Channels of the one peer of a role that this process uses; None: there is none."""
        return next(iter(self.peers_of(role).values()), None)

    def close(self) -> None:
        """Stop reporting, after one last report."""
        self._closing.set()
        self._profiler.close()
        if self._thread is not None:
            self._thread.join(LAST_REPORT_S + 2.0)
            if not self._mute:
                self._report(LAST_REPORT_S, lambda: True)
        self._client.close()

    def _run(self) -> None:
        try:
            while not self._closing.wait(self._report_every_s):
                self._report(max(2.0 * self._report_every_s, 2.0), lambda: not self._closing.is_set())
        except Exception as error:  # without reports it would work on for ever under a lease that it has lost
            self._mute, self.moved = True, f"it cannot report any more: {type(error).__name__}: {error}"
            log.error("%s", self.moved, exc_info=error)
            self._process.stop.set()

    def _report(self, deadline_s: float, keep_waiting: Callable[[], bool]) -> None:
        """Report once and take the orders. A report that is lost loses nothing: the next one holds the totals.

        Accounts that the manager has received are not sent again until they change: a receiver keeps those of all
        senders that there have ever been.
        """
        process, snapshot = self._process, self.snapshot()  # first: it brings gauges of the metrics up to date
        metrics = process.metrics.values()
        logs.hold()
        unsaid = [*self._unsaid, *process.recent.take()]
        self._unsaid = unsaid[-LOG_LINES:]
        self._unsaid_from += len(unsaid) - len(self._unsaid)
        report = Report(
            role=process.role,
            boot=process.boot,
            term=self.term,
            counters=metrics.counters,
            gauges=self._bounded({**metrics.gauges, **snapshot.gauges}),
            histograms=metrics.histograms,
            averages=self._bounded(process.metrics.averages()),
            sent=snapshot.sent,
            pending=snapshot.pending,
            accounts={boot: one for boot, one in snapshot.accounts.items() if self._told.get(boot) != one},
            model=snapshot.model,
            figures=snapshot.figures,
            log=self._unsaid,
            log_from=self._unsaid_from,
        )
        process.reported = report
        try:
            orders, _ = self._client.call(report, Orders, deadline_s=deadline_s, keep_waiting=keep_waiting)
        except TimeoutError:
            return
        except RemoteError as error:
            log.warning("the manager refuses our report: %s", error)
            return
        if orders.known:  # else the manager may not have looked at the lines
            self._unsaid_from += len(self._unsaid)
            self._unsaid = []
        self._told = snapshot.accounts if orders.known and orders.term == report.term else {}
        if not orders.known:
            self._hello_again()
        elif orders.term >= self.term:  # an older one comes from a manager that has been replaced
            self._obey(orders)

    def _bounded(self, values: dict[str, V]) -> dict[str, V]:
        """As many values as a report may hold; those of the process before an algorithm's own, which have a dot."""
        if len(values) <= MOST_NAMES:
            return values
        if not self._left_out:
            self._left_out = True
            log.warning("%d of %d figures are left out of reports", len(values) - MOST_NAMES, len(values))
        return {name: values[name] for name in sorted(values, key=lambda name: "." in name)[:MOST_NAMES]}

    def _take_shared(self, said: Lease | Orders) -> None:
        """Take over the fields that leases and orders share."""
        self.term, self.peers, self.match = said.term, said.peers, said.match
        self.stop_steps = said.stop_steps
        self.ticket, self.leased_since_s = said.ticket, said.leased_since_s
        self._report_every_s = said.report_every_s or self._report_every_s

    def _obey(self, orders: Orders) -> None:
        self._take_shared(orders)
        self.checkpoint = max(self.checkpoint, orders.checkpoint)
        self.wanted = orders.checkpoint
        self.group = orders.group
        if orders.profile is not None:
            self._profiler.obey(orders.profile, self._send_profile)
        if orders.stop:
            log.info("ordered to stop by the manager")
            self._process.dismissed = True
            self._process.stop.set()
        self.heard.set()

    def _send_profile(self, sampled: Sampled) -> None:
        said = self.call(sampled, Reply, deadline_s=PROFILE_S, keep_waiting=lambda: not self._closing.is_set())
        if not said.ok:
            log.warning("the manager does not take the profile: %s", said.why)

    def _make_hello(self) -> Hello:
        process = self._process
        return Hello(
            role=process.role,
            boot=process.boot,
            prefer=process.prefer,
            run=process.uid,
            experience=self._experience,
            streams=self._streams,
            origin=origin(process),
        )

    def _hello(self) -> Lease | None:
        process = self._process
        try:
            return self._client.call(
                self._make_hello(),
                Lease,
                deadline_s=HELLO_S,
                keep_waiting=lambda: not (process.stop.is_set() or self._closing.is_set()),
            )[0]
        except TimeoutError:
            return None
        except RemoteError as error:
            if str(error) != self._refused:
                self._refused = str(error)
                log.warning("the manager refuses us: %s", error)
            return None

    def _waits(self, why: str) -> None:
        """Report ready while the manager makes this process wait: a rolling update reaches the processes it waits for
        only then."""
        self._process.pulse.ready = True
        if why != self._refused:
            self._refused = why
            log.info("waiting: %s", why)

    def _hello_again(self) -> None:
        lease = self._hello()
        if lease is None:
            return
        if lease.wait or lease.index != self.lease.index:
            gone = f"index {self.lease.index} went to another process while the manager did not hear from us"
            self.moved = lease.wait or gone
            log.error("%s", self.moved)
            self._process.stop.set()
            return
        log.info("said hello again", extra={"kv": {"index": lease.index, "term": lease.term}})
        self._take_lease(lease)
        self.heard.set()

    def _take_lease(self, lease: Lease) -> None:
        self.lease = lease
        self._take_shared(lease)


class SnapshotRequest(Generic[V]):
    """Requests a consistent snapshot from the thread that owns the state. One thread asks, the owner answers between
    two steps.

    Args:
        value: returned as long as the owner has not answered.
    """

    def __init__(self, value: V) -> None:
        self._value = value
        self._wanted = False
        self._made = threading.Event()

    def ask(self, timeout_s: float) -> V:
        """Request a snapshot; returns the one before when the owner does not answer within `timeout_s`."""
        self._made.clear()
        self._wanted = True
        self._made.wait(timeout_s)
        return self._value

    def answer(self, make: Callable[[], V]) -> None:
        """Make the snapshot if it was requested; called by the owner, often."""
        if self._wanted:
            self._wanted = False
            self._value = make()
            self._made.set()
