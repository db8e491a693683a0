"""A manager and a modelpool over the real wire, as far as members need them; answers can be changed while they run."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from rlctl.spec.schema import Spec
from rlctl_agents.runtime import logs
from rlctl_agents.runtime.process import Arguments, Process, new_boot
from rlctl_agents.types.control import (
    Account,
    Commit,
    EvalResult,
    Experience,
    Generation,
    GetModel,
    GotModel,
    Hello,
    Lease,
    Match,
    Orders,
    Peers,
    PutModel,
    Recorded,
    Reply,
    Report,
    Sampled,
    Sampling,
)
from rlctl_agents.types.experience import ModelRef
from rlctl_agents.wire.notice import NoticePublisher
from rlctl_agents.wire.rpc.server import RpcServer
from rlctl_agents.wire.sockets import Wire

Buffers = Sequence[memoryview]
Handlers = dict[type[Struct], Callable[[Any, Buffers], Any]]
RUN = "0" * 32


class Served:
    """An RPC server with a thread of its own."""

    def __init__(self, address: str, boot: str, handlers: Handlers) -> None:
        self.wire = Wire()
        self._server = RpcServer(self.wire, address, boot, handlers)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin to answer: everything that the handlers use is there."""
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._server.serve(0.02)
        self._server.close()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(60.0)
        self.wire.close()


class Manager:
    """Grants what it is told to grant, and remembers what it heard."""

    def __init__(self, folder: Path, *, term: int = 1, boot: str = "manager1") -> None:
        self.folder = folder
        self.term = term
        self.boot = boot
        self.known = True
        self.stop = False
        self.checkpoint = 0
        self.stop_steps = 0
        self.index: int | None = 0  # None: as the name of the process asks
        self.matches: dict[str, Match | None] = {}
        self.experience: Experience | None = None
        self.generations: tuple[Generation, ...] = ()
        self.next_lineage = 1
        self.wait = ""  # why no lease is granted yet
        self.hellos: list[Hello] = []
        self.reports: list[Report] = []
        self._accounts: dict[str, dict[str, Account]] = {}  # boot of a receiver -> all that it has told
        self.commits: list[Commit] = []
        self.again = 0  # so many times a learner that commits is told to ask again
        self.asked = 0  # to commit
        self.results: list[EvalResult] = []
        self.episodes: list[Recorded] = []
        self.profile: Sampling | None = None
        self.profiles: list[Sampled] = []
        self._served: Served | None = None

    @property
    def address(self) -> str:
        return f"ipc://{self.folder}/manager"

    def peers(self) -> Peers:
        return {
            "learner/0": {"experience": f"ipc://{self.folder}/learner"},
            "modelpool/0": {"rpc": f"ipc://{self.folder}/pool", "notice": f"ipc://{self.folder}/notice"},
        }

    def __enter__(self) -> Manager:
        handlers: Handlers = {
            Hello: self._hello, Report: self._report, Commit: self._commit, EvalResult: self._result,
            Recorded: self._recorded, Sampled: self._sampled,
        }  # fmt: skip
        self._served = Served(self.address, self.boot, handlers)
        self._served.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._served is not None
        self._served.close()

    def newest(self, role: str) -> Report | None:
        """The newest report of a role, with accounts that earlier ones brought."""
        found = next((report for report in reversed(self.reports) if report.role == role), None)
        return found and replace(found, accounts=dict(self._accounts[found.boot]))

    def _hello(self, hello: Hello, _: Buffers) -> tuple[Lease, Buffers]:
        self.hellos.append(hello)
        self.known = True
        self.experience = hello.experience or self.experience
        lease = Lease(
            index=(hello.prefer or 0) if self.index is None else self.index,
            term=self.term,
            report_every_s=0.05,
            bind=self.peers().get(f"{hello.role}/0", {}),
            peers=self.peers(),
            experience=self.experience,
            match=self.matches.get(hello.role),
            generations=self.generations,
            next_lineage=self.next_lineage,
            stop_steps=self.stop_steps,
            wait=self.wait,
        )
        return lease, ()

    def _report(self, report: Report, _: Buffers) -> tuple[Orders, Buffers]:
        self._accounts.setdefault(report.boot, {}).update(report.accounts)
        self.reports.append(report)
        orders = Orders(
            term=self.term,
            known=self.known,
            peers=self.peers(),
            match=self.matches.get(report.role),
            checkpoint=self.checkpoint,
            stop=self.stop,
            stop_steps=self.stop_steps,
            profile=self.profile,
        )
        return orders, ()

    def _commit(self, commit: Commit, _: Buffers) -> tuple[Reply, Buffers]:
        self.asked, self.again = self.asked + 1, self.again - 1
        if self.again >= 0:
            return Reply(False, "it waits for the parts of others", again=True), ()
        self.commits.append(commit)
        self.generations = (commit.generation, *self.generations)
        return Reply(ok=True), ()

    def _sampled(self, sampled: Sampled, _: Buffers) -> tuple[Reply, Buffers]:
        self.profiles.append(sampled)
        return Reply(ok=True), ()

    def _recorded(self, recorded: Recorded, _: Buffers) -> tuple[Reply, Buffers]:
        self.episodes.append(recorded)
        return Reply(True, f"{recorded.kind}/0@{len(self.episodes)}"), ()

    def _result(self, result: EvalResult, _: Buffers) -> tuple[Reply, Buffers]:
        self.results.append(result)
        return Reply(ok=True), ()


class Pool:
    """Holds every version of the newest lineage, and gives notice."""

    def __init__(self, folder: Path, boot: str = "pool1") -> None:
        self.folder = folder
        self.boot = boot
        self.models: dict[ModelRef, tuple[str, bytes]] = {}
        self.puts: list[PutModel] = []
        self.newest: ModelRef | None = None
        self._served: Served | None = None

    def __enter__(self) -> Pool:
        handlers: Handlers = {PutModel: self._put, GetModel: self._get}
        self._served = Served(f"ipc://{self.folder}/pool", self.boot, handlers)
        self._notices = NoticePublisher(self._served.wire, f"ipc://{self.folder}/notice")
        self._served.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._served is not None
        self._served.close()  # its thread first, then every socket, that of the notices too

    def _put(self, put: PutModel, buffers: Buffers) -> tuple[Reply, Buffers]:
        self.puts.append(put)
        self.models[put.ref] = (put.sha256, b"".join(buffers))
        self.newest = put.ref
        self._notices.publish(put.ref)
        return Reply(ok=True), ()

    def _get(self, get: GetModel, _: Buffers) -> tuple[GotModel, Sequence[bytes]]:
        ref = self.newest
        if ref is not None and get.version is not None:
            ref = replace(ref, version=get.version)
        if ref is None or ref not in self.models:
            return GotModel("missing", self.boot), ()
        if ref == get.have:
            return GotModel("not_modified", self.boot, ref), ()
        sha256, data = self.models[ref]
        return GotModel("new", self.boot, ref, sha256), (data,)


def process_of(role: str, manager: Manager, spec: Spec, *, name: str = "", volume: Path | None = None) -> Process:
    """A process without signals, probe or a log of its own."""
    arguments = Arguments(
        role=role,
        name=name or f"{role}-0",
        run_file=Path("/dev/null"),
        manager=manager.address,
        probe="",
        volume=volume,
        live=Path("/dev/null"),
    )
    boot = new_boot()
    identity = logs.Identity(spec.run, role, f"{role}/?", boot)
    return Process(arguments, spec.run, RUN, spec, boot, identity, logs.RecentLines())


@contextmanager
def running(main: Callable[[Process], None], process: Process) -> Iterator[list[BaseException]]:
    """A role in a thread, stopped at the end of the block; what it raised is in the list afterwards."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            main(process)
        except BaseException as error:
            logging.getLogger(__name__).exception("%s ended", process.role)
            raised.append(error)

    thread = threading.Thread(target=run, name=process.role, daemon=True)
    thread.start()
    try:
        yield raised
    finally:
        process.stop.set()
        thread.join(60.0)
        assert not thread.is_alive(), f"{process.role} does not end"


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s} s for {what}"
        time.sleep(0.01)
