"""supervisord of one run as a process of this machine: its pid, the error when it does not answer, its SIGKILL."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rlctl.backends.local.proc import stat
from rlctl.backends.local.state.places import Place
from rlctl.errors import BackendUnreachable

NAME = "supervisord"


@dataclass(frozen=True, slots=True)
class Daemon:
    """The supervisor of a run."""

    place: Place

    def __str__(self) -> str:
        return _called(self.pid())

    def pid(self) -> int | None:
        """Process id; None: it is not alive, or this system does not say."""
        return next((pid for pid in self._candidates() if self._is_it(pid)), None)

    def fault(self, how: str) -> BackendUnreachable:
        """The error for a supervisor that does not answer.

        Args:
            how: what fails, for the message: "does not answer within 3 s".
        """
        pid = self.pid()
        run = self.place.run
        text, hint = f"{_called(pid)} {how}", f"rlctl status {run}; if it stays so, rlctl down {run} ends it by force"
        if pid is not None and stat(pid)[:1] in ([b"T"], [b"t"]):
            text, hint = f"{text}: a signal has stopped it", f"kill -CONT {pid}"
        return BackendUnreachable(text, hint=hint, objects=(NAME,))

    def kill(self) -> None:
        """Send SIGKILL; its children then die by themselves."""
        pid = self.pid()
        if pid is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def _candidates(self) -> Iterator[int]:
        with suppress(OSError, ValueError):  # torn or missing: scan all processes
            yield int((self.place.layout.run / "supervisord.pid").read_text(encoding="ascii"))
        with suppress(OSError):
            yield from (int(name) for name in os.listdir("/proc") if name.isdigit())

    def _is_it(self, pid: int) -> bool:
        """Whether a process was started from the configuration of this run: pids are reused."""
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return False
        # the parent folder may have been another at its start: XDG_RUNTIME_DIR comes and goes
        ours = os.fsencode(f"/{self.place.uid[:8]}/run/supervisord.conf")
        return any(word.endswith(ours) for word in words)


def _called(pid: int | None) -> str:
    return NAME if pid is None else f"{NAME} (pid {pid})"
