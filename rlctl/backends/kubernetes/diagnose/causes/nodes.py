"""Causes of a pod whose node failed, or that had to leave its node."""

from __future__ import annotations

import re

from rlctl.backends.kubernetes.api.interface import Object
from rlctl.backends.kubernetes.diagnose.causes.base import (
    Cause,
    RelatedObjects,
    age_s,
    condition,
    describe,
    evidence,
    name_of,
    namespaced,
)
from rlctl.spec.words import duration

_OVERDUE_S = 30.0
"""Seconds after the end of its grace period for which a deleted pod counts as ending, not as stuck."""
_DISK_LIMIT = re.compile(
    r'exceed(?:s the|ed its)(?: total| local ephemeral storage)? limit (?:of containers )?"?([0-9]\w*)'
)


def failed(pod: Object) -> Cause | None:
    """Cause for which a pod is over for good, and another replaces it. None when it is not."""
    status = pod.get("status") or {}
    if status.get("phase") not in ("Failed", "Succeeded"):
        return None
    reason, message = str(status.get("reason", "")), str(status.get("message", ""))
    disrupted = condition(pod, "DisruptionTarget")
    why = str(disrupted.get("reason", "")) if disrupted.get("status") == "True" else ""
    said = evidence(reason, message) or evidence(why, str(disrupted.get("message", "")))
    node = str((pod.get("spec") or {}).get("nodeName", ""))
    show = describe(pod)
    if why == "PreemptionByScheduler" or reason in ("Preempting", "Preempted"):
        return Cause("preempted", "made room for pods of a higher priority", "exited", said, show)
    if reason == "Evicted" or why == "TerminationByKubelet":
        return _evicted(pod, message, said)
    if why == "DeletionByTaintManager":
        text = "had to leave its node, which was tainted or did not answer"
        return Cause("node-tainted", text, "exited", said, show)
    if why == "EvictionByEvictionAPI":
        return Cause("drained", "had to leave its node, which was drained", "exited", said, show)
    if reason in ("NodeShutdown", "Terminated", "Shutdown"):
        return Cause("node-shutdown", f"its node {node} was shut down", "exited", said, show, key="node-shutdown")
    if reason in ("NodeLost", "DeletionByPodGC") or why == "DeletionByPodGC":
        return Cause("node-gone", f"its node {node} is gone", "exited", said, "kubectl get nodes", key="node-gone")
    if reason == "UnexpectedAdmissionError" or reason.startswith(("OutOf", "NodeAffinity", "NodeName", "NodePorts")):
        text = f"its node {node} refused it: {reason}"
        return Cause("node-refused", text, "exited", said, show, key=reason)
    if reason == "DeadlineExceeded":
        return Cause("deadline", "was ended: it may not live longer (activeDeadlineSeconds)", "exited", said, show)
    text = f"has failed: {reason}" if reason else "has failed"
    if status.get("phase") == "Succeeded":
        text = "ended in good order"
    return Cause("ended", text, "exited", said, show)


def _evicted(pod: Object, message: str, said: str) -> Cause:
    show = describe(pod)
    if limit := _DISK_LIMIT.search(message):
        text = f"was evicted: it wrote more to its own disk than its limit of {limit[1]}"
        return Cause("evicted-disk-limit", text, "exited", said, "raise ephemeral-storage by a patch, or write less")
    if short := re.search(r"low on resource: \[?([\w.-]+)\]?", message):
        text = f"was evicted: its node ran short of {short[1].rstrip('.')}"
        again = f"{show}  (a pod that asks for what it uses is evicted last)"
        return Cause(f"evicted-{short[1].rstrip('.')}", text, "exited", said, again)
    if pressure := re.search(r"condition: \[?(\w+Pressure)", message):
        text = f"was evicted: its node is under {pressure[1]}"
        return Cause(f"evicted-{pressure[1]}", text, "exited", said, show)
    return Cause("evicted", "was evicted from its node", "exited", said, show)


def lost(pod: Object, related: RelatedObjects) -> Cause | None:
    """Cause of a pod whose node does not answer; None when nothing says so."""
    node = str((pod.get("spec") or {}).get("nodeName", ""))
    ready = condition(pod, "Ready")
    events = related.of("Pod", name_of(pod), "NodeNotReady", "TaintManagerEviction")
    silent = str((pod.get("status") or {}).get("reason", "")) == "NodeLost" or ready.get("reason") == "NodeLost"
    if ready.get("status") == "True" or not (silent or (events and events[0].get("reason") == "NodeNotReady")):
        return None
    said = evidence("NodeNotReady", str(events[0].get("message", ""))) if events else "NodeLost"
    text = f"its node {node} does not answer"
    return Cause("node-lost", text, "backoff", said, f"kubectl describe node {node}", key=node)


def ending(pod: Object, related: RelatedObjects) -> Cause | None:
    """Cause of a pod that is being deleted, or is stuck in that; None when it is not being deleted."""
    metadata = pod.get("metadata") or {}
    deleted = metadata.get("deletionTimestamp")
    if not deleted:
        return None
    overdue_s = age_s(deleted, related.now)  # the timestamp includes the grace period
    if overdue_s < _OVERDUE_S:
        return Cause("ending", "is ending", "stopping")
    node, ns = str((pod.get("spec") or {}).get("nodeName", "")), namespaced(pod)
    held = ", ".join(metadata.get("finalizers") or ())
    if held:
        text = f"cannot go: {held} holds it"
        return Cause("ending-held", text, "backoff", f"finalizers: {held}", describe(pod))
    text = f"should have ended {duration(overdue_s)} ago: its node {node} does not answer, or cannot stop it"
    return Cause(
        "node-lost", text, "backoff", f"deletionTimestamp {deleted}",
        f"kubectl{ns} delete pod {name_of(pod)} --grace-period=0 --force  (only when node {node} is gone for good)",
        key=f"ending {node}",
    )  # fmt: skip
