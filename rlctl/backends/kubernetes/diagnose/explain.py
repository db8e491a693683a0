"""Processes of a run from the API server's data on its workloads and pods: pure, no request is made here.

A healthy pod is only counted. Other pods are grouped by cause: a thousand actors without an image are one entry that
covers a thousand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Literal

from rlctl.backends.base import Process
from rlctl.backends.kubernetes.api.interface import Object
from rlctl.backends.kubernetes.diagnose import rollout
from rlctl.backends.kubernetes.diagnose.causes import admission, containers, images, nodes, scheduling
from rlctl.backends.kubernetes.diagnose.causes.base import (
    Cause,
    RelatedObjects,
    age_s,
    container_statuses,
    is_ready,
    moment,
    name_of,
    restarts,
)
from rlctl.backends.kubernetes.run_state import replicas
from rlctl.spec.base import Role
from rlctl.spec.words import duration

_REMEMBERED_S: Final = 3600.0
"""Seconds for which evicted or preempted pods are reported; others have taken their places."""
_LATELY_S: Final = 600.0
"""Seconds for which the restart of a pod that is healthy again is reported."""
_ON_THEIR_WAY_OUT: Final = ("exited", "stopping")
_MADE: Final = Cause("made", "is not made yet", "starting")
_ASKED_LATER: Final = Cause(
    "paced", "is not asked for yet: more come as these become ready", "starting",
    next="rlctl up SPEC  (goes on, if it was cut off)",
)  # fmt: skip
_RELEASED: Final = Cause(
    "released", "is not asked for: the run has ended, or rlctl up was cut off", "starting", next="rlctl up SPEC"
)
_REPLACED: Final = Cause("replaced", "is being replaced", "starting")
_UNSEEN: Final = Cause(
    "replaced", "is being replaced, or kept: its controller has not looked at the last change yet", "starting"
)


@dataclass(frozen=True, slots=True)
class Group:
    """Pods that do not run for the same cause."""

    cause: Cause
    pods: tuple[Object, ...]


def of_pod(pod: Object, related: RelatedObjects) -> Cause | None:
    """Cause for which a pod is not ready; None when it is."""
    found = nodes.ending(pod, related) or nodes.failed(pod)
    if found is not None or is_ready(pod):
        return found
    found = scheduling.cause(pod, related) or nodes.lost(pod, related)
    if found is not None:
        return found
    statuses = list(container_statuses(pod))
    for status, spec in statuses:
        found = (
            images.cause(pod, status, spec, related)
            or containers.config(pod, status, related)
            or containers.crash(pod, status, spec, related)
        )
        if found is not None:
            return found
    running = [status for status, _ in statuses if "running" in (status.get("state") or {})]
    return containers.unready(pod, related) if running else containers.creating(pod, related)


def of_workload(workload: Object, related: RelatedObjects) -> Cause | None:
    """Cause for which pods of a Deployment or StatefulSet were not created; None when nothing says so."""
    return admission.cause(workload, related) or admission.progress(workload)


def groups(pods: Sequence[Object], related: RelatedObjects, workloads: Sequence[Object] = ()) -> list[Group]:
    """Groups of pods that are not ready, by cause, the most frequent first; without those that ended long ago.

    Args:
        workloads: owners of the pods: the faults of a pod from before their last change no longer count.
    """
    found: dict[tuple[str, str], tuple[Cause, list[Object]]] = {}
    for pod in pods:
        cause = of_pod(pod, related)
        if cause is None or (cause.state == "exited" and _ended_s(pod, related.now) > _REMEMBERED_S):
            continue
        if cause.state not in _ON_THEIR_WAY_OUT and rollout.is_old(pod, workloads):
            cause = _REPLACED
        found.setdefault(cause.group, (cause, []))[1].append(pod)
    sets = [Group(cause, tuple(members)) for cause, members in found.values()]
    return sorted(sets, key=lambda group: (group.cause.state == "exited", -len(group.pods)))


def sentence(count: int, wanted: int, role: str, text: str) -> str:
    """ "412 of 1000 actors: image x does not exist in the registry"; for one replica the text alone."""
    return text if count == 1 else f"{count} of {max(wanted, count)} {role}s: {text}"


def stateful(
    role: Role, wanted: int, workload: Object | None, pods: Sequence[Object], related: RelatedObjects
) -> list[Process]:
    """One entry for each replica of a StatefulSet, by ordinal; those without a pod share one."""
    if workload is None:
        return [_absent(role, wanted, "StatefulSet")] if wanted else []
    by_ordinal = {ordinal(pod): pod for pod in pods}
    found = [_single(role, index, by_ordinal[index], workload, related) for index in sorted(by_ordinal)]
    missing = [index for index in range(wanted) if index not in by_ordinal]
    if missing:
        found.append(_missing(role, missing[0], len(missing), wanted, [workload], related))
    return sorted(found, key=lambda process: process.index)


def ordinal(pod: Object) -> int:
    """Number at the end of the name of a StatefulSet's pod; 0 for any other pod."""
    last = name_of(pod).rpartition("-")[2]
    return int(last) if last.isascii() and last.isdigit() else 0


def elastic(
    role: Role, wanted: int, workloads: Sequence[Object], found: Sequence[Group], related: RelatedObjects,
    pods: Sequence[Object] = (),
) -> list[Process]:  # fmt: skip
    """Entries for the replicas of a role's Deployments: the healthy ones, then the others by cause.

    Args:
        found: groups of the pods that were read, which need not be all; the figures come from the workloads.
        pods: pods that were read.
    """
    if not workloads:
        return [_absent(role, wanted, "Deployment")] if wanted else []
    ready, existing = counts(workloads, "readyReplicas"), counts(workloads, "replicas")
    active = [group for group in found if _counted(group)]
    shares = shared(max(0, existing - ready), [len(group.pods) for group in active])
    unexplained = max(0, existing - ready) - sum(shares)
    old = sum(map(rollout.old_ready, workloads))
    entries: list[Process] = []
    index = ready - old
    if index:
        entries.append(Process(role, 0, "running", count=index, lately=lately(pods, related)))
    old += sum(count for group, count in zip(active, shares, strict=True) if group.cause is _REPLACED)
    if old:
        entries.append(_replaced(role, index, old, wanted, workloads, related))
        index += old
    for group, count in zip(active, shares, strict=True):
        if group.cause is not _REPLACED:
            entries.append(_of_group(role, index, group, count, wanted))
            index += count
    if unexplained > 0:
        text = sentence(unexplained, wanted, role, "not ready yet")
        entries.append(Process(role, index, "starting", count=unexplained, reason=text))
        index += unexplained
    if (short := wanted - max(existing, ready + sum(shares))) > 0:
        entries.append(_missing(role, index, short, wanted, workloads, related))
        index += short
    for group in found:
        if group not in active:
            entries.append(_of_group(role, index, group, len(group.pods), wanted))
            index += len(group.pods)
    return entries


def _counted(group: Group) -> bool:
    """Whether the workload counts these pods: those that are over or ending have successors."""
    ending = (group.pods[0].get("metadata") or {}).get("deletionTimestamp")
    return group.cause.state not in _ON_THEIR_WAY_OUT and not ending


def shared(total: int, seen: Sequence[int]) -> list[int]:
    """Number of the `total` pods that have each cause, if the pods seen were only a part of them.

    Example:
        412 not ready, of which 150 + 50 were seen: 309 + 103.
    """
    read = sum(seen)
    if read == 0 or read >= total:
        return list(seen)
    parts = [total * count // read for count in seen]
    parts[0] += total - sum(parts)
    return parts


def counts(workloads: Sequence[Object], field: str) -> int:
    """Sum of a figure in the workloads' status."""
    return sum(int((workload.get("status") or {}).get(field) or 0) for workload in workloads)


def replicas_of(workload: Object) -> int:
    """Replicas that the workload itself requests."""
    replicas = (workload.get("spec") or {}).get("replicas")
    return 1 if replicas is None else int(replicas)


def _single(role: Role, index: int, pod: Object, workload: Object, related: RelatedObjects) -> Process:
    cause, name, again = of_pod(pod, related), name_of(pod), restarts(pod)
    if (cause is None or cause.state not in _ON_THEIR_WAY_OUT) and rollout.is_old(pod, [workload]):
        cause = _waiting_for(workload)
    if cause is not None:
        return _of_group(role, index, Group(cause, (pod,)), 1, 1)
    lines, said, started = _life_before(pod, related)
    return Process(
        role, index, "running", started=started, restarts=again, name=name, evidence=said, first_cause_lines=lines,
        lately=lately([pod], related),
    )  # fmt: skip


def lately(pods: Sequence[Object], related: RelatedObjects) -> str:
    """ "pong-learner-0 was restarted 4 min ago: exited 1: why", of pods that are healthy again; "" without one."""
    ended = sorted((ago_s, name_of(pod)) for pod in pods if (ago_s := _restarted_s(pod, related.now)) <= _LATELY_S)
    if not ended:
        return ""
    ago_s, name = ended[0]
    _, said, _ = _life_before(next(pod for pod in pods if name_of(pod) == name), related)
    why = f": {said}" if said else ""
    more = f"; {len(ended) - 1} more like it" if len(ended) > 1 else ""
    return f"{name} was restarted {duration(ago_s)} ago{why}{more}"


def _restarted_s(pod: Object, now: datetime) -> float:
    """Seconds since a container of a healthy pod last ended; infinity when none has."""
    if not is_ready(pod):
        return math.inf
    ended = [
        age_s(over.get("finishedAt"), now)
        for status, _ in container_statuses(pod)
        if status.get("restartCount") and (over := (status.get("lastState") or {}).get("terminated"))
    ]
    return min(ended, default=math.inf)


def _life_before(pod: Object, related: RelatedObjects) -> tuple[tuple[str, ...], str, datetime | None]:
    """Last restart of a container that is healthy now: last log lines and cause; and the start of its present life."""
    lines: tuple[str, ...] = ()
    said, started = "", None
    for status, spec in container_statuses(pod):
        begun = moment(((status.get("state") or {}).get("running") or {}).get("startedAt"))
        started = max(filter(None, (started, begun)), default=None)
        ended = {**status, "state": status.get("lastState") or {}}
        if status.get("restartCount") and (cause := containers.crash(pod, ended, spec, related)) is not None:
            lines, said = cause.lines, f"{status.get('name')} {cause.text}"
    return lines, said, started


def _of_group(role: Role, index: int, group: Group, count: int, wanted: int) -> Process:
    entry = _of_cause(role, index, group.cause, name_of(group.pods[0]), count, wanted)
    return replace(entry, restarts=max(map(restarts, group.pods)))


def _of_cause(role: Role, index: int, cause: Cause, name: str, count: int, wanted: int) -> Process:
    return Process(
        role, index, cause.state, reason=sentence(count, wanted, role, cause.text), name=name, count=count,
        permanent=cause.permanent, evidence=cause.evidence, next=cause.next, first_cause_lines=cause.lines,
        lacks=_lacks(cause),
    )  # fmt: skip


def _lacks(cause: Cause) -> Literal["", "node", "readiness"]:
    if cause.kind.startswith("unschedulable") or cause.kind in ("gang-waiting", "gated", "scale-up-failed"):
        return "node"
    return "readiness" if cause.kind in ("probe", "not-ready") else ""


def _waiting_for(*workloads: Object) -> Cause:
    """Cause of replicas from before the last change of workloads."""
    return _REPLACED if any(map(rollout.taken_up, workloads)) else _UNSEEN


def _replaced(
    role: Role, index: int, count: int, wanted: int, workloads: Sequence[Object], related: RelatedObjects
) -> Process:
    """Replicas of Deployments from before the last change; and why their successors are refused, if they are."""
    late = [workload for workload in workloads if rollout.old_ready(workload)] or workloads
    cause = _waiting_for(*late)
    refused = next((found for each in late if (found := admission.cause(each, related)) is not None), None)
    if refused is not None:
        cause = replace(refused, text=f"{cause.text}, but its successor cannot be made: {refused.text}")
    name = f"{late[0].get('kind')} {name_of(late[0])}"
    return _of_cause(role, index, cause, name, count, wanted)


def _missing(
    role: Role, index: int, count: int, wanted: int, workloads: Sequence[Object], related: RelatedObjects
) -> Process:
    """Replicas that are wanted and were not created."""
    cause = next((found for workload in workloads if (found := of_workload(workload, related)) is not None), None)
    asked_for = sum(replicas_of(workload) for workload in workloads)
    name = f"{workloads[0].get('kind')} {name_of(workloads[0])}"
    if cause is None and asked_for < wanted:
        theirs = next((number for each in workloads if (number := replicas.count(each)).whose == "foreign"), None)
        if theirs is not None:
            text = sentence(count, wanted, role, f"{theirs.by} has scaled it to {asked_for}")
            again = f"rlctl scale {role}={wanted}  (or rlctl scale {role}={asked_for}, to agree)"
            return Process(role, index, "stopped", count=count, reason=text, name=name, next=again)
        cause = _ASKED_LATER if asked_for else _RELEASED
    cause = cause or _MADE
    return _of_cause(role, index, cause, name, count, wanted)


def _absent(role: Role, wanted: int, kind: str) -> Process:
    text = sentence(wanted, wanted, role, f"the {kind} does not exist")
    return Process(role, 0, "stopped", count=wanted, reason=text, next="rlctl up SPEC  (makes it again)")


def _ended_s(pod: Object, now: datetime) -> float:
    """Seconds since a pod that is over ended; 0 when nothing says when."""
    times = [str(each.get("lastTransitionTime")) for each in (pod.get("status") or {}).get("conditions") or ()]
    times += [
        str(((status.get("state") or {}).get("terminated") or {}).get("finishedAt"))
        for status, _ in container_statuses(pod)
    ]
    known = [found for text in times if (found := moment(text)) is not None]
    return max(0.0, (now - max(known)).total_seconds()) if known else 0.0


def wants_events(cause: Cause) -> bool:
    """Whether events may say more than the status of the pod does."""
    told = ("creating", "not-ready", "image", "signal-9", "signal-15", "ends", "claim-pending")
    return cause.kind in told or cause.kind.startswith("unschedulable")


def wants_log(cause: Cause) -> bool:
    """Whether the last log lines of the previous life are missing."""
    crashed = cause.kind in ("crash", "oom", "ends") or cause.kind.startswith("signal-")
    return crashed and not cause.lines
