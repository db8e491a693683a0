"""Fencing term in run/term: counts the starts of managers, so that only the manager that started last counts.

On a cluster a pod on a node that is cut off may still reach the volume when another pod has taken its place. Its
process is started again whenever it was fenced, so processes of an older pod take no further term: the two would fence
each other in turns.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path

from rlctl_agents.manager.state_store import APART
from rlctl_agents.runtime.storage import read_file, refusal, replace_file

_CLAIM = "term-"
"""Prefix of the empty file in run/ whose creation takes a term, for one manager alone."""
POD = "pod"
"""File in run/ with the number of the newest pod whose manager has taken a term."""

log = logging.getLogger(__name__)


class TornTerm(Exception):
    """The term file holds no number."""


def next_term(folder: Path, at_least: int) -> int:
    """Increment the term, durably, for this start of a manager; returns the new term.

    Args:
        folder: run/.
        at_least: newest term in the generations and the progress, from which a torn counter is rebuilt.

    Raises:
        OSError: the volume refuses.
    """
    try:
        newest = read_term(folder)
    except TornTerm as fault:
        newest = at_least + APART
        log.error("%s: counted on from the generations and the progress, which know of term %d", fault, at_least)
    term = _claimed(folder, max(newest, at_least) + 1)
    _store(folder, term)
    return term


def _claimed(folder: Path, term: int) -> int:
    """The first free term from this one on: two managers that start at the same moment take different ones."""
    while True:
        try:
            os.close(os.open(folder / f"{_CLAIM}{term}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
            break
        except FileExistsError:
            term += 1
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(folder / "term")) from error
    for path in folder.glob(f"{_CLAIM}*"):
        number = path.name.removeprefix(_CLAIM)
        if number.isdigit() and int(number) < term:  # those above are of managers that began since
            with suppress(OSError):
                path.unlink()
    return term


def standing_term(folder: Path, own: int) -> int:
    """The newest term, for the manager of term `own`. A counter that is torn, missing or lower is rewritten, because no
    newer term is known.

    Raises:
        OSError: the volume cannot be read.
    """
    try:
        newest = read_term(folder)
        if newest < own:
            raise TornTerm(f"{folder / 'term'} knows of term {newest}, which is over")
        return newest
    except TornTerm as fault:
        log.error("%s: written anew, term %d", fault, own)
        try:
            _store(folder, own)
        except OSError as error:  # the next manager counts on from the generations and the progress
            log.error("%s", refusal(error) or f"cannot store {folder / 'term'}: {error.strerror}")
        return own


def read_term(folder: Path) -> int:
    """The newest term; 0 before the first.

    Raises:
        TornTerm: the term file holds no number.
        OSError: the volume refuses.
    """
    data = read_file(folder / "term")
    if data is None:
        return 0
    if not data.strip().isdigit():
        raise TornTerm(f"{folder / 'term'} holds no number: {data[:40]!r}")
    return int(data)


class PodOrder:
    """Order of the manager's pods, each numbered at the start of its first process. Methods raise OSError where the
    volume refuses.

    Args:
        folder: run/.
        own: file of this pod, which outlives its processes.
    """

    def __init__(self, folder: Path, own: Path) -> None:
        self._folder, self._own = folder, own

    def begin(self) -> None:
        """Number this pod, unless it is, above all pods whose managers have taken a term before."""
        if _number(self._own) is None:
            number = max(_number(self._folder / "term") or 0, self._newest()) + 1
            with suppress(OSError):  # /tmp is full: this pod has no number, and supersedes none
                self._own.write_text(f"{number}\n")

    def superseded(self) -> bool:
        """True if a manager in a newer pod has taken over."""
        number = _number(self._own)
        return number is not None and number < self._newest()

    def enter(self) -> None:
        """Note that a manager in this pod has taken a term: processes of older pods do so no more."""
        number = _number(self._own) or 0
        if number > self._newest():
            _store(self._folder, number, POD)

    def _newest(self) -> int:
        return _number(self._folder / POD) or 0


def _number(path: Path) -> int | None:
    """Number that a file holds; None: it is not there, or torn."""
    data = read_file(path)
    return int(data) if data is not None and data.strip().isdigit() else None


def _store(folder: Path, term: int, name: str = "term") -> None:
    path = folder / name
    try:
        replace_file(path, f"{term}\n".encode(), durable=True)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
