"""Replicas of a workload from before its last change. Pure: no request is made here.

Their controller replaces them step by step. Until then they are ready, but not what was requested: an `up` that waits
must neither count them, nor give up for what was wrong with them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from rlctl.backends.kubernetes.api.interface import Object
from rlctl.backends.kubernetes.diagnose.causes.base import condition, name_of

REVISION: Final = "controller-revision-hash"
"""Label of a StatefulSet's pod: revision of the template that it was created from."""
_NEWEST = re.compile(r'^(?:ReplicaSet|Created new replica set|Found new replica set) "([^"]+)"')
"""Message of a Deployment's condition Progressing that names the ReplicaSet of its present template."""


def taken_up(workload: Object) -> bool:
    """Whether the controller has seen the last change; before that its figures describe the former template."""
    seen = (workload.get("status") or {}).get("observedGeneration") or 0
    return int(seen) >= int((workload.get("metadata") or {}).get("generation") or 0)


def old_ready(deployment: Object) -> int:
    """Ready replicas of a Deployment that may be old ones: all of them while its controller has not seen the change.

    The status counts ready replicas and updated ones, not those that are both: the old are assumed to be ready.
    """
    status = deployment.get("status") or {}
    ready, existing = int(status.get("readyReplicas") or 0), int(status.get("replicas") or 0)
    if not taken_up(deployment):
        return ready
    return min(ready, max(0, existing - int(status.get("updatedReplicas") or 0)))


def new_ready(deployment: Object) -> int:
    """Ready replicas of a Deployment that certainly have its present template; at the end of a rollout: all."""
    return int((deployment.get("status") or {}).get("readyReplicas") or 0) - old_ready(deployment)


def is_old(pod: Object, workloads: Sequence[Object]) -> bool:
    """Whether a pod waits for its replacement; False if nothing tells.

    Args:
        workloads: workloads that may own the pod.
    """
    metadata = pod.get("metadata") or {}
    owners = metadata.get("ownerReferences") or ()
    owner = next((str(each.get("name", "")) for each in owners if each.get("controller")), "")
    for workload in workloads:
        name = name_of(workload)
        if workload.get("kind") == "StatefulSet":
            newest = str((workload.get("status") or {}).get("updateRevision") or "")
            made_from = str((metadata.get("labels") or {}).get(REVISION) or "")
            return not taken_up(workload) or bool(newest and made_from and newest != made_from)
        if owner.rpartition("-")[0] == name:
            found = _NEWEST.match(str(condition(workload, "Progressing").get("message", "")))
            return not taken_up(workload) or (found is not None and found[1] != owner)
    return False
