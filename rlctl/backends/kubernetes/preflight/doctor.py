"""Checks of a namespace of a cluster: whether it exists, rights, capacity, and what runs need."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Set
from datetime import UTC, datetime
from typing import Any, Final

from rlctl.backends.base import Check
from rlctl.backends.kubernetes.api.calls import TELLS_MORE
from rlctl.backends.kubernetes.api.interface import Api, ApiError, kubectl
from rlctl.backends.kubernetes.api.refusals import unread
from rlctl.backends.kubernetes.diagnose.causes import admission
from rlctl.backends.kubernetes.diagnose.causes.base import moment, name_of
from rlctl.backends.kubernetes.preflight import api_port, storage_classes
from rlctl.errors import RlctlError
from rlctl.spec.names import MANAGER

OLDEST: Final = (1, 30)
NEWEST: Final = (1, 37)
"""Kubernetes versions against whose schemas the templates are checked."""
CLOCK_OFF_S: Final = 30.0
"""Seconds of clock difference beyond which log times and ages mislead."""
_NEARLY: Final = 0.9
_OF_EVERY_RUN: Final = frozenset({
    "pods", "count/pods", "cpu", "memory", "ephemeral-storage", "requests.cpu", "requests.memory",
    "requests.ephemeral-storage", "limits.cpu", "limits.memory", "limits.ephemeral-storage",
    "configmaps", "count/configmaps", "secrets", "count/secrets", "services", "count/services",
    "count/serviceaccounts", "count/deployments.apps", "count/statefulsets.apps", "count/leases.coordination.k8s.io",
    "count/networkpolicies.networking.k8s.io", "count/poddisruptionbudgets.policy",
})  # fmt: skip
"""Resources of a quota that every run needs; of any other, such as GPUs or node ports, a run may need none."""
_WRITE: Final = ("get", "list", "create", "patch", "delete")
_NEEDED: Final[tuple[tuple[str, str, tuple[str, ...]], ...]] = (
    ("", "configmaps", (*_WRITE, "update")),
    ("", "secrets", ("get", "create", "delete")),
    ("", "services", _WRITE),
    ("", "serviceaccounts", _WRITE),  # without its account the manager's pod is not created
    ("", "persistentvolumeclaims", _WRITE),
    ("", "pods", ("get", "list")),
    ("", "pods/log", ("get",)),
    ("", "pods/portforward", ("get",)),  # a WebSocket is a GET; from Kubernetes 1.35 it takes create as well
    ("apps", "deployments", (*_WRITE, "watch")),
    ("apps", "statefulsets", (*_WRITE, "watch")),
    ("policy", "poddisruptionbudgets", _WRITE),
    ("networking.k8s.io", "networkpolicies", _WRITE),
    ("coordination.k8s.io", "leases", ("get", "create", "update", "delete")),
)
_WANTED: Final[tuple[tuple[str, str, tuple[str, ...], str], ...]] = (
    ("", "events", ("list",), "`status` explains less"),
    ("", "resourcequotas", ("list",), "the preflight cannot see quotas"),
    ("", "pods", ("create", "delete"), "files of a run that is taken down, such as its models, cannot be had"),
    ("", "pods", ("watch",), "`down --volumes` cannot remove what a run has written to a claim of yours"),
    ("", "pods/portforward", ("create",), "from Kubernetes 1.35 on no verb reaches the manager"),
    ("apps", "deployments/scale", ("patch",), "the manager's Role is refused, so finished runs keep their pods"),
    ("apps", "statefulsets/scale", ("patch",), "the manager's Role is refused, so finished runs keep their pods"),
    ("rbac.authorization.k8s.io", "roles", ("create", "patch"), "finished runs keep their pods until `rlctl down`"),
    ("rbac.authorization.k8s.io", "rolebindings", ("create",), "finished runs keep their pods until `rlctl down`"),
)
_EXTRAS: Final[Mapping[str, str]] = {
    "kueue.x-k8s.io": "Kueue (kubernetes.gang: kueue)",
    "jobset.x-k8s.io": "JobSet (a patch)",
    "scheduling.volcano.sh": "Volcano (a patch)",
    "keda.sh": "KEDA",
    "monitoring.coreos.com": "Prometheus operator",
}


def checks(api: Api, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> list[Check]:
    """All checks, whatever fails in between; a cluster that does not answer is one problem and ends them."""
    reached = _reached(api)
    if reached[-1].verdict == "problem":
        return reached
    found = list(reached)
    parts = {
        "namespace": _namespace, "rights": _rights, "wishes": _wishes, "storage": _classes, "quota": _quotas,
        "api port": api_port.checks, "extensions": _extras,
    }  # fmt: skip
    for name, part in parts.items():
        try:
            found += part(api)
        except ApiError as error:  # the other checks go on
            found.append(Check(name, "not checked", unread(error)))
    return [*found, *_clock(api, now)]


def _reached(api: Api) -> list[Check]:
    where = f"{api.server} (context {api.context}, namespace {api.namespace})"
    try:
        version = api.version()
    except RlctlError as error:
        again = error.hint.removesuffix(TELLS_MORE) or "kubectl config get-contexts  (and --context)"
        return [Check("access", "problem", f"{where} does not answer: {error.message}", again)]
    access = Check("access", "ok", where)
    number = _number(version)
    if number is None:
        return [access, Check("version", "not checked", f"Kubernetes {version}")]
    supported = f"{'.'.join(map(str, OLDEST))} to {'.'.join(map(str, NEWEST))}"
    if number < OLDEST:
        text = f"Kubernetes {version} is older than what rlctl is tried with: {supported}"
        return [access, Check("version", "warning", text, "ask the cluster's administrator for a newer one")]
    if number > NEWEST:
        text = f"Kubernetes {version} is newer than what this rlctl is tried with: {supported}"
        return [access, Check("version", "warning", text, "pip install -U rlctl")]
    return [access, Check("version", "ok", f"Kubernetes {version}, supported: {supported}")]


def _number(version: str) -> tuple[int, int] | None:
    parts = version.lstrip("v").split(".")
    digits = ["".join(sign for sign in part if sign.isdigit()) for part in parts[:2]]
    return (int(digits[0]), int(digits[1])) if len(digits) == 2 and all(digits) else None


def _namespace(api: Api) -> Iterator[Check]:
    level, why = psa_level(api)
    if why == "terminating":
        text = f"namespace {api.namespace} is being deleted: nothing can be created in it"
        yield Check("namespace", "problem", text, "wait until it is gone, or choose another with -n")
    elif why == "missing":
        text = f"there is no namespace {api.namespace}"
        yield Check("namespace", "problem", text, f"{kubectl(api, namespaced=False)} create namespace {api.namespace}")
    elif why:
        yield Check("pod security", "not checked", f"the labels of namespace {api.namespace}: {why}")
    else:
        text = f"namespace {api.namespace} enforces Pod Security level {level}; rlctl's pods pass restricted"
        yield Check("pod security", "ok", text)


def psa_level(api: Api) -> tuple[str, str]:
    """Pod Security level that the namespace enforces, and why it is unknown: "missing", "terminating", "forbidden" or
    the like; "": known.
    """
    try:
        found = api.raw(f"/api/v1/namespaces/{api.namespace}")
    except ApiError as error:
        return "", "missing" if error.status == 404 else unread(error)
    if (found.get("status") or {}).get("phase") == "Terminating":
        return "", "terminating"
    labels = (found.get("metadata") or {}).get("labels") or {}
    return str(labels.get("pod-security.kubernetes.io/enforce", "privileged")), ""


def _rights(api: Api) -> Iterator[Check]:
    missing, unknown = [], []
    for group, resource, verbs in _NEEDED:
        answers = {verb: _may(api, verb, group, resource) for verb in verbs}
        refused = [verb for verb, allowed in answers.items() if allowed is False]
        missing += [f"{', '.join(refused)} {resource}"] if refused else []
        unknown += [resource] if None in answers.values() else []
    if missing:
        text = f"you may not {'; '.join(missing)} in namespace {api.namespace}"
        yield Check("rights", "problem", text, _admin(api))
    elif unknown:
        yield Check("rights", "not checked", f"the server does not say what you may do with {', '.join(unknown)}")
    else:
        counted = sum(len(verbs) for _, _, verbs in _NEEDED)
        yield Check("rights", "ok", f"all {counted} rights that a run needs in namespace {api.namespace}")


def _admin(api: Api) -> str:
    return f"rlctl render --admin -n {api.namespace} --user NAME  (prints what an administrator applies)"


def _wishes(api: Api) -> Iterator[Check]:
    refused: dict[tuple[str, str], list[str]] = {}
    for group, resource, verbs, without in _WANTED:
        verb = next((verb for verb in verbs if _may(api, verb, group, resource) is False), None)
        if verb is not None:
            refused.setdefault((verb, without), []).append(resource)
    for (verb, without), resources in refused.items():
        text = f"you may not {verb} {', '.join(resources)}"
        yield Check("rights", "warning", f"{text}: {without}", _admin(api))


def _may(api: Api, verb: str, group: str, resource: str) -> bool | None:
    name, _, subresource = resource.partition("/")
    return api.may(verb, name, group=group, subresource=subresource)


def _classes(api: Api) -> Iterator[Check]:
    found = storage_classes.read(api)
    if isinstance(found, str):
        yield Check(
            "storage", "not checked", f"storage classes: {found}", f"{kubectl(api, namespaced=False)} get storageclass"
        )
        return
    shared = [each for each in found if each.shared]
    unknown = [each for each in found if each.shared is None]
    default = next((each for each in found if each.default), None)
    again = "set storage.class, or storage.claim to an existing ReadWriteMany claim; docs/operations.md lists classes"
    if shared:
        names = ", ".join(f"{each.name} ({each.product})" for each in shared)
        if default is not None and default.shared is not False:
            yield Check("storage", "ok", f"classes that share between nodes: {names}; default: {default.name}")
        else:
            whose = f"the default class {default.name} does not share" if default else "there is no default class"
            text = f"{whose} between nodes; these do: {names}"
            yield Check("storage", "warning", text, f"set storage.class: {shared[0].name}")
    elif unknown:
        names = ", ".join(f"{each.name} (by {each.provisioner})" for each in unknown)
        default_is = f"; default: {default.name}" if default else "; there is no default class"
        text = f"whether these classes share between nodes is not known to rlctl: {names}{default_is}"
        yield Check("storage", "not checked", text, again)
    else:
        names = ", ".join(f"{each.name} ({each.product})" for each in found)
        text = f"no storage class shares between nodes: {names}" if found else "the cluster has no storage class"
        if claims := _shared_claims(api, alone={each.name for each in found}):
            yield Check("storage", "ok", f"{text}; claims that do, for storage.claim: {', '.join(claims)}")
        else:
            yield Check("storage", "problem", text, again)


def _shared_claims(api: Api, alone: Set[str]) -> list[str]:
    """Names of the namespace's bound claims that several nodes can mount for writing, without those of classes that do
    not share: a provisioner of these may bind such a claim all the same."""
    return [
        name_of(claim)
        for claim in api.list("PersistentVolumeClaim").items
        if (claim.get("status") or {}).get("phase") == "Bound"
        and "ReadWriteMany" in ((claim.get("spec") or {}).get("accessModes") or ())
        and (claim.get("spec") or {}).get("storageClassName") not in alone
    ]


def _quotas(api: Api) -> Iterator[Check]:
    try:
        quotas = api.list("ResourceQuota").items
    except ApiError as error:
        yield Check("quota", "not checked", unread(error))
        return
    if not quotas:
        yield Check("quota", "ok", f"namespace {api.namespace} has no quota")
    for quota in quotas:
        spec = quota.get("spec") or {}
        if spec.get("scopes") or spec.get("scopeSelector"):
            again = f"{kubectl(api)} describe quota {name_of(quota)}"
            yield Check("quota", "not checked", f"quota {name_of(quota)} counts some pods only (scopes)", again)
            continue
        rooms = admission.room(quota)
        told = [
            f"{name} {admission.shown(name, used)} of {admission.shown(name, most)}"
            for name, (used, most) in rooms.items()
        ]
        full = [name for name, (used, most) in rooms.items() if used >= most and (most or name in _OF_EVERY_RUN)]
        nearly = [name for name, (used, most) in rooms.items() if _NEARLY * most <= used < most]
        text = f"quota {name_of(quota)}: {', '.join(told) or 'limits nothing'} used"
        again = f"{kubectl(api)} describe quota {name_of(quota)}"
        if full:
            needed = _OF_EVERY_RUN.intersection(full)
            text += f"; nothing is left of {', '.join(full)}"
            yield Check("quota", "problem" if needed else "warning", text, again)
        elif nearly:
            yield Check("quota", "warning", f"{text}; little is left of {', '.join(nearly)}", again)
        else:
            yield Check("quota", "ok", text)


def _extras(api: Api) -> Iterator[Check]:
    groups = api_groups(api)
    if groups is None:
        yield Check("extensions", "not checked", "the server's API groups cannot be read")
        return
    there = [text for group, text in _EXTRAS.items() if group in groups]
    missing = [text for group, text in _EXTRAS.items() if group not in groups]
    text = f"installed: {', '.join(there) or 'none'}"
    if missing:
        text += f"; not installed, and only needed when asked for: {', '.join(missing)}"
    yield Check("extensions", "ok", text)


def api_groups(api: Api) -> set[str] | None:
    """API groups of the server; None when they cannot be read."""
    try:
        found: Any = api.raw("/apis")
    except ApiError:
        return None
    return {str(group.get("name")) for group in found.get("groups") or ()}


def _clock(api: Api, now: Callable[[], datetime]) -> Iterator[Check]:
    """Check of the clock: the server stamps an object even in a dry run."""
    name = f"rlctl-doctor-{secrets.token_hex(4)}"
    document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
    before = now()
    try:
        stamped = api.apply(document, manager=MANAGER, dry_run=True)
    except RlctlError as error:
        yield Check("clock", "not checked", f"the server's time: {error.message}")
        return
    there = moment((stamped.get("metadata") or {}).get("creationTimestamp"))
    if there is None:
        yield Check("clock", "not checked", "the server does not say its time")
        return
    after = now()
    off_s = max((before - there).total_seconds() - 1.0, (there - after).total_seconds(), 0.0)  # in whole seconds
    if off_s > CLOCK_OFF_S:
        ahead = "behind" if there > after else "ahead of"
        text = f"the clock of this machine is {off_s:.0f} s {ahead} the cluster's: ages and --since mislead"
        yield Check("clock", "warning", text, "timedatectl status")
    else:
        yield Check("clock", "ok", f"this machine's differs from the cluster's by at most {off_s + 1.0:.0f} s")
