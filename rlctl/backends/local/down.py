"""Ending a live run: processes in good order, then their supervisor; by force when it does not answer."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from rlctl.backends.base import Applied
from rlctl.backends.local import lock, state
from rlctl.backends.local.files import write_at_last
from rlctl.backends.local.names import shown
from rlctl.backends.local.places import Place
from rlctl.backends.local.stopping import GRACE_S, stop, stop_in_order
from rlctl.backends.local.supervisord import Supervisor
from rlctl.errors import BackendUnreachable

ANSWER_TIMEOUT_S = 30.0
END_TIMEOUT_S = 10.0
"""Of the supervisor itself, once its children have ended; and after SIGKILL."""


def end(place: Place, grace_s: float) -> Iterator[Applied]:
    """End everything of the run that lives, and record that it was taken down.

    Args:
        grace_s: between SIGTERM and SIGKILL of each role; 10 s at most.

    Raises:
        BackendUnreachable: the supervisor neither answers nor dies.
    """
    if not lock.alive(place.life):
        _record_stopped(place)
        return
    supervisor = Supervisor(place.supervisor_socket, ANSWER_TIMEOUT_S)
    why = ""
    try:
        stop(supervisor, ["watch"])  # or it would start again whoever ends by itself meanwhile
        for name in stop_in_order(supervisor, min(grace_s, GRACE_S)):
            yield Applied(shown(name), "removed")
        with suppress(OSError):  # a full disk must not keep the supervisor alive; written again below
            _record_stopped(place)
        supervisor.shutdown()
    except BackendUnreachable:  # it ends already, or hangs
        pass
    if not _ended_within(place, END_TIMEOUT_S):
        _kill(place)
        why = "killed: it did not answer"
        if not _ended_within(place, END_TIMEOUT_S):
            raise BackendUnreachable(
                f"supervisord of run {place.run} neither answers nor dies",
                hint=f"Its process is in {place.layout.run / 'supervisord.pid'}.",
            )
    _record_stopped(place)
    yield Applied("supervisord", "removed", why)


def _record_stopped(place: Place) -> None:
    """Nothing lives because somebody asked for it; how a run ended by itself stays recorded."""
    known = state.read_stored(place)
    if known is not None and known.phase == "running":
        write_at_last(place.layout.run, lambda: state.write_state(place.layout, replace(known, phase="stopped")))


def _ended_within(place: Place, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while lock.alive(place.life):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _kill(place: Place) -> None:
    """SIGKILL to the supervisor, if the process of its pid file is it; its children die with it by themselves."""
    with suppress(OSError, ValueError):
        pid = int((place.layout.run / "supervisord.pid").read_text(encoding="ascii"))
        if os.fsencode(place.sockets / "run") in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
