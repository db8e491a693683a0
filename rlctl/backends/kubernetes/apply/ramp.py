"""Ramp-up of the number of actors, so that the cluster is not overloaded: ten first, then as many as it keeps up with.

Ten thousand pods of a wrong image are ten thousand pulls and events; so ten have to be ready before the rest is
requested. From then on at most 2,000 that are not ready are outstanding. A ready actor from before a change of its
template says nothing about the new one, and does not count. A waiting command watches Deployments, which report how
many are ready, and holds no lock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from rlctl.backends.base import Applied, Process, RunState
from rlctl.backends.kubernetes.api.interface import ApiError, Key, Object
from rlctl.backends.kubernetes.api.refusals import conflict
from rlctl.backends.kubernetes.api.watch import follow
from rlctl.backends.kubernetes.apply.writing import Writer
from rlctl.backends.kubernetes.diagnose import rollout
from rlctl.backends.kubernetes.run_state import record as records
from rlctl.backends.kubernetes.run_state import replicas
from rlctl.backends.kubernetes.run_state.owner import check_ours
from rlctl.backends.kubernetes.run_state.session import Session
from rlctl.backends.run_states import ENDS
from rlctl.errors import Conflict, Left, RlctlError, TimedOut, WorkloadFailed
from rlctl.spec.names import selector

CANARY: Final = 10
OUTSTANDING: Final = 2000
STEP: Final = 250
"""Minimum of replicas to request at once, unless fewer are left."""
PATIENCE_S: Final = 600.0
"""Seconds without another ready actor after which the ramp-up times out."""
_LOOK_S: Final = 15.0
"""Seconds between two checks why the first actors do not run."""


def first(now: int, wanted: int, *, is_first: bool) -> int:
    """Replicas that one Deployment of actors is first written with: fewer at once, more only by steps."""
    if wanted <= now:
        return wanted
    return now if now or not is_first else min(CANARY, wanted)


def next_step(now: Mapping[Key, int], ready: Mapping[Key, int], wanted: Mapping[Key, int]) -> dict[Key, int]:
    """Replicas to request from each Deployment now; empty: none yet.

    Args:
        now, ready, wanted: replicas requested, ready from the present template, and wanted in the end; the same keys.
    """
    lower = {key: wanted[key] for key in now if now[key] > wanted[key]}
    if lower:
        return lower
    asked, up, total = sum(now.values()), sum(ready.values()), sum(wanted.values())
    canary = min(CANARY, total)
    if asked < canary:
        room = canary - asked
    elif up < canary:
        return {}
    else:
        room = min(total, up + OUTSTANDING) - asked
        if room < min(STEP, total - asked):
            return {}
    step = {}
    for key, count in now.items():
        more = min(room, wanted[key] - count)
        if more > 0:
            step[key] = count + more
            room -= more
    return step


def go_on(session: Session, run: str, state: RunState, wanted: Mapping[Key, int], verb: str) -> Iterator[Applied]:
    """Bring the actor Deployments to their numbers; the lock is held only while writing.

    Args:
        state: recorded state; if another number of actors is recorded meanwhile, this raises Conflict.
        wanted: replicas of each Deployment, in the order in which they are filled.

    Raises:
        WorkloadFailed: the first actors cannot run.
        TimedOut: no more actors become ready.
        Left: the user does not wait for them.
        Conflict: another command has changed the number meanwhile, or another field manager has set it.
    """
    lives = {key: session.api.get(key) for key in wanted}
    asked = 0
    while True:
        there = {key: live for key, live in lives.items() if live is not None}
        now, ready = _numbers(there, wanted)
        if not _differs(there, wanted) or (sum(now.values()) < asked and _is_over(session)):
            return
        step = next_step(now, ready, {key: wanted[key] for key in now})
        if step:
            yield from _write(session, run, state, step, wanted, verb)
        asked = max(asked, sum((now | step).values()))
        lives = _wait(session, run, state, wanted)


def _is_over(session: Session) -> bool:
    """Whether the run has ended meanwhile, so that its manager scales its actors to 0."""
    try:
        return session.ask("/status", None).get("phase") in ENDS
    except RlctlError:
        return False


def _numbers(there: Mapping[Key, Object], wanted: Mapping[Key, int]) -> tuple[dict[Key, int], dict[Key, int]]:
    ordered = [key for key in wanted if key in there]
    return (
        {key: replicas.count(there[key]).value for key in ordered},
        {key: rollout.new_ready(there[key]) for key in ordered},
    )


def _differs(there: Mapping[Key, Object], wanted: Mapping[Key, int]) -> bool:
    """Whether a Deployment has another number; one that another field manager has set meanwhile stays."""
    counts = {key: replicas.count(live) for key, live in there.items()}
    return any(found.whose != "foreign" and found.value != wanted[key] for key, found in counts.items())


def _write(
    session: Session, run: str, state: RunState, step: Mapping[Key, int], wanted: Mapping[Key, int], verb: str
) -> Iterator[Applied]:  # fmt: skip
    with session.lock(verb).held() as hold:
        _check_unchanged(session, state)
        writer = Writer(session, hold)
        for key, number in step.items():
            live = session.api.get(key)
            if live is None:
                continue
            check_ours(live, run, state.uid, session.api.namespace)
            try:
                writer.set_count(live, number, force=session.force)
            except ApiError as error:
                if not error.conflicts:
                    raise
                raise conflict([replicas.row(key, replicas.count(live), number)], run=run) from error
            rest = f" of {wanted[key]}" if number != wanted[key] else ""
            yield Applied(str(key), "changed", f"replicas: {replicas.count(live).value} -> {number}{rest}")


def _check_unchanged(session: Session, state: RunState) -> None:
    record = records.find(session.api, state.run)
    if record is None or record.state.uid != state.uid or record.state.phase != "running":
        raise Conflict(
            f"run {state.run} was taken down meanwhile", hint="rlctl up SPEC starts it again.", objects=(state.run,)
        )
    if record.state.replicas.get("actor") != state.replicas.get("actor"):
        raise Conflict(
            f"another command wants {record.state.replicas.get('actor')} actors of run {state.run} meanwhile",
            hint=f"rlctl status {state.run} shows them; the same command again asks for yours.",
            objects=(state.run,),
        )


def _wait(session: Session, run: str, state: RunState, wanted: Mapping[Key, int]) -> dict[Key, Object | None]:
    """Wait until there is something to request, or everything is requested."""
    best, looked = -1, session.clock()
    patience = session.patience(PATIENCE_S)
    for known in follow(session.api, "Deployment", labels=selector(run, "actor")):
        lives = {key: known.get(key.name) for key in wanted}
        there = {key: live for key, live in lives.items() if live is not None}
        now, ready = _numbers(there, wanted)
        if not there or not _differs(there, wanted) or next_step(now, ready, {key: wanted[key] for key in now}):
            return lives
        up, moment = sum(ready.values()), session.clock()
        if up > best:
            best = up
            patience.moved()
        if up < CANARY and moment - looked >= _LOOK_S:
            looked = moment
            _check_trouble(session.trouble(state))
        total = sum(wanted.values())
        if session.leave():
            raise Left(
                f"{sum(now.values())} of {total} actors of run {run} are asked for, and {up} are ready",
                hint="The same command asks for the rest.",
                objects=tuple(map(str, wanted)),
            )
        if patience.over(f"{total} actors of run {run}, of which {up} are ready and {sum(now.values())} asked for"):
            raise TimedOut(
                f"{up} of {total} actors of run {run} are ready, {sum(now.values())} are asked for, and for "
                f"{PATIENCE_S:g} s no more became ready; no more are asked for",
                hint=f"rlctl status {run} says why; the same command again goes on.",
                objects=tuple(map(str, wanted)),
            )
    return {}


def _check_trouble(processes: list[Process]) -> None:
    """Check that actors come up.

    Raises:
        WorkloadFailed: an actor cannot run until a person changes something.
    """
    for process in processes:
        if process.role == "actor" and process.permanent:
            raise WorkloadFailed(
                f"the first actors cannot run, so no more were asked for: {process.reason}",
                hint=process.next or "rlctl status says more.",
                objects=(process.name or f"actor/{process.index}",),
            )
