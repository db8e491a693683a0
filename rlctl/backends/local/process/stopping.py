"""Graceful stop of processes: one role after the other, all of a role at once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress

from rlctl.backends.local.names import in_order, shown, split_name
from rlctl.backends.local.process.supervisord import Child, Supervisor
from rlctl.spec.base import Role
from rlctl.waiting import Waiting

STOP_ORDER: tuple[Role, ...] = ("actor", "evaluator", "inference", "learner", "replay", "modelpool", "manager")
"""Order of roles: senders end before receivers, so that nothing is lost in flight; the manager sees them all end."""

_ANSWERING = frozenset({"replay", "modelpool", "manager"})
"""Roles that answer the others until those end: the manager commits a learner's last generation."""

GRACE_S = 10.0
"""Seconds between SIGTERM and SIGKILL, for every role: as in the template."""
_POLL_S = 0.05
_YOUNG_S = 3
"""Seconds of life up to which SIGTERM is repeated: a child just forked may still run supervisor's own signal handler,
which swallows it."""
_AGAIN_S = 1.0


def stop(supervisor: Supervisor, names: Iterable[str], grace_s: float = GRACE_S) -> list[str]:
    """End processes and all that they started, at the same time; returns when none lives, or SIGKILL does not help.

    Args:
        names: processes of the supervisor; one that is unknown or does not run is no error.
        grace_s: seconds until SIGKILL of the whole process group; the supervisor itself sends it after 10 s.

    Returns:
        Names of processes that had to be killed.

    Raises:
        BackendUnreachable: the supervisor does not answer.
    """
    waiting = sorted(set(names), key=in_order)
    groups = _pids(_live(supervisor, waiting))  # before SIGTERM: some end at once, and leave children behind
    supervisor.batch("stopProcess", [(name, False) for name in waiting])
    began, told, killed = time.monotonic(), time.monotonic(), list[str]()
    patience = Waiting(grace_s + GRACE_S, supervisor.say, time.monotonic)  # suspended time counts for neither
    while True:
        live = _live(supervisor, waiting)
        for pid in groups - _pids(live):  # its children may have survived SIGTERM
            signal_group(pid, signal.SIGKILL)
        groups = _pids(live)
        if not live or patience.over(f"{shown(live[0].name)} to end"):  # killed and still there: held by the kernel
            return killed
        now = time.monotonic()
        if now - began >= grace_s:
            killed += [child.name for child in live if child.name not in killed]
            for child in live:
                signal_group(child.pid, signal.SIGKILL)
        elif now - told >= _AGAIN_S:
            told = now
            for child in live:
                if child.now - child.start - (now - began) <= _YOUNG_S:
                    signal_group(child.pid, signal.SIGTERM)
        time.sleep(_POLL_S)


def _live(supervisor: Supervisor, names: Iterable[str]) -> list[Child]:
    children = supervisor.children()
    return [children[name] for name in names if name in children and children[name].live]


def _pids(children: Iterable[Child]) -> set[int]:
    return {child.pid for child in children}


def waves(names: Iterable[str]) -> list[list[str]]:
    """Groups of processes that may end at the same time: first those that send requests, then those that answer."""
    names = list(names)
    asking = [name for name in names if split_name(name)[0] not in _ANSWERING]
    return [wave for wave in (asking, [name for name in names if name not in asking]) if wave]


def stop_in_order(supervisor: Supervisor, grace_s: float = GRACE_S) -> Iterator[str]:
    """End every role process; yields the names of each role once they have ended."""
    names = [name for name in supervisor.children() if split_name(name)[0] in STOP_ORDER]
    for role in STOP_ORDER:
        group = [name for name in names if split_name(name)[0] == role]
        if group:
            stop(supervisor, group, grace_s)
            yield from group


def signal_group(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process and everything that it started; supervisor gives each child a group of its own."""
    if pid > 1:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, number)
