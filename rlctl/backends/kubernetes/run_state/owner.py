"""Owner of a run, checked before a command changes or removes it."""

from __future__ import annotations

from typing import Final

from rlctl.backends.kubernetes.api.interface import Object, key_of
from rlctl.backends.kubernetes.run_state import inventory
from rlctl.backends.kubernetes.run_state.record import Record
from rlctl.backends.kubernetes.run_state.session import Session
from rlctl.errors import Conflict

_DOES: Final = {"down": "take it down", "scale": "scale it", "restart": "restart it", "rollback": "roll it back"}


def check_owner(session: Session, record: Record, verb: str, *, uid: str | None = None) -> None:
    """Check that this user may change a run: only the user who has started it may, or by force.

    It is ours if this user's index has its uid, or if this user started it on this machine and the index has no other
    run of that name here.

    Args:
        uid: uid of the run that the command is about; None: whatever runs under that name.

    Raises:
        Conflict: another user owns it, or it is not the run that was started from here.
    """
    known = record.state.uid
    same_run = uid in (None, known)
    if same_run and (session.take_over or session.home_uid == known):
        return
    other = session.recorded if session.recorded not in ("", known) else ""
    if same_run and not other and record.by in ("", session.me.by):
        return
    run = record.state.run
    but = f"; the one that was started from here has uid {other[:8]}" if other else ""
    raise Conflict(
        f"run {run} in namespace {session.api.namespace} is owned by {record.by or 'another user'}: "
        f"started {record.state.created:%Y-%m-%d %H:%M} UTC with uid {known[:8]}{but}",
        hint=_way_out(run, verb, same_run=same_run),
        objects=(run,),
    )


def _way_out(run: str, verb: str, *, same_run: bool) -> str:
    if verb in _DOES:
        return f"If it is meant, {_DOES[verb]} all the same: the same command with --force-conflicts"
    change = ", or change that run from here: rlctl up SPEC --force-conflicts" if same_run else ""
    return f"Choose another name (--set run={run}-2){change}"


def check_ours(live: Object, run: str, uid: str, namespace: str) -> None:
    """Check that an object found by name belongs to a run, before a write to it.

    Raises:
        Conflict: it does not.
    """
    if inventory.is_ours(live, run, uid):
        return
    key = key_of(live)
    raise Conflict(
        f"{key} in namespace {namespace} is not of run {run}: it is of {inventory.whose(live)}; it was not changed",
        hint="Have its owner remove it; then rlctl up SPEC makes that of the run again.",
        objects=(str(key),),
    )
