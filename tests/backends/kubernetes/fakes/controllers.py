"""Controllers and nodes, a second at a time: pods come, become ready, and go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlctl.backends.kubernetes.api.interface import Key, Object
from rlctl.backends.kubernetes.diagnose.causes.base import age_s
from rlctl.spec.names import COMPONENT

if TYPE_CHECKING:
    from tests.backends.kubernetes.fakes.api import FakeApi

_SHOWN = 20
"""Pods of one workload that exist as objects; of more there is only the number."""


def run(api: FakeApi) -> None:
    for key in [key for key in api.objects if key.kind in ("Deployment", "StatefulSet")]:
        live = api.objects[key]
        if "deletionTimestamp" in live["metadata"]:
            if not _fewer(api, key, live):
                api.remove(key)
            continue
        _workload(api, key, live)
    for key in [key for key in api.objects if key.kind == "Pod"]:
        live = api.objects[key]
        over = live.get("status", {}).get("phase") in ("Succeeded", "Failed")
        if live["spec"].get("restartPolicy") == "Never" and not over:
            _alone(api, key, live)


def _alone(api: FakeApi, key: Key, live: Object) -> None:
    """A pod without a workload has done its work, or serves until its deadline."""
    limit_s = live["spec"].get("activeDeadlineSeconds")
    if limit_s is None:
        api.report(key, {"phase": "Succeeded"})
    elif age_s(live["metadata"]["creationTimestamp"], api.now()) > limit_s:
        api.report(key, {"phase": "Failed", "reason": "DeadlineExceeded"})
    elif live["metadata"]["labels"][COMPONENT] not in api.stuck:
        state = {"running": {"startedAt": live["metadata"]["creationTimestamp"]}}
        api.report(key, {"phase": "Running", "containerStatuses": [{"name": "main", "state": state}]})


def _workload(api: FakeApi, key: Key, live: Object) -> None:
    wanted = int(live["spec"].get("replicas", 1))
    ready = int((live.get("status") or {}).get("readyReplicas", 0))
    old = _old(api, key, live, ready)
    up = min(wanted, ready - old + (0 if key.name in api.stuck else api.step))
    old = api.old[key] = min(old, wanted - up)  # each stays until a new one can take its place
    updated = max(wanted - old, min(wanted, 1))
    new: dict[str, Any] = {"observedGeneration": live["metadata"]["generation"], "replicas": updated + old}
    up += old
    new |= {"updatedReplicas": updated, "readyReplicas": up, "availableReplicas": up}
    api.report(key, {name: value for name, value in new.items() if value})
    if key.kind == "StatefulSet":
        _pods(api, key, live, wanted, up)


def _old(api: FakeApi, key: Key, live: Object, ready: int) -> int:
    """Number of ready pods of a Deployment that were made from an earlier template."""
    template = live["spec"]["template"]
    before, api.templates[key] = api.templates.get(key, template), template
    return ready if key.kind == "Deployment" and before != template else api.old.get(key, 0)


def _pods(api: FakeApi, key: Key, live: Object, wanted: int, up: int) -> None:
    names = [f"{key.name}-{index}" for index in range(min(wanted, _SHOWN))]
    for index, name in enumerate(names):
        pod = Key("Pod", name)
        if pod not in api.objects:
            template = live["spec"]["template"]
            api.put(
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": {"name": name, "labels": dict(template["metadata"]["labels"])},
                    "spec": template["spec"],
                },
                manager="kube-controller-manager",
            )
        state = (
            {"running": {"startedAt": "2026-01-02T03:04:05Z"}} if index < up else {"waiting": {"reason": "Creating"}}
        )
        ready = {"type": "Ready", "status": "True" if index < up else "False"}
        container = {"name": "main", "ready": index < up, "restartCount": 0, "state": state}
        api.report(pod, {"phase": "Running", "conditions": [ready], "containerStatuses": [container]})
    for pod in _pods_of(api, key):
        if pod.name not in names:
            api.remove(pod)


def _fewer(api: FakeApi, key: Key, live: Object) -> int:
    """Let pods of a removed workload end; how many are left."""
    left = max(0, int((live.get("status") or {}).get("replicas", 0)) - api.step)
    if key.name in api.stuck:
        left = max(1, left)
    if left:
        api.report(key, {"replicas": left})
    else:
        orphaned(api, key)
    return left


def orphaned(api: FakeApi, key: Key) -> None:
    """Its pods go too."""
    for pod in _pods_of(api, key):
        api.remove(pod)


def _pods_of(api: FakeApi, key: Key) -> list[Key]:
    if key.kind not in ("Deployment", "StatefulSet"):
        return []
    stem = f"{key.name}-"
    return [
        pod for pod in list(api.objects)
        if pod.kind == "Pod" and pod.name.startswith(stem) and pod.name.removeprefix(stem).isdecimal()
    ]  # fmt: skip
