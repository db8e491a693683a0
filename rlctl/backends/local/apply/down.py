"""Stop of a live run: its processes gracefully, then their supervisor; by SIGKILL if it does not answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from rlctl.backends.base import Applied, Say
from rlctl.backends.files import unusable, write_at_last
from rlctl.backends.local.names import shown
from rlctl.backends.local.process.daemon import NAME, Daemon
from rlctl.backends.local.process.stopping import GRACE_S, stop, stop_in_order
from rlctl.backends.local.process.supervisord import Supervisor
from rlctl.backends.local.state import lock, run_state
from rlctl.backends.local.state.places import Place
from rlctl.errors import BackendUnreachable, Unreadable
from rlctl.waiting import Waiting, quiet

ANSWER_TIMEOUT_S = 30.0
END_TIMEOUT_S = 10.0
"""Seconds that the supervisor itself has to end, once its children have; and after SIGKILL."""


def end(place: Place, grace_s: float, say: Say = quiet) -> Iterator[Applied]:
    """Stop everything of a run that lives, and record that it was taken down, unless the record cannot be read.

    Args:
        grace_s: seconds between SIGTERM and SIGKILL of each role; 10 at most.
        say: called every ten seconds with the processes that are waited for.

    Raises:
        BackendUnreachable: the supervisor neither answers nor dies.
    """
    if not lock.alive(place.life):
        _record_stopped(place)
        return
    daemon, supervisor = Daemon(place), Supervisor.of(place, ANSWER_TIMEOUT_S, say)
    why = ""
    try:
        stop(supervisor, ["watch"])  # or it would start again a process that ends by itself meanwhile
        for name in stop_in_order(supervisor, min(grace_s, GRACE_S)):
            yield Applied(shown(name), "removed")
        with suppress(OSError):  # a full disk must not keep the supervisor alive; written again below
            _record_stopped(place)
        supervisor.shutdown()
    except BackendUnreachable:  # it ends already, or hangs
        pass
    if not _ended_within(place, END_TIMEOUT_S):
        say(f"{daemon} does not end: killed")
        daemon.kill()
        why = "killed: it did not answer"
        if not _ended_within(place, END_TIMEOUT_S):
            raise BackendUnreachable(
                f"{daemon} of run {place.run} neither answers nor dies",
                hint=f"Its process is in {place.layout.run / 'supervisord.pid'}.",
            )
    try:
        _record_stopped(place)
    except OSError as error:  # nothing lives any more, and that is what counts
        say(unusable(f"cannot record that run {place.run} was stopped", error).message)
    yield Applied(NAME, "removed", why)


def _record_stopped(place: Place) -> None:
    """Record the phase stopped: a command has ended the run. An end by itself stays recorded."""
    try:
        known = run_state.read_stored(place)
    except Unreadable:  # left as it is; that nothing lives is visible without it
        return
    if known is not None and known.phase == "running":
        write_at_last(place.layout.run, lambda: run_state.write_state(place.layout, replace(known, phase="stopped")))


def _ended_within(place: Place, seconds: float) -> bool:
    return Waiting(seconds).until(lambda: not lock.alive(place.life), 0.05)
