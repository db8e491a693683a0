"""Objects that a commit may not change on a cluster: the service has more rights than the author of a push.

A person's `rlctl up` may change all of this, and what they have applied stays.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from rlctl.plan import PATCHED_BY, Document, Plan
from rlctl.render import cluster_documents
from rlctl.render.replacing import FOLDER
from rlctl.spec import yaml
from rlctl.spec.cluster import IMAGE_OF
from rlctl.spec.names import WORKLOADS
from rlctl.spec.schema import Spec
from rlctl.spec.units import mebibytes
from rlctl_ci.core.errors import BuildStopped

_OURS: Final = "templates/"
"""Prefix of the origin of a template that is not a user's."""
_EXPOSED: Final = "proxy-"
"""Prefix of roles that stand before a page for callers outside the cluster, with a Secret of the spec's choice."""
_OPEN: Final = {"nodeSelector", "tolerations", "affinity", "topologySpreadConstraints", "resources"}
"""Fields of a pod that a push may change: where it runs and with how much. Any other may give rights: host names decide
where the manager's credentials go, a priority decides whose pods are evicted."""
_LISTS: Final = {"containers", "initContainers", "ephemeralContainers", "volumes"}
"""Fields of a pod whose entries are compared one by one."""
_TAKEN_AWAY: Final = ("serviceAccountName", "automountServiceAccountToken", "securityContext", "hostUsers")
"""Fields of a pod that give more rights where they are left out."""
_CONTAINER: Final = ("securityContext", "envFrom", "volumeDevices")
_EXECUTED: Final = (
    "command", "args", "workingDir", "lifecycle", "startupProbe", "livenessProbe", "readinessProbe",
)  # fmt: skip
_CODE: Final = tuple(role for role, image in IMAGE_OF.items() if image != "core")
"""Roles that run what the commit says anyway; no other role does, and the account of a manager may change its run."""
_PAIRS: Final = ("labels", "annotations")
_ABOUT_ITSELF: Final = ("fieldRef", "resourceFieldRef")
"""Sources of a variable that hold nothing but fields of the pod itself."""


def refuse_templates(plan: Plan, before: Sequence[Document]) -> None:
    """Refuse templates of a commit, before anything of it is rendered.

    Raises:
        BuildStopped: one replaces a template that no person has replaced.
    """
    if plan.target != "kubernetes":
        return
    known = {Path(document.origin.split(PATCHED_BY)[0]).name for document in before if not _is_ours(document)}
    folders = [Path(folder) / "templates" / FOLDER for folder in (plan.code_path, plan.base) if folder is not None]
    found = {path.name for folder in folders for path in folder.glob("*.j2")} - known
    if found:
        raise _refusal(f"templates/{FOLDER}/{name} is a template of its own" for name in found)


def refuse_trackers(spec: Spec, before: Mapping[str, Any]) -> None:
    """Refuse to send the manager's metrics elsewhere, with credentials that no code of a commit has.

    Raises:
        BuildStopped: the address is another one than a person has set.
    """
    now = spec.trackers.mlflow
    was = ((before.get("trackers") or {}).get("mlflow") or {}).get("uri")
    if spec.target == "kubernetes" and now is not None and now.uri != was:
        raise BuildStopped(
            "rights", f"a push may not change this: trackers.mlflow.uri: {now.uri}",
            hint="a person may: rlctl up, or `sets:` of ci.yaml",
        )  # fmt: skip


def refuse_growth(spec: Spec, before: Mapping[str, Any]) -> None:
    """Refuse a larger volume: it cannot be made smaller again, and a rollback keeps it.

    Raises:
        BuildStopped: the commit asks for more than a person has.
    """
    was, now = (before.get("storage") or {}).get("size"), spec.storage.size
    own = spec.target == "kubernetes" and spec.storage.claim is None
    if own and was and mebibytes(now) > mebibytes(was):
        raise BuildStopped(
            "rights", f"a push may not change this: storage.size: {now}, {was} as a person has set it",
            hint="a person may: rlctl up, or `sets:` of ci.yaml",
        )  # fmt: skip


def refuse(plan: Plan, spec: Spec, documents: Sequence[Document], before: Sequence[Document]) -> None:
    """Refuse documents that would give a commit more rights.

    Args:
        plan, spec: of the commit.
        documents: as they would be applied, with patches and templates of the commit.
        before: as they were applied last.

    Raises:
        BuildStopped: a template is replaced, a page is exposed otherwise, or a role would have rights that it neither
            has nor gets from our templates.
    """
    if plan.target != "kubernetes":
        return
    known = {document.text for document in before}
    changed = [document for document in documents if document.text not in known]
    faults = {f"{document.name} is of a template of its own" for document in changed if not _is_ours(document)}
    faults |= {f"{document.name} exposes a page" for document in changed if document.role.startswith(_EXPOSED)}
    patched = [document for document in changed if PATCHED_BY in document.origin]
    if patched and not faults:
        plain = cluster_documents(replace(plan, base=None, code_path=None), spec)
        granted = {*_rights(before), *_rights(plain)}
        faults = {right for right in _rights(patched) if right not in granted}
        faults |= set(_lost(patched, plain, before))
    if faults:
        raise _refusal(faults)


def _refusal(faults: Iterable[str]) -> BuildStopped:
    listed = "; ".join(fault[:300] for fault in sorted(faults)[:10])
    return BuildStopped("rights", f"a push may not change this: {listed}", hint="a person may: rlctl up")


def _is_ours(document: Document) -> bool:
    return document.origin.split(PATCHED_BY)[0].startswith(_OURS)


def _rights(documents: Iterable[Document]) -> Iterator[str]:
    """One line for each field that gives rights, also for a field that is missing: a default may give more."""
    for document in documents:
        tree = yaml.read(document.text, document.name)
        if tree.problems:  # parsers may disagree on what is left out
            raise BuildStopped("rights", f"{document.name} cannot be read: {tree.problems[0]}")
        found = tree.value
        whose = f"{document.role or 'run'} {found['kind']}"
        if found["kind"] not in WORKLOADS:
            yield f"{whose}: {_json(found)}"
            continue
        pod, about = found["spec"]["template"]["spec"], found["spec"]["template"]["metadata"]
        for key, said in about.items():  # of pods: injectors, network policies and runtimes read them
            yield from (f"{whose}: pod {key}: {_json(one)}" for one in (said.items() if key in _PAIRS else [said]))
        yield f"{whose}: volumeClaimTemplates: {_json(found['spec'].get('volumeClaimTemplates'))}"
        fields = {*_TAKEN_AWAY, *pod} - _OPEN - _LISTS
        yield from (f"{whose}: {key}: {_json(pod.get(key))}" for key in fields)
        volumes = {volume["name"]: volume for volume in pod.get("volumes") or () if set(volume) - {"name", "emptyDir"}}
        yield from (f"{whose}: volume {_json(volume)}" for volume in volumes.values())
        first, *others = pod["containers"]  # of ours there is one, and patches add theirs behind it
        yield from _container(f"{whose}: container {first['name']}", first, volumes, document.role in _CODE)
        for group in (others, pod.get("initContainers"), pod.get("ephemeralContainers")):
            yield from (f"{whose}: one more container: {_json(container)}" for container in group or ())


def _container(
    whose: str, container: Mapping[str, Any], volumes: Mapping[str, Any], runs_code: bool
) -> Iterator[str]:  # fmt: skip
    yield from (f"{whose}: {key}: {_json(container.get(key))}" for key in _CONTAINER)
    for key in _EXECUTED:
        said = _json(container.get(key))
        if not runs_code or (isinstance(container.get(key), Mapping) and '"host"' in said):  # asked by the node
            yield f"{whose}: {key}: {said}"
    for variable in container.get("env") or ():
        if not runs_code or set(variable.get("valueFrom") or ()) - set(_ABOUT_ITSELF):
            yield f"{whose}: env {_json(variable)}"
    for mount in container.get("volumeMounts") or ():
        if mount.get("name") in volumes:
            yield f"{whose}: mount {_json(mount)}"
    for port in container.get("ports") or ():
        if port.get("hostPort") or port.get("hostIP"):
            yield f"{whose}: port {_json(port)}"


def _lost(patched: Iterable[Document], plain: Iterable[Document], before: Iterable[Document]) -> Iterator[str]:
    """Volumes and mounts of our own containers that a patch of the commit removes or replaces.

    A manager on an empty volume knows no generation, and looks healthy.

    Args:
        patched: documents with patches of the commit.
        plain: the same without any patch.
        before: as they were applied last; what a person has changed there stays changed.
    """
    ours, applied = _mounted(plain), _mounted(before)
    for workload, now in _mounted(patched).items():
        was = applied.get(workload, {})
        for what, said in ours.get(workload, {}).items():
            if now.get(what) not in (said, was.get(what, said)):
                yield f"{workload}: {what} is {now.get(what) or 'taken away'}"


def _mounted(documents: Iterable[Document]) -> dict[str, dict[str, str]]:
    """Workload -> volume or mount of its own container -> its content; the size of an empty folder does not matter."""
    found: dict[str, dict[str, str]] = {}
    for document in documents:
        tree = yaml.read(document.text, document.name).value
        if tree["kind"] in WORKLOADS:
            pod = tree["spec"]["template"]["spec"]
            mounts = {f"mount {one['mountPath']}": _json(one) for one in pod["containers"][0].get("volumeMounts") or ()}
            volumes = {
                f"volume {one['name']}": "emptyDir" if set(one) <= {"name", "emptyDir"} else _json(one)
                for one in pod.get("volumes") or ()
            }
            found[f"{tree['kind']} {tree['metadata']['name']}"] = volumes | mounts
    return found


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
