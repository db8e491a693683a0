"""Terminal of a program that has replaced the user's command: its answer, its failures, the debugger."""

from __future__ import annotations

import json
import os
import pdb
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from rlctl_agents.runtime.logs import chain

INVALID, FAILED, INTERRUPTED, NO_READER = 3, 7, 130, 141
"""Exit codes, as of rlctl: the spec, or what it names; the user's own code; Ctrl-C, or the debugger's quit; a pipe that
was closed at the other end."""


class ReaderGone(Exception):
    """The answer goes into a pipe that was closed at the other end."""


@dataclass
class Telling:
    """Lines of the answer."""

    out: TextIO
    as_json: bool
    quiet: bool
    began: float = field(default_factory=time.monotonic)

    def note(self, text: str) -> None:
        """Say something beside the answer."""
        if not self.quiet:
            self._print(text, sys.stderr)

    def answer(self, text: str, **content: Any) -> None:
        """Give a part of the answer, in words or as JSON."""
        line = json.dumps({"apiVersion": "rlctl/v1", **content}) if self.as_json else text
        self._print(line, self.out)

    @staticmethod
    def _print(text: str, to: TextIO) -> None:
        try:
            print(text, file=to, flush=True)
        except BrokenPipeError:
            raise ReaderGone from None

    def leave(self) -> None:
        """Say no more: what is still to be flushed goes nowhere."""
        for stream in (self.out, sys.stderr):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def answers(as_json: bool) -> TextIO:
    """Stream of the answer; with JSON, all other output goes to stderr from now on."""
    if not as_json:
        return sys.stdout
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return out


def go_to(code: Path | None) -> None:
    """Enter the folder in which actors and learners of this machine run: `code.path`, with its modules and no others of
    the user's."""
    if sys.path[:1] == [os.getcwd()]:  # as `python -m` has put it
        del sys.path[0]
    if code is not None:
        sys.path.insert(0, str(code))
        os.environ["PYTHONPATH"] = str(code)  # of what an environment starts
        os.chdir(code)


def stay_there(error: BaseException, telling: Telling) -> None:
    """Open pdb where it was raised first."""
    if sys.stdin is None:
        telling.note("standard input is closed: pdb cannot ask")
    else:
        pdb.post_mortem(list(chain(error))[-1].__traceback__)
