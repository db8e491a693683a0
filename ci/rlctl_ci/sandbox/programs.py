"""Start of programs, by this module alone: always with an argument list, limits, and an end; see `keeper`."""

from __future__ import annotations

import errno
import os
import re
import select
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from rlctl.errors import BackendUnreachable
from rlctl.images.builders.base import Ended
from rlctl_ci.core.errors import ENDED, BuildStopped, Transient
from rlctl_ci.sandbox import keeper

KEPT_LINES: Final = 200
MAX_LINE: Final = 8192
GRACE_S: Final = 5
_LOOK_S: Final = 0.2
_STOPPED: Final = {code: number for number in keeper.STOP_SIGNALS for code in (-number, 128 + number)}
"""Exit codes of a keeper that was ended, or, above 0, whose program was -> the signal."""
_NO_ROOM: Final = re.compile(r"(?!remote: |fatal: remote error).*(No space left on device|Disk quota exceeded)")
"""Words of a program that finds the disk of this machine full, not that of a server which it asks."""
_KEPT: Final = ("PATH", "LANG", "LC_ALL", "SSL_CERT_FILE", "SSL_CERT_DIR", "BUILDAH_ISOLATION", "STORAGE_DRIVER",
                "DOCKER_HOST", "XDG_RUNTIME_DIR")  # fmt: skip
"""Variables of our environment that a program of a build gets: neither a kubeconfig nor a token, nor their paths."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of one program and everything that it starts; None: no limit."""

    time_s: float
    memory_mib: int | None = None
    file_mib: int | None = None
    nice: int = 0
    """Niceness: hooks, and roles on the same machine, come first."""
    cpu_s: int | None = None
    """Seconds of processor time, for each of its processes."""


@dataclass(frozen=True, slots=True)
class Programs:
    """Runner of programs; satisfies `rlctl.images.builders.base.Run`.

    Args:
        environ: the whole environment of the programs.
        bounds: limits of each of them.
        stop: raises when the work has to end; the program and all that it has started is killed then.
        folder: where they start.
        whole: nothing that a program has started outlives it; False: a daemon in a session of its own may.
        longest: bytes of a line of output, at most.
    """

    environ: Mapping[str, str]
    bounds: Bounds
    stop: Callable[[], None] = lambda: None
    folder: Path | None = None
    whole: bool = True
    longest: int = MAX_LINE
    runs_code: bool = False
    """They run code of a commit, which may choose their exit code."""

    def __call__(
        self, argv: Sequence[str], say: Callable[[str], object] | None = None, *, out: Path | None = None,
        data: bytes | None = None,
    ) -> Ended:  # fmt: skip
        """Run a program to its end.

        Args:
            argv: never goes through a shell.
            say: called with every line.
            out: file for standard output, of which `say` then gets nothing.
            data: standard input.

        Raises:
            BackendUnreachable: it cannot be started.
            BuildStopped: it took too long.
            Transient: it was ended from outside, as all of this service is where its machine stops.
        """
        if shutil.which(argv[0], path=self.environ.get("PATH", os.defpath)) is None:
            raise BackendUnreachable(f"{argv[0]} cannot be started: no such program")
        target: IO[bytes] | int = subprocess.PIPE if out is None else out.open("wb")
        read_end, write_end = os.pipe()
        try:
            process = subprocess.Popen(
                [*self._kept(read_end), *argv], stdin=subprocess.DEVNULL if data is None else subprocess.PIPE,
                stdout=target, stderr=subprocess.STDOUT if out is None else subprocess.PIPE, env=dict(self.environ),
                cwd=self.folder, start_new_session=True, pass_fds=(read_end,),
            )  # fmt: skip
        except OSError as error:
            os.close(write_end)
            raise BackendUnreachable(
                f"{argv[0]} cannot be started: {(error.strerror or str(error)).lower()}"
            ) from error
        finally:
            os.close(read_end)
            if not isinstance(target, int):
                target.close()
        try:
            if data is not None:
                assert process.stdin is not None
                with suppress(BrokenPipeError):
                    process.stdin.write(data)
                    process.stdin.close()
            lines = self._watch(process, argv[0], say)
            code = process.wait()
            if code in _STOPPED and (code < 0 or not self.runs_code):
                raise Transient(ENDED, f"{argv[0]} was ended from outside, by signal {_STOPPED[code]}")
            return Ended(code, tuple(lines))
        finally:
            _end(process, write_end)

    def _kept(self, read_end: int) -> list[str]:
        """Command line of the keeper, before that of the program."""
        limits = (self.bounds.memory_mib, self.bounds.file_mib)
        sizes = ((most or 0) << 20 for most in limits)
        numbers = (read_end, int(self.whole), GRACE_S, self.bounds.nice, *sizes, self.bounds.cpu_s or 0)
        return [sys.executable, "-I", "-S", keeper.__file__, *map(str, numbers)]

    def _watch(self, process: subprocess.Popen[bytes], name: str, say: Callable[[str], object] | None) -> deque[str]:
        pipe = process.stdout or process.stderr
        assert pipe is not None
        kept: deque[str] = deque(maxlen=KEPT_LINES)
        deadline, rest = time.monotonic() + self.bounds.time_s, b""
        while True:
            self.stop()
            if time.monotonic() > deadline:
                raise BuildStopped("timeout", f"{name} took more than {self.bounds.time_s:g} s", hint="limits.time_s")
            if not select.select([pipe], [], [], _LOOK_S)[0]:
                if process.poll() is None or select.select([pipe], [], [], 0)[0]:
                    continue  # it still runs, or has ended since, and there is more output
                break  # something that it started holds the pipe open
            part = os.read(pipe.fileno(), 65_536)
            if not part:
                break
            *whole, rest = (rest + part).split(b"\n")
            if len(rest) > self.longest:
                whole, rest = [*whole, rest], b""
            for line in whole:
                _told(line[: self.longest], kept, say)
        if rest:
            _told(rest[: self.longest], kept, say)
        return kept


def require_room(ended: Ended) -> None:
    """Require that a program, which runs nothing of a commit, has not failed for want of room on this machine.

    Raises:
        OSError: the disk is full.
    """
    if ended.code and (full := next(filter(_NO_ROOM.match, ended.lines), "")):
        raise OSError(errno.ENOSPC, full)


def _told(line: bytes, kept: deque[str], say: Callable[[str], object] | None) -> None:
    text = line.decode("utf-8", "replace").rstrip("\r")
    kept.append(text)
    if say is not None:
        say(text)


def _end(process: subprocess.Popen[bytes], write_end: int) -> None:
    """End the program and what it has started: gracefully while it still runs, then by force."""
    if process.poll() is None:
        with suppress(BrokenPipeError, subprocess.TimeoutExpired):
            os.write(write_end, b".")
            process.wait(GRACE_S + keeper.UNKILLABLE_S)
    os.close(write_end)
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def clean(environ: Mapping[str, str], home: Path, **more: str) -> dict[str, str]:
    """Environment of a program of a build: `_KEPT` of `environ`, `home`, and `more`."""
    return {name: environ[name] for name in _KEPT if name in environ} | {"HOME": str(home), **more}
