"""Causes of a pod that no node takes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from rlctl.backends.kubernetes.api.interface import Object
from rlctl.backends.kubernetes.diagnose.causes import volumes
from rlctl.backends.kubernetes.diagnose.causes.base import (
    GRACE_S,
    Cause,
    RelatedObjects,
    State,
    age_s,
    condition,
    describe,
    evidence,
    name_of,
    namespaced,
)
from rlctl.spec import names

_NODES = re.compile(r"(\d+)/(\d+) nodes are available:? ?(.*)", re.DOTALL)
_PART = re.compile(r"(\d+) (.+?)(?=, \d+ |\.(?:\s|$)|$)", re.DOTALL)
_RANKS: Final = ("resource", "volume", "affinity", "taint", "other")
"""Order of reasons that hold for equally many nodes: first the one that a user can do more about."""


def cause(pod: Object, related: RelatedObjects) -> Cause | None:
    """Cause for which the scheduler has not placed the pod; None when it has."""
    found = condition(pod, "PodScheduled")
    if found.get("status") != "False":
        return None
    message = str(found.get("message", ""))
    said = evidence(str(found.get("reason", "")), message)
    metadata = pod.get("metadata") or {}
    times = (metadata.get("creationTimestamp"), found.get("lastTransitionTime"))
    waited_s = max(age_s(time, related.now) for time in times)
    late: State = "starting" if waited_s < GRACE_S else "backoff"
    if found.get("reason") == "SchedulingGated":
        return _gated(pod, said)
    if re.search(r"pod ?group is not ready|\bgang\b|minMember|PodGroup", message):
        text = "waits until the whole group fits on the nodes (gang scheduling)"
        return Cause("gang-waiting", text, late, said, f"kubectl{namespaced(pod)} get podgroups")
    if (volume := volumes.unbound(pod, message, related)) is not None:
        return volume
    if (added := _scale_up(pod, related)) is not None:
        return added
    reasons = _reasons(pod, message)
    if not reasons:
        no_node = "no nodes available" in message
        text = "the cluster has no node" if no_node else f"no node takes it: {message or 'not said'}"
        return Cause("unschedulable", text, late, said, describe(pod), key="unschedulable")
    kind = min(reasons, key=lambda each: (-reasons[each][0], _RANKS.index(_rank(each))))
    total = int(m[2]) if (m := _NODES.search(message)) else sum(count for count, _ in reasons.values())
    told = "; ".join(f"{count} of {total} {words}" for count, words in reasons.values())
    text = f"no node fits: {told}"
    refused = related.of("Pod", name_of(pod), "NotTriggerScaleUp")
    if refused:
        text += "; and no node that the autoscaler could add would fit"
    if late == "starting":
        text = f"waits for a node: {told}"
    return Cause(kind, text, late, said, _next(pod, kind), key=";".join(sorted(reasons)) + late)


def _gated(pod: Object, said: str) -> Cause:
    gates = [str(gate.get("name", "")) for gate in (pod.get("spec") or {}).get("schedulingGates") or ()]
    queue = ((pod.get("metadata") or {}).get("labels") or {}).get(names.QUEUE, "")
    if any(gate.startswith("kueue.x-k8s.io/") for gate in gates):
        where = f"queue {queue} of Kueue" if queue else "Kueue"
        text = f"waits in {where} until the whole group is admitted"
        return Cause("gang-waiting", text, "starting", said, f"kubectl{namespaced(pod)} get workloads.kueue.x-k8s.io")
    text = f"is held back by the scheduling gate {', '.join(gates) or '?'}"
    return Cause("gated", text, "starting", said, describe(pod))


def _scale_up(pod: Object, related: RelatedObjects) -> Cause | None:
    for event in related.of("Pod", name_of(pod), "TriggeredScaleUp", "NotTriggerScaleUp", "FailedScaleUp", "Nominated"):
        reason, message = str(event.get("reason")), str(event.get("message", ""))
        if reason in ("TriggeredScaleUp", "Nominated"):  # the second is Karpenter's
            text = "a node is being added for it"
            return Cause("scale-up", text, "starting", evidence(reason, message), describe(pod))
        if reason == "FailedScaleUp":
            text = "the autoscaler could not add a node for it"
            return Cause("scale-up-failed", text, "backoff", evidence(reason, message), describe(pod))
        return None
    return None


def _reasons(pod: Object, message: str) -> Mapping[str, tuple[int, str]]:
    """kind -> number of nodes, and words; empty when the message has another form."""
    found = _NODES.search(message)
    if found is None:
        return {}
    listed = re.split(r"\.\s+(?:preemption:|no new claims)", found[3] + " ")[0]
    reasons: dict[str, tuple[int, str]] = {}
    for count, part in _PART.findall(listed):
        kind, words = _reason(pod, part.strip().rstrip("."))
        before = reasons.get(kind, (0, ""))[0]
        reasons[kind] = (before + int(count), words)
    return reasons


def _reason(pod: Object, part: str) -> tuple[str, str]:
    if short := re.match(r"Insufficient (\S+)", part):
        asked = _asked(pod, short[1])
        words = f"have too little {short[1]} left"
        return f"unschedulable-{short[1]}", f"{words} (it asks for {asked})" if asked else words
    if part.startswith("Too many pods"):
        return "unschedulable-pods", "hold as many pods as they may"
    taint = re.search(r"taint(?:\(s\))?,? ?(?:\{([^}]*)\})?", part)
    if taint and ("untolerated" in part or "toler" in part):
        name = (taint[1] or "").strip().rstrip(": ")
        if "not-ready" in name or "unreachable" in name:
            return "unschedulable-node", "do not answer"
        if "pressure" in name:
            return "unschedulable-pressure", f"are short of something themselves ({name.rpartition('/')[2]})"
        return "unschedulable-taint", f"keep it off with the taint {name or 'that it does not tolerate'}"
    if "volume node affinity conflict" in part or "available persistent volumes" in part:
        return "unschedulable-volume-zone", "are in another zone than its volume"
    if "max volume count" in part:
        return "unschedulable-volume-count", "have attached as many volumes as they can"
    if "topology spread" in part:
        return "unschedulable-spread", "would break its topology spread"
    if "anti-affinity" in part or "pod affinity" in part:
        return "unschedulable-pod-affinity", "hold a pod that it must not be beside"
    if "node affinity" in part or "node selector" in part or "affinity/selector" in part:
        return "unschedulable-affinity", f"are not what its node selector asks for{_selector(pod)}"
    if "unschedulable" in part:
        return "unschedulable-cordoned", "are closed for new pods (cordoned)"
    if "free ports" in part:
        return "unschedulable-port", "have its host port in use"
    return f"unschedulable-{part}", f"say: {part}"


def _rank(kind: str) -> str:
    if kind.startswith("unschedulable-volume"):
        return "volume"
    if kind in ("unschedulable-affinity", "unschedulable-pod-affinity", "unschedulable-spread"):
        return "affinity"
    if kind in ("unschedulable-taint", "unschedulable-node", "unschedulable-pressure", "unschedulable-cordoned"):
        return "taint"
    return "other" if " " in kind else "resource"


def _asked(pod: Object, resource: str) -> str:
    """Resources that the containers of a pod request, as written; several joined by +."""
    asked = []
    for each in (pod.get("spec") or {}).get("containers") or ():
        resources = each.get("resources") or {}
        value = (resources.get("requests") or {}).get(resource) or (resources.get("limits") or {}).get(resource)
        asked += [str(value)] if value else []
    return " + ".join(asked)


def _selector(pod: Object) -> str:
    chosen = (pod.get("spec") or {}).get("nodeSelector") or {}
    return f" ({', '.join(f'{key}={value}' for key, value in sorted(chosen.items()))})" if chosen else ""


def _next(pod: Object, kind: str) -> str:
    if kind == "unschedulable-node" or kind == "unschedulable-cordoned":
        return "kubectl get nodes"
    if kind in ("unschedulable-taint", "unschedulable-affinity"):
        return "kubectl describe nodes  (labels and taints; a patch beside the spec sets nodeSelector and tolerations)"
    if _rank(kind) == "resource":
        return "rlctl scale  (fewer replicas), a smaller request under roles:, or more nodes: kubectl describe nodes"
    return describe(pod)
