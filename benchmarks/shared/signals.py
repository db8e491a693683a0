"""Ctrl-C, TERM and HUP: all end a command alike, and none while a run is being ended."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def end_as_ctrl_c() -> None:
    """Have a kill and a closed terminal raise KeyboardInterrupt, as Ctrl-C does; the latter not under `nohup`."""
    for one in ENDS:
        if one is not signal.SIGHUP or signal.getsignal(one) is not signal.SIG_IGN:
            signal.signal(one, signal.default_int_handler)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold back Ctrl-C, TERM and HUP: a run that is being ended is ended."""
    before = {one: signal.signal(one, signal.SIG_IGN) for one in ENDS}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
