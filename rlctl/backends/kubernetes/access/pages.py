"""The pod that answers for a run."""

from __future__ import annotations

from typing import Final

from rlctl.backends.kubernetes.api.interface import Api, Key, Object
from rlctl.backends.kubernetes.diagnose import explain
from rlctl.backends.kubernetes.diagnose.causes.base import RelatedObjects, is_ready, name_of
from rlctl.errors import BackendUnreachable
from rlctl.spec import names

_FEW: Final = 20


def pod_of(api: Api, run: str, component: str, related: RelatedObjects) -> str:
    """Name of a pod that can answer for a component: ready rather than only running, young rather than old.

    Raises:
        BackendUnreachable: there is none; the message has the reason.
    """
    if component == "manager":  # a list by labels would read all pods of the namespace
        found = api.get(Key("Pod", f"{names.workload_name(run, component)}-0"))
        pods = [] if found is None else [found]
    else:
        pods = api.list("Pod", labels=names.selector(run, component), most=_FEW).items
    live = [pod for pod in pods if _runs(pod)]
    if live:
        return name_of(max(live, key=lambda pod: (is_ready(pod), str(pod["metadata"].get("creationTimestamp", "")))))
    why = next((cause for pod in pods if (cause := explain.of_pod(pod, related)) is not None), None)
    said = f" does not run: pod {name_of(pods[0])}: {why.text}" if why else " has no pod" if not pods else ""
    raise BackendUnreachable(
        f"the {component} of run {run}{said}",
        hint=why.next if why and why.next else f"rlctl status {run}",
        objects=(f"{component}/0",),
    )


def _runs(pod: Object) -> bool:
    """Whether a container of a pod runs, and the pod is not being deleted."""
    status, metadata = pod.get("status") or {}, pod.get("metadata") or {}
    states = [each.get("state") or {} for each in status.get("containerStatuses") or ()]
    return not metadata.get("deletionTimestamp") and any("running" in state for state in states)
