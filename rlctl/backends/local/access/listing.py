"""Processes of a run as shown to a user."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from rlctl.backends.base import Process, RunState
from rlctl.backends.files import read_json
from rlctl.backends.local.names import in_order, is_role, shown, split_name
from rlctl.backends.local.proc import boot_time, started
from rlctl.backends.local.process.supervisord import Child, Supervisor
from rlctl.backends.local.state import lock, run_state
from rlctl.backends.local.state.places import Place
from rlctl.errors import BackendUnreachable
from rlctl.spec.base import ROLES

ANSWER_TIMEOUT_S = 3.0
"""Timeout of a reader in seconds; it then shows the rest: a supervisor with a hundred new children may need more."""
NOT_ADDED = "not added to the supervisor yet; the command that was interrupted, given again, adds it"
IN_GOOD_ORDER = "ended in good order"
State = Literal["starting", "running", "backoff", "stopping", "stopped", "exited", "failed"]
_STATES: dict[str, State] = {
    "STARTING": "starting",
    "RUNNING": "running",
    "BACKOFF": "backoff",
    "STOPPING": "stopping",
    "STOPPED": "stopped",
    "EXITED": "exited",
    "FATAL": "failed",
    "UNKNOWN": "failed",
}


def processes(place: Place, known: RunState) -> list[Process]:
    """Every replica that is wanted or there, in role and index order.

    Raises:
        BackendUnreachable: the supervisor does not answer.
    """
    # only roles that this release knows: the run may be of a newer one
    names = {f"{role}-{index}" for role in ROLES for index in range(known.replicas.get(role, 0))}
    try:
        found = read_json(run_state.watch_file(place.layout), "restarts") or {}
    except BackendUnreachable:  # it only adds reasons
        found = {}
    watched = {name: one for name, one in found.items() if isinstance(one, dict) and _sound(one)}
    if not lock.alive(place.life):
        return [_dead(name, known, watched.get(name, {})) for name in sorted(names, key=in_order)]
    children = Supervisor.of(place, ANSWER_TIMEOUT_S).children()
    names |= {name for name in children if is_role(name)}
    booted = boot_time()
    return [_process(name, children.get(name), watched.get(name, {}), booted) for name in sorted(names, key=in_order)]


def _process(name: str, child: Child | None, watched: Mapping[str, Any], booted: float) -> Process:
    role, index = split_name(name)
    known_role = next(each for each in ROLES if each == role)
    restarts = int(watched.get("restarts", 0))
    if child is None:
        return Process(known_role, index, "stopped", restarts=restarts, reason=NOT_ADDED)
    seen, reason = _STATES.get(child.state, "failed"), ""
    if child.state == "EXITED" and child.exit_status == 0:  # the run ends; if not, it is started again soon
        reason = IN_GOOD_ORDER
    elif seen in ("exited", "failed"):
        reason = str(watched.get("reason") or _how_it_ended(child))
        due = watched.get("next_start")
        if due is not None:
            seen, reason = "backoff", f"{reason}; starts again in {max(0.0, due - time.time()):.0f} s"
    elif seen == "stopped":
        reason = "stopped by a command"
    live = seen in ("starting", "running")
    # the supervisor keeps the time by the clock of then; reports are compared by the clock of now
    began = (started(child.pid, booted) or child.start) if live else 0
    since = datetime.fromtimestamp(began, UTC) if began else None
    trouble = _trouble(watched) if live else ""
    return Process(known_role, index, seen, child.pid or None, since, restarts, reason, trouble)


def _sound(watched: Mapping[str, Any]) -> bool:
    """Whether an entry has numbers where numbers have to be: another program may have written it."""
    return isinstance(watched.get("restarts", 0), int) and isinstance(watched.get("next_start") or 0, (int, float))


def _trouble(watched: Mapping[str, Any]) -> str:
    return str(watched.get("reason", "")) if watched.get("in_trouble") else ""


def _how_it_ended(child: Child) -> str:
    """End of a process as the supervisor reports it; the watch, which knows more, has not seen it yet."""
    if child.state != "EXITED":
        return f"could not be started: {child.error}"
    return "was killed by a signal" if child.exit_status == -1 else f"exited {child.exit_status}"


def _dead(name: str, known: RunState, watched: Mapping[str, Any]) -> Process:
    role, index = split_name(name)
    seen: State = "stopped"
    reason = "the run was taken down"
    failure = known.failure
    if known.phase == "finished":
        seen, reason = "exited", "the run has finished"
    elif failure is not None and failure.process == shown(name):
        seen, reason = "failed", failure.text
    elif failure is not None:
        seen, reason = "stopped", f"stopped because {failure.process} failed"
        if failure.process == "supervisord":
            seen, reason = "exited", failure.text
    return Process(
        next(each for each in ROLES if each == role),
        index,
        seen,
        restarts=int(watched.get("restarts", 0)),
        reason=reason,
        trouble=_trouble(watched) if known.phase == "finished" else "",
    )
