"""A volume that takes nothing more: what that is called, and how long somebody waits for it to take something again."""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from rlctl_agents.runtime.process import UserFault

FULL_S = 300.0
"""So long a manager that cannot go on without the volume waits for space on it."""
LONGEST_DELAY_S = 10.0
_WORDS = {
    errno.ENOSPC: "the volume is full",
    errno.EDQUOT: "the quota of the volume is used up",
    errno.EROFS: "the volume is read-only",
}

T = TypeVar("T")

log = logging.getLogger(__name__)


def refusal(error: OSError, path: object = None) -> str:
    """Why the volume takes nothing, in words that name the place; "" when it is something else.

    Args:
        path: what was to be written; None: what the error itself names.
    """
    words = _WORDS.get(error.errno or 0, "")
    where = error.filename if path is None else path
    return words if not words or where is None else f"{words}: {where}"


def patiently(
    act: Callable[[], T],
    *,
    stop: threading.Event,
    beat: Callable[[], None],
    clock: Callable[[], float] = time.monotonic,
    waiting: Callable[[], None] | None = None,
) -> T:
    """Do what needs the volume, again and again while that takes nothing.

    Args:
        act: may be done again after it has failed.
        stop: who is asked to stop does not wait.
        beat: says that this process is alive.
        waiting: called after every failure.

    Raises:
        UserFault: the volume has taken nothing for FULL_S, and which volume.
        OSError: something else is wrong with it.
    """
    until, delay_s = clock() + FULL_S, 1.0
    while True:
        try:
            return act()
        except OSError as error:
            if not (text := refusal(error)):
                raise
            if clock() >= until or stop.is_set():
                raise UserFault(text) from error
            log.error("%s; tried again in %g s", text, delay_s)
        if waiting is not None:
            waiting()
        beat()
        stop.wait(delay_s)
        delay_s = min(2 * delay_s, LONGEST_DELAY_S)
