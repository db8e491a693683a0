"""Frame of every role process: command line, run file, signals, logs, metrics, exit code."""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
import re
import resource
import secrets
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
from prometheus_client import Metric
from pydantic import ValidationError

from rlctl.errors import SpecError
from rlctl.spec.base import ROLES
from rlctl.spec.layout import RUN_FILE_FORMAT
from rlctl.spec.schema import Spec
from rlctl_agents.runtime import logs
from rlctl_agents.runtime.gauges import ENDLESS as ENDLESS
from rlctl_agents.runtime.gauges import GROUP as GROUP
from rlctl_agents.runtime.gauges import MEMORY, STOPPING
from rlctl_agents.runtime.gauges import RANK as RANK
from rlctl_agents.runtime.gauges import RESUMING as RESUMING
from rlctl_agents.runtime.gauges import SEEDED as SEEDED
from rlctl_agents.runtime.gauges import STARVED as STARVED
from rlctl_agents.runtime.gauges import UNREADABLE as UNREADABLE
from rlctl_agents.runtime.gauges import WORLD as WORLD
from rlctl_agents.runtime.health import ProbeListener, Pulse
from rlctl_agents.runtime.http_server import HttpListener, Response
from rlctl_agents.runtime.logs import users_traceback
from rlctl_agents.runtime.metrics import Metrics, exposition, families_of
from rlctl_agents.types.control import Orders, Report
from rlctl_agents.wire.rpc.client import RpcClient
from rlctl_agents.wire.rpc.server import RpcServer
from rlctl_agents.wire.sockets import Wire

STOP_S = 10.0
"""Longest time from the first signal to the end of the process, which is forced then; unless `--grace` gives more."""
LINGER_S = 20.0
"""Time that a process which the manager has dismissed waits to be ended: a pod is started again when its process ends
by itself, and the pods of a finished run are given back a few seconds after every process was told."""
DONE, FAILED, USERS_FAULT = 0, 1, 3
"""Exit codes; 3: a mistake of the user, which a restart cannot mend."""
PROCESS_NAME = "RLCTL_PROCESS"
"""Environment variable with the name of this process, for the user's own code: `actor-3`, or the name of its pod."""

log = logging.getLogger(__name__)


class RunFile(msgspec.Struct, frozen=True):
    """Run file: the part of the spec that a role reads."""

    format: int
    run: str
    uid: str
    role: str
    spec: dict[str, Any]

    @classmethod
    def read(cls, path: Path, role: str) -> RunFile:
        """Read and check a run file.

        Raises:
            UserFault: missing, damaged, of another release's format, or another role's.
        """
        try:
            read = msgspec.json.decode(path.read_bytes(), type=cls)
        except OSError as error:
            raise UserFault(f"run file {path}: {error.strerror}") from error
        except msgspec.MsgspecError as error:
            raise UserFault(f"run file {path}: {error}") from error
        if read.format != RUN_FILE_FORMAT:
            raise UserFault(f"run file {path}: format {read.format}, this release of the roles reads {RUN_FILE_FORMAT}")
        if read.role != role:
            raise UserFault(f"run file {path}: written for {read.role}, not for {role}")
        return read


def parse_spec(values: dict[str, Any], source: Path) -> Spec:
    """The spec of a run file.

    Raises:
        UserFault: not valid, with every fault.
    """
    try:
        return Spec.model_validate(values)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise UserFault(f"{source}: {faults}") from error


@dataclass
class Process:
    """State of this process: identity, stop flag, metrics. Made by `run_role`.

    `stop` is set by SIGTERM, SIGINT, or the role itself; ten seconds after a signal the process ends in any case.
    """

    arguments: Arguments
    run: str
    uid: str
    spec: Spec
    boot: str  # 16 hex digits, new with every start
    identity: logs.Identity
    recent: logs.RecentLines
    settings: str = ""  # digest of its run file
    metrics: Metrics = field(default_factory=Metrics)
    pulse: Pulse = field(default_factory=Pulse)
    stop: threading.Event = field(default_factory=threading.Event)
    explained: tuple[type[Exception], ...] = ()  # errors logged by their text, without rlctl's own frames
    families: Callable[[], Iterable[Metric]] | None = None  # of /metrics; None: this process's own metrics
    pages: dict[str, Callable[[str], Response]] = field(default_factory=dict)  # further pages of its probe listener
    reported: Report | None = None  # the last report to the manager
    dismissed: bool = False  # the manager has ordered it to stop

    def __post_init__(self) -> None:
        self.metrics.sample(STOPPING, lambda: float(self.stop.is_set()))
        self.metrics.sample(MEMORY, resident_bytes)

    @property
    def role(self) -> str:
        return self.arguments.role

    @property
    def prefer(self) -> int | None:
        return self.arguments.prefer

    def known_as(self, index: int) -> None:
        """Set the index from the lease; log lines carry it from now on."""
        self.identity.id = f"{self.role}/{index}"

    def metrics_page(self) -> bytes:
        """The page /metrics."""
        if self.families is not None:
            return exposition(self.families())
        labels = {"run": self.run, "role": self.role}
        return exposition(families_of(self.role, self.metrics.values(), labels))


def resident_bytes() -> float:
    """Resident memory of this process; 0 where the system does not say."""
    try:
        return float(int(Path("/proc/self/statm").read_bytes().split()[1]) * resource.getpagesize())
    except OSError:
        return 0.0


def new_boot() -> str:
    """Random id of one start of a process, 16 hex digits."""
    return secrets.token_hex(8)


def start(arguments: Arguments, boot: str) -> Process:
    """Read the run file and begin to log.

    Raises:
        UserFault: the run file is not usable.
    """
    run_file = RunFile.read(arguments.run_file, arguments.role)
    index = "?" if arguments.prefer is None else arguments.prefer
    identity = logs.Identity(run_file.run, arguments.role, f"{arguments.role}/{index}", boot)
    recent = logs.set_up(identity)
    spec = parse_spec(run_file.spec, arguments.run_file)
    settings = hashlib.sha256(msgspec.json.encode(run_file, order="sorted")).hexdigest()[:16]
    return Process(arguments, run_file.run, run_file.uid, spec, boot, identity, recent, settings)


def run_role(arguments: Sequence[str], main: Callable[[Process], None], linger_s: float = LINGER_S) -> int:
    """Run a role process from start to exit.

    Args:
        arguments: command line without the program's name.
        main: the role; returns when it is done or `process.stop` is set.
        linger_s: seconds that it then waits to be ended, on a cluster, when the manager ordered the stop.

    Returns:
        The exit code: 0 done in good order, 3 a mistake of the user, 1 anything else.
    """
    boot = new_boot()
    try:
        parsed = parse(arguments)
        process = start(parsed, boot)
    except UserFault as fault:
        logs.set_up(logs.Identity("", arguments[0] if arguments else "", "", boot))
        log.error("%s", fault)
        return USERS_FAULT
    try:
        os.environ[PROCESS_NAME] = parsed.name
        allow_many_files()
        with Signals(process.stop, parsed.grace) as signals, _probed(process):
            log.info("started", extra={"kv": {"pid": os.getpid(), "name": parsed.name}})
            main(process)
            log.info("ended in good order")
            if process.dismissed and parsed.off_host:
                signals.asked.wait(linger_s)
        return DONE
    except (UserFault, SpecError) as fault:
        logs.hold()
        log.error("%s", fault)
        _say_why(process)
        return USERS_FAULT
    except Exception as error:
        logs.hold()
        if isinstance(error, process.explained):
            log.error("%s: %s", type(error).__name__, error, extra={"exc": users_traceback(error)})
        else:
            log.exception("%s: %s", type(error).__name__, error)
        _say_why(process)
        return FAILED
    finally:
        logging.shutdown()


def _say_why(process: Process) -> None:
    """Send the manager the last log lines: off this machine it alone keeps those of processes that are gone."""
    arguments, report = process.arguments, process.reported
    if not arguments.off_host or report is None:
        return
    lines = [*report.log, *process.recent.take()]  # the manager skips those that it has
    last = msgspec.structs.replace(report, gauges={**report.gauges, STOPPING: 1.0}, log=lines)
    try:
        last_words(arguments, process.boot, last)
    except Exception as error:
        log.warning("the manager did not hear why: %s", error)


@contextmanager
def _probed(process: Process) -> Iterator[None]:
    """Probe listener of a process for the time of the block; should its address fail, the process goes on without."""
    address, listener = process.arguments.probe, None
    try:
        listener = ProbeListener(address, process.pulse, process.metrics_page, pages=process.pages)
    except OSError as error:
        log.warning("no probe listener at %s: %s", address, error)
    except ValueError as error:
        raise UserFault(f"--probe: {error}") from error
    try:
        yield
    finally:
        if listener is not None:
            listener.close()


class Signals:
    """Sets an event at SIGTERM or SIGINT, whatever the main thread does, and ends the process after a grace period.

    Python runs a handler between two bytecodes of the main thread, where an `Event` that this thread is just waiting
    for cannot be set without a risk of deadlock, and not at all during a long call into C. So the interpreter writes to
    a pipe, and a thread reads it.

    Args:
        stop: set at the first signal.
        grace_s: seconds from the first signal to the forced end.
        end: ends the process at once.

    Attributes:
        asked: set at the first signal, before `stop`.
    """

    def __init__(self, stop: threading.Event, grace_s: float = STOP_S, end: Callable[[int], None] = os._exit) -> None:
        self._stop = stop
        self._grace_s = grace_s
        self._end = end
        self._done = threading.Event()
        self.asked = threading.Event()

    entered = False
    """Signals are taken by this process."""

    def __enter__(self) -> Self:
        type(self).entered = True
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._fd_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._before = {one: signal.signal(one, _nothing) for one in _TAKEN}
        self._thread = threading.Thread(target=self._watch, name="signals", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: object, value: object, traceback: TracebackType | None) -> None:
        self._done.set()
        type(self).entered = False
        signal.set_wakeup_fd(self._fd_before)
        for one, handler in self._before.items():
            signal.signal(one, handler)
        with suppress(OSError):
            os.write(self._write, b"\0")
        self._thread.join(1.0)
        os.close(self._read)
        os.close(self._write)

    def _watch(self) -> None:
        while not self._done.is_set():
            received = os.read(self._read, 1)
            if self._done.is_set():
                return
            if received[0] in _TAKEN:
                break
        log.info("asked to stop by %s", signal.Signals(received[0]).name)
        self.asked.set()
        self._stop.set()
        if not self._done.wait(self._grace_s):
            log.error("did not stop within %g s: ended", self._grace_s)
            logging.shutdown()
            self._end(FAILED)


def _nothing(number: int, frame: object) -> None:
    """Do nothing: the pipe has the signal already."""


_TAKEN = (signal.SIGTERM, signal.SIGINT)


def _before_fork() -> None:
    if Signals.entered:
        signal.pthread_sigmask(signal.SIG_BLOCK, _TAKEN)


def _after_fork() -> None:
    if Signals.entered:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _TAKEN)


def _in_fork() -> None:
    """Give a forked process, as an environment makes them, its own signals: the pipe is its parent's, too."""
    if Signals.entered:
        signal.set_wakeup_fd(-1)
        for one in _TAKEN:
            signal.signal(one, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _TAKEN)


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_fork)


ENOUGH = 65_536
"""Wanted limit of open files: one for each process that is connected."""


def allow_many_files(enough: int = ENOUGH) -> int:
    """Raise the soft limit of open files towards the hard one; returns the new soft limit.

    Container runtimes start processes with 1024, which a thousand actors use up.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return enough
    wanted = enough if hard == resource.RLIM_INFINITY else min(enough, hard)
    if soft >= wanted:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        log.warning("the limit of open files stays at %d: %s", soft, error)
        return soft
    return wanted


def open_wire(arguments: Arguments) -> Wire:
    """Open the wire of this process; without keys it does not leave the machine.

    Raises:
        UserFault: the keys cannot be read, or `--bind` is no address.
    """
    with as_users_fault(ValueError, said="--keys, --bind: "):
        return Wire.of(arguments.keys, arguments.bind)


def serve(server: RpcServer, wait_s: float) -> bool:
    """Answer requests that have come, or come soon; False if one made its handler fail. It is lost to its sender, and
    what the server holds stays.
    """
    try:
        server.serve(wait_s)
    except Exception as error:
        log.exception("a request failed: %s: %s", type(error).__name__, error)
        return False
    return True


def refused_connections(wire: Wire) -> dict[str, int]:
    """Connections to this process that failed, by reason."""
    return {f"connection_{reason}": count for reason, count in wire.refused.items()}


class Refusals:
    """Copies counts by reason, which the sources keep, into the counters `rejected.REASON`.

    Args:
        sources: each gives totals since the start.
    """

    def __init__(self, metrics: Metrics, *sources: Callable[[], Mapping[str, int]]) -> None:
        self._metrics, self._sources = metrics, sources
        self._counted: dict[str, int] = {}

    def count(self) -> None:
        """Add what is new since the last call."""
        now: dict[str, int] = {}
        for source in self._sources:
            for reason, total in source().items():
                now[reason] = now.get(reason, 0) + total
        for reason, total in now.items():
            if new := total - self._counted.get(reason, 0):
                self._metrics.add(f"rejected.{reason}", new)
        self._counted = now


NODE, IMAGE = "RLCTL_NODE", "RLCTL_IMAGE"
"""Environment variables that say where a process of a cluster runs."""


class UserFault(Exception):
    """A mistake that only the user can mend: one clear sentence, no traceback, exit code 3."""


@contextmanager
def as_users_fault(*kinds: type[Exception], said: str = "") -> Iterator[None]:
    """Turn exceptions of these kinds into a UserFault of the same text, with `said` before it."""
    try:
        yield
    except kinds as error:
        raise UserFault(f"{said}{error}") from error


@dataclass(frozen=True, slots=True)
class Arguments:
    """Command line of a role process, given by a backend."""

    role: str
    name: str  # "actor-3"; on a cluster the name of the pod
    run_file: Path
    manager: str
    probe: str  # "unix:PATH" or "tcp:ADDRESS:PORT"
    volume: Path | None = None
    addresses: str | None = None  # "ipc:///folder/{role}-{index}.{channel}", "tcp://r-{role}-{index}.r-{role}:{port}"
    control: str | None = None  # "unix:PATH" or "tcp:127.0.0.1:PORT"
    live: Path | None = None
    bind: str = ""  # the own address on the network, listened on whatever host the leased address names
    keys: Path | None = None
    ordinal: str | None = None  # "run-learner-2": a name that ends in the wanted index
    grace: float = STOP_S  # seconds
    stay: bool = False
    logs: bool = False

    @property
    def off_host(self) -> bool:
        """Processes of this run may be on other machines."""
        return self.manager.startswith("tcp://")

    @property
    def prefer(self) -> int | None:
        """The index asked for: 3 for the ordinal `run-actor-3`, and on one machine for the name `actor-3`.

        Off this machine a name says nothing: the suffix of a Deployment's pod is random and may be all digits.
        """
        named = self.ordinal if self.ordinal is not None else "" if self.off_host else self.name
        match = re.fullmatch(r"(?:.*-)?([0-9]{1,9})", named)
        return int(match[1]) if match else None


def parse(arguments: Sequence[str]) -> Arguments:
    """Read the command line, without the program's name.

    Raises:
        UserFault: it is not valid.
    """
    parser = _Parser("rlctl_agents", description="One role process of a run; started by a backend.")
    parser.add_argument("role", choices=ROLES)
    parser.add_argument("--name", required=True)
    parser.add_argument("--run-file", type=Path, required=True)
    parser.add_argument("--manager", required=True, metavar="ADDRESS")
    parser.add_argument("--probe", required=True, metavar="unix:PATH|tcp:ADDRESS:PORT")
    parser.add_argument("--volume", type=Path, metavar="RUNROOT")
    parser.add_argument("--addresses", metavar="PATTERN")
    parser.add_argument("--control", metavar="unix:PATH|tcp:127.0.0.1:PORT")
    parser.add_argument("--live", type=Path, metavar="FILE")
    parser.add_argument("--bind", default="", metavar="ADDRESS", help="listen here, on the port of the leased address")
    parser.add_argument(
        "--keys", type=Path, metavar="FOLDER", help="of CURVE keys; without, nothing leaves the machine"
    )
    parser.add_argument("--ordinal", metavar="NAME-NUMBER", help="of a pod whose number is the index")
    parser.add_argument("--grace", type=float, default=STOP_S, metavar="SECONDS", help="from a signal to a forced end")
    parser.add_argument("--stay", action="store_true", help="manager: answer as finished until SIGTERM")
    parser.add_argument("--logs", action="store_true", help="manager: keep what all processes say on the volume")
    return Arguments(**vars(parser.parse_args(list(arguments))))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise UserFault(f"command line: {message}")


LAST_WORDS_S = 1.0


def last_words(arguments: Arguments, boot: str, report: Report) -> None:
    """Report once more, over a connection of its own: the process's own is closed by then.

    Raises:
        TimeoutError: the manager does not answer.
        RemoteError: it refuses.
    """
    with closing(open_wire(arguments)) as wire, closing(RpcClient(wire, arguments.manager, boot)) as client:
        client.call(report, Orders, deadline_s=LAST_WORDS_S)


def serve_until_told(what: object, where: str, listen: Callable[[], HttpListener | ProbeListener]) -> int:
    """Serve until SIGTERM; returns the exit code.

    Args:
        what, where: for log lines.
        listen: begins to listen.
    """
    with Signals(stop := threading.Event()):
        try:
            listener = listen()
        except (OSError, OverflowError) as error:
            log.error("cannot listen %s: %s", where, error)
            return FAILED
        log.info("serving %s at %s", what, listener.address)
        stop.wait()
        listener.close()
        log.info("ended in good order")
    return DONE
