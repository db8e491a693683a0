"""Causes of pods that were never created: the API server refused them to their controller."""

from __future__ import annotations

import re

from rlctl.backends.kubernetes.api.interface import Object
from rlctl.backends.kubernetes.api.quantity import amount, written
from rlctl.backends.kubernetes.api.refusals import QUOTA, pairs
from rlctl.backends.kubernetes.diagnose.causes.base import (
    Cause,
    RelatedObjects,
    age_s,
    condition,
    evidence,
    name_of,
    namespaced,
    stable,
)

_FORGOTTEN_S = 300.0
"""Seconds after which a refusal no longer counts: it is overcome, or would have been repeated."""


def cause(workload: Object, related: RelatedObjects) -> Cause | None:
    """Cause for which a Deployment or StatefulSet has fewer pods than it wants; None when no pod of it was refused."""
    refused = condition(workload, "ReplicaFailure")
    if refused.get("status") == "True":
        return refusal(workload, str(refused.get("reason", "FailedCreate")), str(refused.get("message", "")))
    name = name_of(workload)
    found = related.of("StatefulSet", name, "FailedCreate") if workload.get("kind") == "StatefulSet" else []
    if workload.get("kind") == "Deployment":
        found = [
            event
            for (kind, owner), events in related.events.items()
            if kind == "ReplicaSet" and re.fullmatch(rf"{re.escape(name)}-[a-z0-9]+", owner)
            for event in events
            if event.get("reason") == "FailedCreate"
        ]
    for event in found:
        if age_s(event.get("lastTimestamp") or event.get("eventTime"), related.now) < _FORGOTTEN_S:
            return refusal(workload, "FailedCreate", str(event.get("message", "")))
    return None


def refusal(workload: Object, reason: str, message: str) -> Cause:
    """Cause in the message with which the API server refused a pod."""
    said, ns = evidence(reason, message), namespaced(workload)
    if "exceeded quota" in message:
        return _quota(workload, message, said)
    if missing := re.search(r"failed quota: (\S+): must specify (.+?)(?: for: .+)?$", message):
        text = f"quota {missing[1]} demands that every pod states {missing[2]}"
        return Cause("quota-unstated", text, "failed", said, f"kubectl{ns} describe quota {missing[1]}", permanent=True)
    if policy := re.search(r'violates PodSecurity "([^"]+)": (.+)', message, re.DOTALL):
        text = f"the namespace's Pod Security level {policy[1]} forbids these pods: {_without_details(policy[2])}"
        again = "remove what your patch adds to the pod, or ask the administrator for another level of the namespace"
        return Cause("pod-security", text, "failed", said, again, permanent=True, key=policy[2])
    if "security context constraint" in message:
        text = "no security context constraint of the cluster allows these pods"
        return Cause("pod-security", text, "failed", said, f"kubectl{ns} get rolebindings", permanent=True)
    if hook := re.search(r'admission webhook "([^"]+)" denied the request:? ?(.*)', message, re.DOTALL):
        text = f"the cluster's policy {hook[1]} forbids these pods: {hook[2].strip() or 'it does not say why'}"
        return Cause(
            "webhook-denied", text, "failed", said, "ask the cluster's administrator", permanent=True, key=stable(text)
        )
    if hook := re.search(r'failed calling webhook "([^"]+)":(.*)', message, re.DOTALL):
        why = "does not answer in time" if re.search(r"deadline|timeout", hook[2]) else "does not work"
        text = f"the cluster's admission webhook {hook[1]} {why}; the cluster goes on trying"
        return Cause("webhook-silent", text, "backoff", said, "ask the cluster's administrator")
    if policy := re.search(r"ValidatingAdmissionPolicy '([^']+)'.* denied request: (.*)", message, re.DOTALL):
        text = f"the cluster's policy {policy[1]} forbids these pods: {policy[2].strip()}"
        return Cause(
            "policy-denied", text, "failed", said, "ask the cluster's administrator", permanent=True, key=stable(text)
        )
    if account := re.search(r'serviceaccount "([^"]+)" not found', message):
        text = f"there is no ServiceAccount {account[1]}"
        return Cause("account-missing", text, "failed", said, f"kubectl{ns} get serviceaccounts", permanent=True)
    if priority := re.search(r"no PriorityClass with name (\S+) was found", message):
        text = f"there is no PriorityClass {priority[1]}"
        again = "kubectl get priorityclasses  (there are these; a patch names it)"
        if priority[1].startswith("rlctl-"):
            again = f"rlctl render --admin{ns or ' -n NAMESPACE'} --user NAME  (prints it)"
        return Cause("priority-missing", text, "failed", said, again, permanent=True)
    if limits := re.search(r"forbidden: \[?((?:maximum|minimum|max) .+?)\]?$", message, re.DOTALL):
        text = f"the namespace's limits forbid these pods: {limits[1]}"
        return Cause("limit-range", text, "failed", said, f"kubectl{ns} describe limitrange", permanent=True)
    if "is being terminated" in message:
        text = "the namespace is being deleted"
        return Cause("namespace-ending", text, "failed", said, "kubectl get namespaces", permanent=True)
    if re.search(r"is invalid:|is forbidden:", message):
        text = f"the cluster does not accept these pods: {_after(message)}"
        return Cause("pod-refused", text, "failed", said, _describe(workload), permanent=True, key=stable(text))
    text = f"its pods cannot be made: {_after(message)}"
    return Cause("pod-refused", text, "backoff", said, _describe(workload), key=stable(text))


def _quota(workload: Object, message: str, said: str) -> Cause:
    """Cause in a message such as
    `exceeded quota: team, requested: cpu=4,pods=1, used: cpu=45,pods=9, limited: cpu=48,pods=50`."""
    found = QUOTA.search(message)
    again = f"kubectl{namespaced(workload)} describe quota  (or rlctl scale to fewer replicas)"
    if found is None:
        return Cause("quota", "the namespace's quota is used up", "backoff", said, again)
    asked, used, limited = (pairs(found[number]) for number in (2, 3, 4))
    wanted = {name: amount(used.get(name, "0")) + amount(asked.get(name, "0")) for name in limited}
    over = [name for name in limited if wanted[name] > amount(limited[name])]
    told = "; ".join(
        f"{name} {used.get(name, '0')} used + {asked.get(name, '0')} for one pod > {limited[name]}" for name in over
    )
    never = any(amount(asked.get(name, "0")) > amount(limited[name]) for name in over)
    text = f"quota {found[1]} is used up: {told or found[4]}"
    if never:
        text = f"one pod asks for more than all of quota {found[1]}: {told}"
    key = f"{found[1]}:{','.join(over)}"
    return Cause("quota", text, "failed" if never else "backoff", said, again, permanent=never, key=key)


def room(quota: Object) -> dict[str, tuple[float, float]]:
    """resource -> used and hard of a ResourceQuota, in base units (cores, bytes, objects)."""
    status = quota.get("status") or {}
    hard = status.get("hard") or (quota.get("spec") or {}).get("hard") or {}
    used = status.get("used") or {}
    return {name: (amount(str(used.get(name, "0"))), amount(str(most))) for name, most in hard.items()}


def progress(workload: Object) -> Cause | None:
    """A rollout that exceeded its deadline; it says least, so it is checked last."""
    found = condition(workload, "Progressing")
    if found.get("status") != "False" or found.get("reason") != "ProgressDeadlineExceeded":
        return None
    limit = (workload.get("spec") or {}).get("progressDeadlineSeconds", 600)
    text = f"no pod has become ready for {limit} s"
    said = evidence("ProgressDeadlineExceeded", str(found.get("message", "")))
    return Cause("progress-deadline", text, "backoff", said, _describe(workload))


def _without_details(text: str) -> str:
    """The rules of a Pod Security message without the explanations in brackets."""
    return re.sub(r"\s*\((?:[^()]|\([^()]*\))*\)", "", text).strip()


def _after(message: str) -> str:
    """A message without the generated name of the pod."""
    return re.sub(r'^(?:create Pod \S+ in StatefulSet \S+ failed error: )?(?:pods|Pod) "[^"]+" is ', "", message)


def _describe(workload: Object) -> str:
    return f"kubectl{namespaced(workload)} describe {str(workload.get('kind', '')).lower()} {name_of(workload)}"


def shown(name: str, value: float) -> str:
    """Quantity of a quota in readable form."""
    return written(value, memory="memory" in name or "storage" in name)
