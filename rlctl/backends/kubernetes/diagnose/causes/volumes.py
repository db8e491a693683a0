"""Causes of a volume that does not exist, or is not bound or not mounted."""

from __future__ import annotations

import re

from rlctl.backends.kubernetes.api.interface import Object
from rlctl.backends.kubernetes.diagnose.causes.base import (
    Cause,
    RelatedObjects,
    State,
    age_s,
    describe,
    evidence,
    name_of,
    namespaced,
    settled,
)

FIRST_TRIES_S = 30.0
_BOUND_SOON_S = 30.0
"""Seconds within which a provisioner creates a volume."""


def claims_of(pod: Object) -> list[str]:
    """Names of the claims that a pod mounts."""
    volumes = (pod.get("spec") or {}).get("volumes") or ()
    found = [(volume.get("persistentVolumeClaim") or {}).get("claimName") for volume in volumes]
    return [str(name) for name in found if name]


def unbound(pod: Object, message: str, related: RelatedObjects) -> Cause | None:
    """Cause in the scheduler's message about claims: missing, or not bound; None when it is about something else."""
    if missing := re.search(r'persistentvolumeclaim "([^"]+)" not found', message):
        return settled(pod, related, Cause(
            "claim-missing", f"there is no PersistentVolumeClaim {missing[1]}", "failed",
            evidence("Unschedulable", message), f"kubectl{namespaced(pod)} get pvc", permanent=True,
        ))  # fmt: skip
    if "unbound immediate PersistentVolumeClaims" not in message and "being deleted" not in message:
        return None
    for name in claims_of(pod):
        if name in related.claims and (found := claim(related.claims[name], related)) is not None:
            return found
    return Cause(
        "claim-pending", "its volume is not bound yet", "starting", evidence("Unschedulable", message),
        f"kubectl{namespaced(pod)} get pvc",
    )  # fmt: skip


def claim(found: Object, related: RelatedObjects) -> Cause | None:
    """Cause for which a PersistentVolumeClaim is not bound; None when it is."""
    phase = (found.get("status") or {}).get("phase")
    if phase == "Bound":
        return None
    name, spec = name_of(found), found.get("spec") or {}
    show, storage_class = describe(found, "pvc"), spec.get("storageClassName")
    modes = ", ".join(spec.get("accessModes") or ())
    if phase == "Lost":
        text = f"the volume of claim {name} is gone"
        return Cause("claim-lost", text, "failed", f"claim {name} is in phase Lost", show, permanent=True)
    events = related.of("PersistentVolumeClaim", name, "ProvisioningFailed", "FailedBinding", "ProvisionerError")
    for event in events:
        reason, message = str(event.get("reason")), str(event.get("message", ""))
        said = evidence(reason, message)
        if re.search(r"storageclass(?:\.storage\.k8s\.io)? \"[^\"]*\" not found", message):
            return Cause(
                "class-missing", f"claim {name} asks for the storage class {storage_class}, which does not exist",
                "failed", said, "kubectl get storageclass  (set storage.class to one that shares between nodes)",
                permanent=True,
            )  # fmt: skip
        if "no storage class is set" in message:
            return Cause(
                "class-missing", f"claim {name} names no storage class, and the cluster has no default one", "failed",
                said, "kubectl get storageclass  (set storage.class, or storage.claim to an existing claim)",
                permanent=True,
            )  # fmt: skip
        if re.search(r"access ?mode|ReadWriteMany|MULTI_NODE_MULTI_WRITER|multi.?node", message, re.IGNORECASE):
            return Cause(
                "class-not-shared",
                f"storage class {storage_class} cannot share a volume between nodes ({modes}), and a run needs that",
                "failed", said, "kubectl get storageclass  (CFS, EFS, Filestore, NFS and CephFS classes can)",
                permanent=True,
            )  # fmt: skip
        text = f"the volume of claim {name} cannot be made by class {storage_class}; the cluster goes on trying"
        return Cause("claim-failed", text, "backoff", said, show)
    waited_s = age_s((found.get("metadata") or {}).get("creationTimestamp"), related.now)
    waiting = related.of("PersistentVolumeClaim", name)
    said = evidence(str(waiting[0].get("reason")), str(waiting[0].get("message", ""))) if waiting else ""
    if waited_s < _BOUND_SOON_S:
        return Cause("claim-pending", f"the volume of claim {name} is being made", "starting", said, show)
    text = f"no provisioner makes the volume of claim {name} (class {storage_class}, {modes})"
    return Cause("claim-pending", text, "backoff", said, show)


def mount(pod: Object, related: RelatedObjects) -> Cause | None:
    """Cause for which a volume of a scheduled pod is not mounted; None when no event says so."""
    for event in related.of("Pod", name_of(pod), "FailedMount", "FailedAttachVolume", "FailedMapVolume"):
        reason, message = str(event.get("reason")), str(event.get("message", ""))
        if "failed to sync" in message:
            continue  # a node that has just been assigned the pod, and does not know its objects yet
        if "timed out waiting for the condition" in message and len(related.of("Pod", name_of(pod), reason)) > 1:
            continue  # sums up the others, and says less
        return _mount(pod, related, reason, message)
    return None


def _mount(pod: Object, related: RelatedObjects, reason: str, message: str) -> Cause:
    said, show = evidence(reason, message), describe(pod)
    volume = named[1] if (named := re.search(r'for volume "([^"]+)"', message)) else ""
    if missing := re.search(r'(secret|configmap|persistentvolumeclaim) "([^"]+)" not found', message, re.IGNORECASE):
        kind = {"secret": "Secret", "configmap": "ConfigMap"}.get(missing[1].lower(), "PersistentVolumeClaim")
        text = f"there is no {kind} {missing[2]}, which it mounts"
        again = f"kubectl{namespaced(pod)} get {kind.lower()}s  (rlctl up writes its own again)"
        return settled(pod, related, Cause("mount-object-missing", text, "failed", said, again, permanent=True))
    if key := re.search(r"references non-existent (config|secret) key:? (\S+)", message):
        kind = "Secret" if key[1] == "secret" else "ConfigMap"
        text = f"the {kind} of its volume {volume} has no key {key[2].rstrip('.')}"
        return settled(pod, related, Cause("mount-key-missing", text, "failed", said, show, permanent=True))
    if "Multi-Attach" in message:
        return Cause(
            "volume-held",
            "its volume is attached to another node: the storage class does not share volumes between nodes", "backoff",
            said, "kubectl get storageclass  (set storage.class to one that shares: CFS, EFS, Filestore, NFS, CephFS)",
            key="volume-held",
        )  # fmt: skip
    if driver := re.search(r"driver name (\S+) not found in the list of registered CSI drivers", message):
        text = f"the storage driver {driver[1]} does not run on its node"
        return Cause("volume-driver", text, "backoff", said, "kubectl get csinodes")
    if re.search(r"mount\.nfs|nfs", message) and re.search(r"access denied|permission denied", message, re.IGNORECASE):
        text = "the file server does not let the node mount its volume"
        return Cause("volume-denied", text, "backoff", said, show)
    away = re.search(r"timed out|no route|refused|unreachable", message, re.IGNORECASE)
    if away and re.search(r"mount\.nfs|\bnfs\b", message):
        text = "its node cannot reach the file server of the volume"
        return Cause("volume-unreachable", text, "backoff", said, show)
    verb = "attached to its node" if reason == "FailedAttachVolume" else "mounted"
    text = f"its volume cannot be {verb}; the cluster goes on trying"
    return Cause("volume", text, still(pod, related), said, show, key=reason)


def still(pod: Object, related: RelatedObjects) -> State:
    """`starting` for a while, then `backoff`: a first attempt on a node often fails, and that is not worth a report."""
    return "starting" if age_s((pod.get("status") or {}).get("startTime"), related.now) < FIRST_TRIES_S else "backoff"
