"""Terminal of a program that has replaced the user's command: answer, notes, debugger."""

from __future__ import annotations

import bdb
import json
import os
import pdb
import site
import sys
import sysconfig
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from rlctl.spec.layout import API_VERSION
from rlctl_agents.runtime.logs import chain

INVALID, FAILED, INTERRUPTED, NO_READER = 3, 7, 130, 141
"""Exit codes, as of rlctl: an invalid spec, or a missing part of it; a failure of the user's own code; Ctrl-C, or the
debugger's quit; a pipe that its reader has closed."""


class ReaderGone(Exception):
    """Answer to a pipe that its reader has closed."""


@dataclass
class DebugOutput:
    """Output of the answer, and of notes beside it."""

    out: TextIO
    as_json: bool
    quiet: bool
    began: float = field(default_factory=time.monotonic)

    def note(self, text: str) -> None:
        """Print a note to stderr, unless quiet."""
        if not self.quiet:
            self._print(text, sys.stderr)

    def answer(self, text: str, **content: Any) -> None:
        """Print a part of the answer, as text or as JSON."""
        line = json.dumps({"apiVersion": API_VERSION, **content}) if self.as_json else text
        self._print(line, self.out)

    @staticmethod
    def _print(text: str, to: TextIO) -> None:
        try:
            print(text, file=to, flush=True)
        except BrokenPipeError:
            raise ReaderGone from None

    def leave(self) -> None:
        """End all output: what is still to be flushed is discarded."""
        for stream in (self.out, sys.stderr):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def answers(as_json: bool) -> TextIO:
    """Stream of the answer; with JSON, all other output goes to stderr from now on."""
    if not as_json:
        return sys.stdout
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return out


def go_to(code: Path | None, output: DebugOutput) -> None:
    """Enter the folder in which actors and learners of this machine run: `code.path`, in the place of PYTHONPATH."""
    if sys.path[:1] == [os.getcwd()]:  # as `python -m` has put it
        del sys.path[0]
    if code is None:
        return
    given = os.environ.get("PYTHONPATH", "")
    shells = {os.path.abspath(part) for part in given.split(os.pathsep)} - _searched_anyway() if given else set()
    left_out = [folder for folder in sys.path if folder in shells and folder != str(code)]
    sys.path[:] = [str(code), *(folder for folder in sys.path if folder not in shells)]
    os.environ["PYTHONPATH"] = str(code)  # of what an environment starts
    os.chdir(code)
    if left_out:
        output.note(f"note: as in a run, code.path is in the place of PYTHONPATH: {', '.join(left_out)} left out")


def _searched_anyway() -> set[str]:
    """Folders in which this interpreter looks for modules without PYTHONPATH: of installed and of editable packages."""
    found = set(sysconfig.get_paths().values())
    for folder in (*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])):
        found.add(folder)
        for file in Path(folder).glob("*.pth"):
            with suppress(OSError):  # as the interpreter leaves out one that it cannot read
                lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
                found |= {os.path.abspath(os.path.join(folder, line.strip())) for line in lines}
    return found


def is_quit(error: BaseException) -> bool:
    """True if the debugger's `q` has raised it: BdbQuit, or a SystemExit out of pdb from Python 3.14 on."""
    causes = list(chain(error))
    frames = (one.filename for cause in causes for one in traceback.extract_tb(cause.__traceback__))
    return any(isinstance(cause, bdb.BdbQuit) for cause in causes) or (
        isinstance(causes[-1], SystemExit) and pdb.__file__ in frames
    )


def stay_there(error: BaseException, output: DebugOutput) -> None:
    """Open pdb where the root cause of an error was raised."""
    if sys.stdin is None:
        output.note("standard input is closed: pdb cannot ask")
    else:
        pdb.post_mortem(list(chain(error))[-1].__traceback__)
