"""Listing of runs, and of the processes of one: figures from workloads; pods where there are few, or some unhealthy.

A run of 10,000 healthy actors costs a handful of requests, any run at most MOST_REQUESTS.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from rlctl.backends.base import Failure, Process, RunState
from rlctl.backends.kubernetes.access import control
from rlctl.backends.kubernetes.api.interface import Api, ApiError, Key, Object, in_context
from rlctl.backends.kubernetes.diagnose import explain
from rlctl.backends.kubernetes.diagnose.causes import containers, volumes
from rlctl.backends.kubernetes.diagnose.causes.base import (
    Cause,
    RelatedObjects,
    container_statuses,
    indexed,
    is_ready,
    name_of,
    restarts,
)
from rlctl.backends.kubernetes.diagnose.causes.containers import LAST_LINES
from rlctl.backends.kubernetes.diagnose.explain import Group
from rlctl.backends.kubernetes.run_state import record
from rlctl.backends.kubernetes.run_state.inventory import role_of
from rlctl.backends.kubernetes.run_state.record import Record
from rlctl.backends.run_states import ENDS, newest_first
from rlctl.errors import RlctlError
from rlctl.spec import names
from rlctl.spec.base import ROLES, Role

MOST_REQUESTS: Final = 15
"""Requests of one call of `processes`, at most; a whole `status` makes at most seven more."""
PODS_READ: Final = 500
"""Pods read of one kind of trouble, at most: if there are more, all causes are counted from these."""
_PAGE: Final = 500
"""Objects of one page of a list."""
_FEW: Final = 100
"""Pods of a role that are all read, at most, so that restarts of healthy ones can be reported."""
_CAUSES_LOOKED_INTO: Final = 3
_LOGS_READ: Final = 3
_LOGS_S: Final = 1.5
"""Seconds for all logs together: on a node that is gone they would take a minute."""
_CLAIMS_READ: Final = 2
_EVENTS_READ: Final = 50
_ANSWER_S: Final = 3.0

Now = Callable[[], datetime]


def runs(api: Api, broken: Callable[[RlctlError], object] | None = None) -> list[RunState]:
    """Every run of the namespace, live or not, newest first: one request.

    Args:
        broken: called with the error of each run whose record cannot be read, which is left out; None: raise it.
    """
    things = api.list("ConfigMap", labels=f"{names.MANAGED_BY}={names.MANAGER},!{names.COMPONENT}").items
    records = [thing for thing in things if name_of(thing).endswith(names.state_name(""))]
    return newest_first((partial(_state_of, each, api) for each in records), broken)


def _state_of(config_map: Object, api: Api) -> RunState:
    return _with_failure(record.of(config_map, api))


def _with_failure(known: Record) -> RunState:
    """The recorded state; if the run had failed before it was taken down, with the failure."""
    state = known.state
    return replace(state, failure=_failure(known.final)) if state.phase == "failed" else state


def find(api: Api, run: str) -> RunState | None:
    """The run of that name, or None.

    If the learner has been released, the manager is asked whether the run is over: two or three requests, else two.

    Raises:
        BackendUnreachable: its record is torn or foreign.
    """
    known = record.find(api, run)
    if known is None:
        return None
    state = _with_failure(known)
    if state.phase != "running" or not state.replicas.get("learner"):
        return state
    learner = api.get(Key("StatefulSet", names.workload_name(run, "learner")))
    if learner is None or explain.replicas_of(learner):
        return state
    try:
        return as_told(state, control.ask(api, run, "GET", "/status", timeout_s=_ANSWER_S))
    except RlctlError:
        return state


def as_told(state: RunState, status: Any) -> RunState:
    """The state with the phase that the run's manager reports: only the manager knows that a run is over."""
    phase = status.get("phase") if isinstance(status, dict) else None
    ended = ENDS.get(str(phase))
    if state.phase != "running" or ended is None:
        return state
    return replace(state, phase=ended, failure=_failure(status) if ended == "failed" else None, stays=True)


def _failure(status: Mapping[str, Any] | None) -> Failure | None:
    """Failure in a manager's status; None if there is none."""
    try:
        told = (status or {})["failure"]
        return Failure(str(told["process"]), str(told["text"]), (), datetime.fromisoformat(told["at"]))
    except (KeyError, TypeError, ValueError):
        return None


def processes(api: Api, state: RunState, now: Now = lambda: datetime.now(UTC)) -> list[Process]:
    """Every replica that is wanted or exists, in role and index order; healthy ones are only counted.

    Args:
        now: clock by which ages are measured.
    """
    if not state.managed:
        return [
            Process(role, 0, "stopped", count=count, reason="the run was taken down")
            for role in ROLES
            if (count := state.replicas.get(role, 0))
        ]
    look = _Listing(api, state, now())
    return look.processes()


def unwell(api: Api, state: RunState, role: str | None = None) -> list[Object]:
    """Pods of a role, or of all, that are unhealthy or have been restarted; at most as many as the causes need.

    Raises:
        ApiError: pods may not be read.
    """
    look = _Listing(api, state, datetime.now(UTC))
    return [pod for each in ROLES if role in (None, each) for pod in look.unwell(each)]


def cause_of(api: Api, state: RunState, pod: Object, now: datetime) -> Cause | None:
    """Cause for which a pod that is no role of the run is not ready, also by events and claims; None: it is ready.

    Raises:
        ApiError: the server does not answer.
    """
    related = RelatedObjects(now)
    if (found := explain.of_pod(pod, related)) is None:
        return None
    if found.kind == "ended":  # it is not restarted, so its container has the cause
        crashes = (containers.crash(pod, status, spec, related) for status, spec in container_statuses(pod))
        return next(filter(None, crashes), found)
    (group, *_) = _Listing(api, state, now).looked_into({"manager": [Group(found, (pod,))]})[
        "manager"
    ]  # any key will do
    return group.cause


class _Listing:
    """State of one listing: its budget of requests, and the objects read."""

    def __init__(self, api: Api, state: RunState, now: datetime) -> None:
        self._api, self._state, self._now = api, state, now
        self._budget = MOST_REQUESTS
        self._selector = names.selector(state.run)
        self._workloads: dict[str, list[Object]] = {}
        self._related = RelatedObjects(now)

    def unwell(self, role: Role) -> list[Object]:
        """Pods of a role that are not ready, or were restarted."""
        self._read_workloads()
        pods = self._core_pods([role])[role] if role in names.STATEFUL else self._elastic_pods(role)
        return [pod for pod in pods if not is_ready(pod) or restarts(pod)]

    def _read_workloads(self) -> None:
        if self._workloads:
            return
        for kind in ("StatefulSet", "Deployment"):
            # bounded, and so never from a cache: an old list would show a rollout as done before it has begun
            for workload in self._list(kind, self._selector, most=_PAGE):
                self._workloads.setdefault(role_of(workload), []).append({"kind": kind, **workload})

    def processes(self) -> list[Process]:
        """Entries of all roles."""
        self._read_workloads()
        over = self._state.stays
        live = ("manager",) if over else ROLES
        wanted: dict[Role, int] = {role: self._state.replicas.get(role, 0) for role in live}
        stateful = [role for role in wanted if role in names.STATEFUL and (wanted[role] or role in self._workloads)]
        elastic = [role for role in wanted if role not in names.STATEFUL and (wanted[role] or role in self._workloads)]
        core = self._core_pods(stateful)
        pods = core | {role: self._elastic_pods(role) for role in elastic}
        found = {role: explain.groups(pods[role], self._related, self._workloads.get(role, ())) for role in pods}
        found = self.looked_into(found)
        entries: list[Process] = []
        for role in ROLES:
            count = self._state.replicas.get(role, 0)
            if role in stateful:
                workload = next(iter(self._workloads.get(role, ())), None)
                entries += explain.stateful(role, count, workload, core.get(role, ()), self._related)
            elif role in elastic:
                workloads = sorted(self._workloads.get(role, ()), key=_shard)
                entries += explain.elastic(role, count, workloads, found[role], self._related, pods[role])
            elif count and over:
                entries.append(Process(role, 0, "exited", count=count, reason=f"the run has {self._state.phase}"))
        return [replace(entry, next=in_context(self._api, entry.next)) for entry in entries]

    def _core_pods(self, roles: Sequence[Role]) -> dict[Role, list[Object]]:
        """Pods of the stateful roles, by role."""
        found: dict[Role, list[Object]] = {role: [] for role in roles}
        if any(explain.replicas_of(each) for role in roles for each in self._workloads.get(role, ())):
            listed = ",".join(roles)
            for pod in self._list("Pod", f"{self._selector},{names.COMPONENT} in ({listed})", most=2 * PODS_READ):
                role = next((each for each in roles if each == role_of(pod)), None)
                if role is not None:
                    found[role].append(pod)
        return found

    def _elastic_pods(self, role: Role) -> list[Object]:
        """All pods of a small role; of a large one those that are not ready, or as many as are needed to know why."""
        workloads = self._workloads.get(role, [])
        if 0 < max(explain.counts(workloads, "replicas"), sum(map(explain.replicas_of, workloads))) <= _FEW:
            selector = f"{self._selector},{names.COMPONENT}={role}"
            return self._list("Pod", selector, fields="status.phase!=Succeeded", most=PODS_READ)
        short = [each for each in workloads if _unready(each) > 0]
        lacking = sum(explain.replicas_of(each) for each in workloads) > explain.counts(workloads, "readyReplicas")
        if not short and not lacking:
            return []
        selector = f"{self._selector},{names.COMPONENT}={role}"
        waiting = self._list("Pod", selector, fields="status.phase!=Running,status.phase!=Succeeded", most=PODS_READ)
        unready = sum(map(_unready, short))
        active = [pod for pod in waiting if (pod.get("status") or {}).get("phase") != "Failed"]
        if len(active) >= unready or not short:
            return waiting
        if any(names.SHARD in _template_labels(each) for each in short):
            shards = sorted({str(_template_labels(each).get(names.SHARD, "")) for each in short}, key=len)
            selector = f"{selector},{names.SHARD} in ({','.join(shards)})"
        running = self._list("Pod", selector, fields="status.phase=Running", most=2 * PODS_READ)
        return waiting + [pod for pod in running if not is_ready(pod)]

    def looked_into(self, found: dict[Role, list[Group]]) -> dict[Role, list[Group]]:
        """The groups again, with causes from the events, logs and claims of sample pods."""
        events = self._refusals()
        claims: dict[str, Object] = {}
        logs: dict[str, list[str]] = {}
        ordered = sorted((group for groups in found.values() for group in groups), key=lambda group: -len(group.pods))
        asking = [group for group in ordered if explain.wants_events(group.cause)][:_CAUSES_LOOKED_INTO]
        for group in asking:
            for pod in _sample(group):
                events += self._events(name_of(pod))
            for name in volumes.claims_of(group.pods[0]) if group.cause.kind in ("claim-pending", "creating") else ():
                if name not in claims and len(claims) < _CLAIMS_READ and (claim := self._claim(name)) is not None:
                    claims[name] = claim
                    events += self._events(name) if (claim.get("status") or {}).get("phase") != "Bound" else []
        end = time.monotonic() + _LOGS_S
        for group in [group for group in ordered if explain.wants_log(group.cause)][:_LOGS_READ]:
            logs[name_of(group.pods[0])] = self._log(group.pods[0], end - time.monotonic())
        if not (events or claims or logs):
            return found
        self._related = RelatedObjects(self._now, indexed(events), claims, logs)
        looked = {id(group) for group in ordered if group in asking or name_of(group.pods[0]) in logs}
        return {
            role: [part for group in groups for part in (self._again(group) if id(group) in looked else [group])]
            for role, groups in found.items()
        }

    def _again(self, group: Group) -> list[Group]:
        """The group with the cause of its sampled pods; split if these differ."""
        told = [(pod, explain.of_pod(pod, self._related) or group.cause) for pod in _sample(group)]
        if len({cause.group for _, cause in told}) == 1:
            return [Group(told[0][1], group.pods)]
        parts = [Group(cause, (pod,)) for pod, cause in told if cause.group != group.cause.group]
        apart = [part.pods[0] for part in parts]
        rest = tuple(pod for pod in group.pods if pod not in apart)
        return [*parts, Group(group.cause, rest)] if rest else parts

    def _refusals(self) -> list[Object]:
        """Events about pods that could not be created, if some are missing; they belong to the pods' owners."""
        short = any(
            explain.counts([each], "replicas") < explain.replicas_of(each)
            for workloads in self._workloads.values()
            for each in workloads
        )
        return self._list("Event", fields="type=Warning,reason=FailedCreate", most=PODS_READ) if short else []

    def _events(self, name: str) -> list[Object]:
        return self._list("Event", fields=f"involvedObject.name={name}", most=_EVENTS_READ)

    def _claim(self, name: str) -> Object | None:
        self._budget -= 1
        try:
            return self._api.get(Key("PersistentVolumeClaim", name)) if self._budget >= 0 else None
        except ApiError:
            return None

    def _log(self, pod: Object, within_s: float) -> list[str]:
        self._budget -= 1
        if self._budget < 0 or within_s <= 0:
            return []
        try:
            return list(self._api.pod_log(name_of(pod), previous=True, tail=4 * LAST_LINES, within_s=within_s))
        except RlctlError:
            return []

    def _list(self, kind: str, labels: str = "", *, fields: str = "", most: int | None = None) -> list[Object]:
        """Objects; none if they may not be listed or are beyond the budget: these only explain.

        Raises:
            ApiError: pods or workloads may not be read, or the server does not answer.
        """
        if self._budget <= 0:
            return []
        self._budget -= 1
        try:
            found = self._api.list(kind, labels=labels, fields=fields, most=most).items
        except ApiError as error:
            if kind == "Event" and error.status == 403:
                return []
            raise
        self._budget -= max(0, len(found) - 1) // _PAGE
        return found


def _sample(group: Group) -> list[Object]:
    """Sample pods of a group: the first and the last."""
    return [group.pods[0], group.pods[-1]] if len(group.pods) > 1 else [group.pods[0]]


def _unready(workload: Object) -> int:
    return explain.counts([workload], "replicas") - explain.counts([workload], "readyReplicas")


def _template_labels(workload: Object) -> dict[str, Any]:
    template = (workload.get("spec") or {}).get("template") or {}
    return dict((template.get("metadata") or {}).get("labels") or {})


def _shard(workload: Object) -> tuple[int, str]:
    shard = str(_template_labels(workload).get(names.SHARD, ""))
    return (int(shard) if shard.isdigit() else -1), name_of(workload)
