"""`scale` and `restart`: changes of a run from its stored documents, without rendering anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from rlctl.backends.base import Applied, RunState
from rlctl.backends.kubernetes.api.interface import Api, ApiError, Key, Object, kubectl
from rlctl.backends.kubernetes.api.refusals import conflict
from rlctl.backends.kubernetes.api.watch import follow
from rlctl.backends.kubernetes.apply import ramp
from rlctl.backends.kubernetes.apply.writing import Writer
from rlctl.backends.kubernetes.run_state import record as records
from rlctl.backends.kubernetes.run_state import replicas
from rlctl.backends.kubernetes.run_state.desired_state import DesiredState, shares, stored_revision
from rlctl.backends.kubernetes.run_state.owner import check_ours, check_owner
from rlctl.backends.kubernetes.run_state.record import Record
from rlctl.backends.kubernetes.run_state.session import Session
from rlctl.backends.run_states import check_count, check_role
from rlctl.errors import Conflict, RlctlError, TimedOut
from rlctl.spec.names import DOMAIN, selector

RESTART_MANAGER: Final = "rlctl-restart"
"""Field manager of one annotation of the pod template, so that it survives the next `up`."""
_RECKONED_WITH: Final = ("learner", "evaluator", "replay")
"""Roles whose wanted number the manager uses: to step together, to judge a model together, and to divide the experience
that actors send."""
RESTARTED_AT: Final = f"{DOMAIN}/restarted-at"


def no_run(api: Api, run: str) -> Conflict:
    return Conflict(
        f"there is no run {run} in namespace {api.namespace} of context {api.context}",
        hint="rlctl status lists the runs.",
        objects=(run,),
    )


def known(api: Api, run: str) -> Record:
    """Find the record of a run that has to be there.

    Raises:
        Conflict: there is no such run here.
    """
    record = records.find(api, run)
    if record is None:
        raise no_run(api, run)
    return record


def live(session: Session, run: str) -> tuple[Record, DesiredState]:
    """A run that is up, and its present revision.

    Raises:
        Conflict: no such run, or it is down, or its first `up` has not finished.
    """
    record = known(session.api, run)
    if record.state.phase != "running":
        raise Conflict(f"run {run} is {record.state.phase}", hint="rlctl up SPEC starts it again.", objects=(run,))
    wanted = stored_revision(session.api, run, record.state.uid, record.state.revision)
    if wanted is None:
        raise Conflict(
            f"the first `up` of run {run} has not come to its end",
            hint="Run it again: it goes on where it stopped.",
            objects=(run,),
        )
    return record, wanted


def scale(session: Session, run: str, counts: Mapping[str, int]) -> Iterator[Applied]:
    """Change replica counts; see KubernetesBackend.scale."""
    record, wanted = live(session, run)
    check_owner(session, record, "scale")
    for role, count in counts.items():
        check_count(record.state, role, count)
    numbers = _numbers(wanted, counts)
    state = replace(record.state, replicas={**record.state.replicas, **counts})
    differing = _differing(session, numbers, record)
    if state == record.state and not differing:
        for key in numbers:
            yield Applied(str(key), "unchanged")
        _tell(session, wanted, state, counts)
        return
    with session.lock("scale").held() as hold:
        record, wanted = live(session, run)
        check_owner(session, record, "scale")
        numbers = _numbers(wanted, counts)  # an `up` may have created other workloads meanwhile
        state = replace(record.state, replicas={**record.state.replicas, **counts})
        differing = _differing(session, numbers, record)
        writer = Writer(session, hold)
        if state != record.state:
            writer.save(replace(record, state=state))
        actors = wanted.workloads("actor")
        for key, (thing, found) in differing.items():
            number = numbers[key]
            if key in actors:
                number = ramp.first(found.value, number, is_first=key == actors[0])
            if number != found.value:
                writer.set_count(thing, number, force=session.force)
                yield Applied(str(key), "changed", f"replicas: {found.value} -> {number}")
    _tell(session, wanted, state, counts)
    if "actor" in counts:
        yield from ramp.go_on(session, run, state, {key: numbers[key] for key in actors}, "scale")


def _numbers(wanted: DesiredState, counts: Mapping[str, int]) -> dict[Key, int]:
    """Replicas of each workload."""
    return {key: n for role, count in counts.items() for key, n in shares(wanted.workloads(role), count).items()}


def _tell(session: Session, wanted: DesiredState, state: RunState, counts: Mapping[str, int]) -> None:
    """Notify the manager of new numbers of roles that it waits for; with the old ones it works, too."""
    if not counts.keys() & set(_RECKONED_WITH):
        return
    try:
        session.ask("/reload", {"live": wanted.live_with(state.replicas)})
    except RlctlError as error:
        session.note(f"the manager has not heard of the new number: {error.message}; the same command tells it again")


def _differing(
    session: Session, numbers: Mapping[Key, int], record: Record
) -> dict[Key, tuple[Object, replicas.Count]]:  # fmt: skip
    """Workloads with another number of replicas.

    Raises:
        Conflict: one of them is not of this run.
        Refusal: another field manager has set the number of some, and it is not to be taken over.
    """
    found = {}
    for key, number in numbers.items():
        thing = session.api.get(key)
        if thing is not None:
            check_ours(thing, record.state.run, record.state.uid, session.api.namespace)
            now = replicas.count(thing)
            if now.value != number or now.whose == "unfinished":
                found[key] = (thing, now)
    rows = [replicas.row(key, now, numbers[key]) for key, (_, now) in found.items() if now.whose == "foreign"]
    if rows and not session.force:
        raise conflict(rows, run=record.state.run)
    return found


def restart(session: Session, run: str, role: str) -> Iterator[Applied]:
    """Replace a role's pods by its controller, one Deployment after the other; see KubernetesBackend.restart."""
    record, wanted = live(session, run)
    check_owner(session, record, "restart")
    check_role(record.state, role)
    at = session.now().strftime("%Y-%m-%dT%H:%M:%SZ")
    keys = wanted.workloads(role)
    for number, key in enumerate(keys):
        if number:
            _await_rolled_out(session, keys[number - 1], run, role)
        with session.lock("restart").held() as hold:
            thing = session.api.get(key)
            if thing is None or thing["metadata"].get("deletionTimestamp"):
                continue
            check_ours(thing, run, record.state.uid, session.api.namespace)
            try:
                Writer(session, hold).apply(
                    _annotated(thing, at), manager=RESTART_MANAGER, uid=thing["metadata"]["uid"]
                )  # fmt: skip
            except ApiError as error:
                if not error.conflicts:
                    raise
                raise Conflict(
                    f"{key}: {error.message}", objects=(str(key),),
                    hint=f"{kubectl(session.api)} rollout restart {key.kind.lower()} {key.name}",
                ) from error  # fmt: skip
        yield Applied(str(key), "restarted")


def _annotated(thing: Object, at: str) -> Object:
    return {
        "apiVersion": thing["apiVersion"],
        "kind": thing["kind"],
        "metadata": {"name": thing["metadata"]["name"]},
        "spec": {"template": {"metadata": {"annotations": {RESTARTED_AT: at}}}},
    }


def _await_rolled_out(session: Session, key: Key, run: str, role: str) -> None:
    """Wait until the pods of a restart are ready.

    Raises:
        TimedOut: the pods do not become ready.
    """
    progress: tuple[int, int] = (-1, -1)
    patience = session.patience(ramp.PATIENCE_S)
    for things in follow(session.api, key.kind, labels=selector(run, role)):
        thing = things.get(key.name)
        if thing is None:
            return
        done, updated, up, total = _rollout(thing)
        if done:
            return
        if (updated, up) != progress:
            progress = (updated, up)
            patience.moved()
        if patience.over(f"{key}: {updated} of {total} replicas restarted, {up} ready"):
            raise TimedOut(
                f"{key}: {updated} of {total} replicas were restarted and {up} are ready, and nothing moved for "
                f"{ramp.PATIENCE_S:g} s; the others of {role} were not restarted",
                hint=f"rlctl status {run} says why.",
                objects=(str(key),),
            )


def _rollout(thing: Object) -> tuple[bool, int, int, int]:
    """Whether a rolling update has finished; replicas updated, ready, and wanted."""
    status: dict[str, Any] = thing.get("status") or {}
    total = int((thing.get("spec") or {}).get("replicas", 1))
    updated, up = int(status.get("updatedReplicas") or 0), int(status.get("readyReplicas") or 0)
    seen = int(status.get("observedGeneration") or 0) >= int(thing["metadata"].get("generation") or 0)
    return seen and updated >= total and up >= total and int(status.get("replicas") or 0) <= total, updated, up, total
