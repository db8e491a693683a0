"""The `supervisor` package: its start for a run, and XML-RPC over its socket."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
import xmlrpc.client
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlctl.backends.base import Say
from rlctl.backends.local.names import in_order
from rlctl.backends.local.process.daemon import NAME, Daemon
from rlctl.backends.local.process.unix_http import UnixConnection
from rlctl.backends.local.state import lock
from rlctl.backends.local.state.places import LINK, Place
from rlctl.errors import BackendUnreachable
from rlctl.waiting import Waiting, quiet

BAD_NAME, ALREADY_STARTED, STILL_RUNNING = 10, 60, 91  # faults of its XML-RPC
NOT_TRIED = (20, 21)
"""Faults of a start whose program is not there or cannot be executed: the state of the process does not change."""

ANSWER_TIMEOUT_S = 60.0
"""Timeout of a reply in seconds: it takes milliseconds, but not while a hundred new children take all cores."""
_START_TIMEOUT_S = 60.0
WANTED_FILES = 4096
"""Limit of open files, as in the template: 3 for every child, which inherits the limit."""


@dataclass(frozen=True, slots=True)
class Child:
    """One process as the supervisor reports it."""

    name: str  # "actor-3", "watch"
    state: str  # STOPPED STARTING RUNNING BACKOFF STOPPING EXITED FATAL UNKNOWN
    pid: int  # 0: none
    start: int  # unix time; 0: never
    stop: int
    now: int
    exit_status: int  # -1: killed by a signal
    error: str  # why it could not be started

    @property
    def live(self) -> bool:
        return self.state in ("STARTING", "RUNNING", "STOPPING", "BACKOFF")


class _Transport(xmlrpc.client.Transport):
    def __init__(self, path: Path, timeout_s: float, who: object, say: Say) -> None:
        super().__init__()
        self._path = path
        self._timeout_s = timeout_s
        self._who = who
        self._say = say

    def make_connection(self, host: Any) -> UnixConnection:
        connection = UnixConnection(self._path, self._timeout_s, self._who, self._say)
        self._connection = (host, connection)  # where close() looks for it
        return connection


class Supervisor:
    """XML-RPC client of one supervisord.

    Args:
        socket_path: where it listens.
        timeout_s: timeout of every reply.
        daemon: the process, for messages; None when its own event listener is the client.
        say: called every ten seconds of a wait for it.

    Raises, from every method:
        BackendUnreachable: it does not listen, does not answer within `timeout_s`, breaks off, or refuses.
    """

    def __init__(
        self,
        socket_path: Path,
        timeout_s: float = ANSWER_TIMEOUT_S,
        *,
        daemon: Daemon | None = None,
        say: Say = quiet,
    ) -> None:
        self.say = say
        self._path = socket_path
        self._timeout_s = timeout_s
        self._daemon = daemon
        self._transport = _Transport(socket_path, timeout_s, daemon or NAME, say)
        self._proxy = xmlrpc.client.ServerProxy("http://localhost", transport=self._transport, allow_none=True)

    @classmethod
    def of(cls, place: Place, timeout_s: float = ANSWER_TIMEOUT_S, say: Say = quiet) -> Supervisor:
        """Client of the supervisor of a run."""
        return cls(place.supervisor_socket, timeout_s, daemon=Daemon(place), say=say)

    def call(self, method: str, *arguments: Any) -> Any:
        try:
            return getattr(self._proxy, method)(*arguments)
        except xmlrpc.client.Fault as error:  # it is shutting down, or cannot read its configuration
            raise BackendUnreachable(f"the supervisor refuses {method}: {error.faultString}") from error
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise self._fault(f"does not listen on {self._path}") from error
        except TimeoutError as error:
            raise self._fault(f"does not answer within {self._timeout_s:g} s") from error
        except Exception as error:  # connection lost in mid-answer: http.client, expat and xmlrpc each have their own
            raise self._fault(f"broke off: {error!r}") from error
        finally:
            self._transport.close()

    def batch(self, method: str, calls: Sequence[tuple[Any, ...]]) -> list[xmlrpc.client.Fault | None]:
        """Call a method with many arguments in one request; returns the fault of each call, or None."""
        if not calls:
            return []
        wanted = [{"methodName": f"supervisor.{method}", "params": list(arguments)} for arguments in calls]
        answers = self.call("system.multicall", wanted)
        return [
            xmlrpc.client.Fault(answer["faultCode"], answer["faultString"]) if isinstance(answer, dict) else None
            for answer in answers
        ]

    def children(self) -> dict[str, Child]:
        """All its processes, role processes in role and index order."""
        found = [
            Child(
                name=info["name"],
                state=info["statename"],
                pid=info["pid"],
                start=info["start"],
                stop=info["stop"],
                now=info["now"],
                exit_status=info["exitstatus"],
                error=info["spawnerr"],
            )
            for info in self.call("supervisor.getAllProcessInfo")
        ]
        return {child.name: child for child in sorted(found, key=lambda child: in_order(child.name))}

    def reread(self) -> tuple[list[str], list[str], list[str]]:
        """Reload the configuration; returns the names added, changed and removed. Changes no process."""
        ((added, changed, removed),) = self.call("supervisor.reloadConfig")
        return added, changed, removed

    def pid(self) -> int:
        return int(self.call("supervisor.getPID"))

    def await_listening(self) -> None:
        """Wait until it answers.

        Raises:
            BackendUnreachable: it does not within the timeout.
        """
        patience = Waiting(ANSWER_TIMEOUT_S, self.say)
        while True:
            try:
                self.pid()
                return
            except BackendUnreachable:
                if not patience.left_s(self._daemon or NAME):
                    raise
                time.sleep(0.1)

    def shutdown(self) -> None:
        self.call("supervisor.shutdown")

    def _fault(self, how: str) -> BackendUnreachable:
        return BackendUnreachable(f"{NAME} {how}") if self._daemon is None else self._daemon.fault(how)


def linked(place: Place) -> Path:
    """Link below which the supervisor reads its configuration; created if missing.

    Include patterns are relative to the configuration's folder and split at spaces, so no path of the user's may be in
    it. Cleaners of /tmp leave the sockets of a live run, and remove this link.
    """
    link = place.sockets / LINK
    if not link.is_symlink():
        link.symlink_to(place.layout.run)
    return link


def start(place: Place, say: Say = quiet) -> None:
    """Start the supervisor of a run from its written documents; returns when it listens.

    It inherits the run's life lock, which the kernel frees at its death and at no other moment.

    Args:
        place: place of the run.
        say: called every ten seconds of the wait.

    Raises:
        Conflict: a supervisor of the run lives already.
        BackendUnreachable: it did not start; the message has its output.
        OSError: a file or link cannot be made.
    """
    (place.sockets / LINK).unlink(missing_ok=True)
    link = linked(place)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    files = WANTED_FILES if hard == resource.RLIM_INFINITY else min(WANTED_FILES, hard)
    command = [sys.executable, "-m", "supervisor.supervisord", "-c", str(link / "supervisord.conf"), "-a", str(files)]
    if _has_name():
        command += ["-u", str(os.getuid())]  # confirms that running as root is intended
    with (
        lock.life(place.life) as handle,
        subprocess.Popen(
            command,
            cwd=place.layout.logs,
            env={**os.environ, "PYTHONUTF8": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(handle,),
            start_new_session=True,
        ) as process,
    ):
        said = _last_words(process, Waiting(_START_TIMEOUT_S, say))
    if process.returncode != 0:
        lines = said.decode(errors="replace").strip().splitlines()
        why = next((line for line in lines if line.startswith("Error")), lines[-1] if lines else "it said nothing")
        log = place.layout.logs / "supervisord.log"
        hint = f"See {log}." if log.exists() else "rlctl doctor"
        raise BackendUnreachable(f"supervisord did not start (exit {process.returncode}): {why}", hint=hint)


def _last_words(process: subprocess.Popen[bytes], patience: Waiting) -> bytes:
    """Output of the supervisor until it has become a daemon.

    Raises:
        BackendUnreachable: it did not within the timeout.
    """
    try:
        while (left_s := patience.left_s(f"{NAME} to start")) > 0:
            with suppress(subprocess.TimeoutExpired):
                return process.communicate(timeout=left_s)[0]
        raise BackendUnreachable(f"{NAME} did not start within {_START_TIMEOUT_S:g} s")
    finally:
        if process.poll() is None:  # also after Ctrl-C: half a start must not go on by itself
            process.kill()


def _has_name() -> bool:
    """Whether the user is in the password file: a container's often is not, and supervisor then refuses the user id."""
    import pwd

    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return False
    return True
