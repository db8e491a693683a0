"""The modelpool: takes weights from learners, serves them to all roles, announces new versions.

Several replicas form a tree: learners bring weights to replica 0, each other one takes them from the one above it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from msgspec import Struct

from rlctl.spec.layout import Layout
from rlctl.spec.units import mebibytes
from rlctl_agents.runtime.manager_session import ManagerSession, Snapshot
from rlctl_agents.runtime.metrics import Metrics
from rlctl_agents.runtime.process import Process, Refusals, UserFault, open_wire, refused_connections, serve
from rlctl_agents.runtime.storage import refusal
from rlctl_agents.types.control import GetModel, GotModel, KeepModel, KeepReply, PutModel, Reply
from rlctl_agents.types.experience import ModelRef
from rlctl_agents.weights import disk_store
from rlctl_agents.weights.client import Model
from rlctl_agents.weights.disk_store import POLICY
from rlctl_agents.weights.memory_store import LiveModels, RefusedModel
from rlctl_agents.weights.relay import Relay
from rlctl_agents.wire.classes import MODELPOOL
from rlctl_agents.wire.notice import NoticePublisher
from rlctl_agents.wire.rpc.bulk import in_pieces, joined
from rlctl_agents.wire.rpc.server import LARGE_BYTES, Handler, RpcServer

SERVE_S = 0.1
NOTICE_AGAIN_S = 1.0
"""Time between two announcements of the newest version: a late subscriber has missed the first notice."""
RELAYED = 0
"""Term of models that come from the pool above, which has compared terms."""
SHARE = 0.5
"""Share of the role's memory for weights; the rest is for messages that are being received and sent."""

log = logging.getLogger(__name__)


def main(process: Process) -> None:
    """Serve until asked to stop.

    Raises:
        UserFault: the command line is not usable.
    """
    if process.arguments.volume is None:
        raise UserFault("command line: a modelpool needs --volume, for the models that are kept")
    layout = Layout(process.arguments.volume)
    layout.make()
    budget_bytes = int(mebibytes(process.spec.roles.modelpool.memory) * 2**20 * SHARE)
    with ExitStack() as stack:
        wire = open_wire(process.arguments)
        stack.callback(wire.close)
        session = ManagerSession(process, wire)
        lease = session.join()
        if lease is None:
            return
        stack.callback(session.close)
        notices = NoticePublisher(wire, lease.bind["notice"])
        stack.callback(notices.close)
        first = lease.index == 0
        pool = ModelServer(
            layout.models, process.boot, budget_bytes=budget_bytes, publish=notices.publish, metrics=process.metrics
        )
        handlers: dict[type[Struct], Handler] = {GetModel: pool.get}
        if first:
            handlers |= {PutModel: pool.put, KeepModel: pool.keep}
        server = RpcServer(wire, lease.bind["rpc"], process.boot, handlers, MODELPOOL, large=pool.large)
        stack.callback(server.close)
        relays = [
            Relay(wire, process.boot, policy, above=lambda: session.peers_of("modelpool"), take=pool.take)
            for policy in ([] if first else process.spec.policy_names)
        ]
        for relay in relays:
            relay.start()
            stack.callback(relay.close)
        refusals = Refusals(process.metrics, lambda: server.rejected, lambda: refused_connections(wire))
        session.start(lambda: Snapshot(model=pool.announced()))
        kv = {"address": server.address, "budget_mib": budget_bytes >> 20, "relays": len(relays)}
        log.info("serving", extra={"kv": kv})
        while not process.stop.is_set():
            if serve(server, SERVE_S):  # one that fails for a minute on end counts as dead
                process.pulse.beat()
            pool.turn()
            for relay in relays:
                relay.require_life()
            refusals.count()
            process.pulse.ready = pool.ready
        if session.moved:
            raise RuntimeError(session.moved)


class ModelServer:
    """Models of a modelpool, live ones and, by lineage and version, kept ones. Requests come from one thread;
    `announced` and `take` are called by others.

    Args:
        folder: of kept models.
        boot: of this process; a client that sees another one knows that live versions are gone.
        budget_bytes: for live versions and, as far as they leave room, the kept one that was read last.
        publish: announces a version.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        folder: Path,
        boot: str,
        *,
        budget_bytes: int,
        publish: Callable[[ModelRef], None],
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._boot, self._folder = boot, folder
        self._live = LiveModels(budget_bytes)
        self._budget_bytes = budget_bytes
        self._kept: Model | None = None
        self._publish = publish
        self._metrics = metrics
        self._clock = clock
        self._lock = threading.Lock()
        self._announced: dict[str, ModelRef] = {}
        self._said = clock()
        for name in ("puts", "pulls", "bytes", "publish_seconds", "pull_seconds"):
            metrics.add(name, 0.0)

    def put(self, request: PutModel, buffers: Sequence[memoryview]) -> tuple[Reply, list[bytes]]:
        """Handle PutModel: serve and announce the weights that a learner brings."""
        started = self._clock()
        try:
            if not buffers or not POLICY.fullmatch(request.ref.policy):
                raise RefusedModel(
                    "malformed", f"{request.ref}: {len(buffers)} buffers instead of its weights, or no policy"
                )
            self._accept(request.ref, request.term, request.sha256, joined(buffers), request.policy)
        except RefusedModel as fault:
            self._refuse(fault)
            return Reply(False, str(fault)), []
        self._metrics.add("publish_seconds", self._clock() - started)
        return Reply(True), []

    def keep(self, request: KeepModel, buffers: Sequence[memoryview]) -> tuple[KeepReply, list[bytes]]:
        """Handle KeepModel: store the weights that an evaluator brings, live ones or not."""
        try:
            model = Model(request.ref, request.sha256, joined(buffers), request.policy)
            return KeepReply(disk_store.keep(self._folder, model)), []
        except (OSError, ValueError) as error:
            self._metrics.add("rejected.disk")
            why = (refusal(error) or error.strerror or str(error)) if isinstance(error, OSError) else str(error)
            log.error("%s is not kept: %s", request.ref, why)
            return KeepReply(why=why), []

    def take(self, model: Model) -> None:
        """Take weights from the pool above this one.

        Raises:
            RefusedModel: as `LiveModels.put`.
        """
        started = self._clock()
        try:
            self._accept(model.ref, RELAYED, model.sha256, model.data)
        except RefusedModel as fault:
            self._refuse(fault)
            raise
        self._metrics.add("publish_seconds", self._clock() - started)

    def get(self, request: GetModel, _buffers: Sequence[memoryview]) -> tuple[GotModel, list[memoryview]]:
        """Handle GetModel."""
        started = self._clock()
        model = self._find(request)
        if model is None:
            return GotModel("missing", self._boot), []
        if _has(request, model):
            return GotModel("not_modified", self._boot, model.ref, model.sha256), []
        self._metrics.add("pulls")
        self._metrics.add("bytes", len(model.data))
        self._metrics.add("pull_seconds", self._clock() - started)
        policy = model.policy if request.lineage else b""
        return GotModel("new", self._boot, model.ref, model.sha256, policy), in_pieces(model.data)

    def large(self, request: Struct) -> bool:
        """True if the reply to this request would be large; no weights are read to find out."""
        if not isinstance(request, GetModel):
            return False
        if (model := self._in_memory(request)) is not None:
            return len(model.data) > LARGE_BYTES and not _has(request, model)
        asked = _kept_of(request)
        return asked is not None and disk_store.size(self._folder, asked) > LARGE_BYTES

    def turn(self) -> None:
        """Announce the newest versions again if that is due; called between requests."""
        now = self._clock()
        if now - self._said >= NOTICE_AGAIN_S:
            self._said = now
            with self._lock:
                for ref in self._announced.values():
                    self._publish(ref)

    def announced(self) -> ModelRef | None:
        """The newest version, for a report: the manager may order exactly this one, so it stays for a while."""
        with self._lock:
            newest = max(self._announced.values(), key=lambda ref: (ref.lineage, ref.version), default=None)
            if newest is not None:
                self._live.pin(newest)
            return newest

    @property
    def ready(self) -> bool:
        """True once a version can be served: one was brought since this process began."""
        with self._lock:
            return bool(self._announced)

    def _accept(self, ref: ModelRef, term: int, sha256: str, data: bytes | memoryview, policy: bytes = b"") -> None:
        """Serve and announce weights.

        Raises:
            RefusedModel: as `LiveModels.put`.
        """
        self._live.put(ref, term, sha256, data, policy)
        if (kept := self._kept) is not None and not self._has_room_for(kept):
            self._kept = None
        with self._lock:  # a socket belongs to one thread at a time
            self._announced[ref.policy] = ref
            self._publish(ref)
        self._metrics.add("puts")
        self._metrics.set("version", ref.version)
        self._metrics.set("live_bytes", self._live.bytes)

    def _refuse(self, fault: RefusedModel) -> None:
        self._metrics.add(f"rejected.{fault.reason}")
        log.warning("model refused: %s", fault)

    def _find(self, request: GetModel) -> Model | None:
        found, asked = self._in_memory(request), _kept_of(request)
        if found is None and asked is not None:
            self._kept = None  # not both at once
            found = disk_store.read(self._folder, asked)
            if found is not None and self._has_room_for(found):
                self._kept = found
        return found

    def _in_memory(self, request: GetModel) -> Model | None:
        """Live weights, or the kept ones that were read last."""
        newest = self._live.newest(request.policy)
        if request.version is None:
            return newest
        if newest is not None and request.lineage in (0, newest.ref.lineage):
            live = self._live.exactly(request.policy, request.version)
            if live is not None:
                return live
        kept = self._kept
        return kept if kept is not None and kept.ref == _kept_of(request) else None

    def _has_room_for(self, kept: Model) -> bool:
        return self._live.bytes + len(kept.data) <= self._budget_bytes


def _has(request: GetModel, model: Model) -> bool:
    """True if the caller has this model, or a newer one."""
    return request.version is None and request.have is not None and model.ref <= request.have


def _kept_of(request: GetModel) -> ModelRef | None:
    """Reference of the kept model that a request may mean when no live one fits; None: it can mean none."""
    if not request.lineage or request.version is None:
        return None
    return ModelRef(request.policy, request.lineage, request.version)
