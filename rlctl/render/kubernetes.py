"""Plan -> the objects of one namespace. Needs no cluster: what `rlctl up` sends is exactly this, plus replicas.

Documents name no namespace, no revision and no number of replicas, so raising actors alters none of them.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from rlctl.plan import PATCHED_BY, Document, Plan, RolePlan
from rlctl.render.encode import to_document
from rlctl.render.engine import environment, render, source
from rlctl.render.objects import Object, objects
from rlctl.render.patches import Patches
from rlctl.render.replacing import loader
from rlctl.spec import names
from rlctl.spec.layout import LIVE, Layout
from rlctl.spec.schema import Spec
from rlctl.spec.units import mebibytes

KEPT: Final = ("manager",)
"""Roles that stay when a run is finished: its result can then still be asked for."""
_RBAC: Final = "rbac.authorization.k8s.io"
_SHM_SHARE: Final = 0.25
"""Fraction of a learner's memory for /dev/shm: data between its threads and a loader's processes."""


def cluster_documents(plan: Plan, spec: Spec) -> list[Document]:
    """Objects of a run on a cluster, one document each, in the order in which they are sent.

    Args:
        plan: what runs; its `base` and `code_path` are where the user's patches and templates lie.
        spec: the spec that the plan was made of.

    Raises:
        SpecError: a fault of a template or a patch, with file and line; or a value that no document can hold.
    """
    assert plan.target == "kubernetes", plan.target
    folders = [Path(folder) for folder in dict.fromkeys((plan.code_path, plan.base)) if folder is not None]
    patches = Patches.read(folders)
    engine = environment("yaml", loader(folders))
    made: list[tuple[int, Document]] = []
    there: set[tuple[str, str]] = set()
    for template, values in _parts(plan, spec):
        path = f"kubernetes/{template}.yaml.j2"
        origin = source(engine, path)
        for thing in objects(render(engine, path, values), origin):
            role = thing["metadata"].get("labels", {}).get(names.COMPONENT, "")
            there.add((role, thing["kind"]))
            patched, origins = patches.applied(thing, role)
            document = _document(patched, role, (origin, *origins))
            made.append((names.wave(patched["kind"], role), document))
    patches.missed(there)
    return [document for _, document in sorted(made, key=lambda each: each[0])]


def admin(namespace: str, user: str = "", *, group: str = "") -> list[Document]:
    """Objects that an administrator sends once, so that a user needs no further rights than those of the namespace.

    Args:
        namespace: where runs will be.
        user: as the API server calls it; `system:serviceaccount:NAMESPACE:NAME` is a service account.
        group: in place of a user.

    Raises:
        SpecError: a template's fault.
    """
    subject = {"kind": "Group", "apiGroup": _RBAC, "name": group} if group else _subject(user)
    values = {"namespace": namespace, "subject": subject, "binding": _binding(subject)}
    engine = environment("yaml")
    found: list[Document] = []
    for template in ("namespace", "access", "priority"):
        path = f"kubernetes/admin/{template}.yaml.j2"
        origin = source(engine, path)
        found += [_document(thing, "", (origin,)) for thing in objects(render(engine, path, values), origin)]
    return found


def _subject(user: str) -> dict[str, str]:
    account = user.removeprefix("system:serviceaccount:").split(":")
    if user.startswith("system:serviceaccount:") and len(account) == 2:
        return {"kind": "ServiceAccount", "namespace": account[0], "name": account[1]}
    return {"kind": "User", "apiGroup": _RBAC, "name": user}


def _binding(subject: Mapping[str, str]) -> str:
    """Unique name of a subject's binding that begins with a readable form of the subject."""
    whole = json.dumps(subject, sort_keys=True)
    readable = re.sub(r"[^a-z0-9]+", "-", subject["name"].lower()).strip("-")[:40]
    return "-".join(filter(None, ("rlctl", readable, hashlib.sha256(whole.encode()).hexdigest()[:8])))


def _document(thing: Object, role: str, origins: tuple[str, ...]) -> Document:
    name = names.document_name(thing["kind"], thing["metadata"]["name"])
    return Document(name, to_document(thing), role, PATCHED_BY.join(origins))


def _parts(plan: Plan, spec: Spec) -> Iterator[tuple[str, dict[str, Any]]]:
    """Templates, and the values of each."""
    planned = {role.role: role for role in plan.roles}
    roles = {role.role: _role(plan, spec, role) for role in plan.roles}
    common = _common(plan, spec) | {"roles": roles}
    for name, role in roles.items():
        yield "runfile", {**common, "role": {**role, "run_file": _json(planned[name].run_file)}}
    manager = {**common, "role": roles["manager"], "live": _live(plan)}
    yield "live", manager
    yield "rbac", {**manager, "released": _released(plan)}
    yield "networkpolicy", common
    if spec.storage.claim is None:
        yield (
            "volume",
            {**common, "volume": {"class": spec.storage.class_, "size": quantity(mebibytes(spec.storage.size))}},
        )
    yield "manager", manager
    for name in ("modelpool", "replay", "learner", "evaluator"):
        if name in roles:
            yield name, {**common, "role": roles[name], "saved": _saved(plan, spec)}
    for page in names.PAGES:
        values = {**common, "page": _page(plan, page)}
        yield page, values
        if spec.kubernetes.expose == "loadbalancer":
            yield "exposure", {**values, "proxy": _proxy(plan, spec, page)}
    for shard in range(names.shards(planned["actor"].most)):
        yield "actor", {**common, "role": _role(plan, spec, planned["actor"], shard)}


def _common(plan: Plan, spec: Spec) -> dict[str, Any]:
    manager = names.workload_name(plan.run, "manager")
    return {
        "run": plan.run,
        "uid": plan.uid,
        "labels": names.labels(plan.run),
        "annotations": {names.UID: plan.uid},
        "all_roles": {names.MANAGED_BY: names.MANAGER, names.INSTANCE: plan.run},
        "ports": names.PORTS,
        "manager": f"tcp://{manager}-0.{manager}:{names.PORTS['rpc']}",
        "addresses": f"tcp://{plan.run}-{{role}}-{{index}}.{plan.run}-{{role}}:{{port}}",
        "claim": spec.storage.claim or names.volume_name(plan.run),
        "mount": names.VOLUME,
        "root": str(Layout.of(Path(names.VOLUME), plan.run, plan.uid).root),
        "keys": {key_class: names.keys_name(plan.run, key_class) for key_class in ("core", "actor")},
    }


def _role(plan: Plan, spec: Spec, role: RolePlan, shard: int | None = None) -> dict[str, Any]:
    """Template values of a role; of actors, with a shard, those of one Deployment."""
    number = {} if shard is None else {names.SHARD: str(shard)}
    labels = names.labels(plan.run, role.role) | number
    queue = spec.kubernetes.queue if spec.kubernetes.gang == "kueue" and role.role == "learner" else None
    return {
        "name": names.workload_name(plan.run, role.role, shard),
        "labels": labels,
        "queued_labels": labels | ({} if queue is None else {names.QUEUE: queue}),
        "pod_labels": labels | {names.UID: plan.uid},
        "selector": {names.INSTANCE: plan.run, names.COMPONENT: role.role} | number,
        "config": names.run_file_name(plan.run, role.role, role.hash),
        "image": role.image,
        "threads": str(role.threads),
        "cpu": millicores(role.cpu),
        "memory": quantity(role.memory_mib),
        "shm": quantity(max(1, math.floor(role.memory_mib * _SHM_SHARE))),
        "gpu": str(role.gpu) if role.gpu else None,
    }


def _saved(plan: Plan, spec: Spec) -> dict[str, Any]:
    """Access that a shard needs to the volume: none where generations hold nothing of the replay."""
    common, saves = _common(plan, spec), spec.replay is not None and spec.replay.checkpoint == "full"
    found = {
        "argument": f"--volume={common['root']}",
        "mount": {"name": "volume", "mountPath": common["mount"]},
        "claim": {"name": "volume", "persistentVolumeClaim": {"claimName": common["claim"]}},
    }
    return found if saves else dict.fromkeys(found)


def _live(plan: Plan) -> dict[str, Any]:
    released = (f"{kind}/{name}" for kind, found in _released(plan).items() for name in found)
    files = {LIVE: _json(plan.live), "workloads": ",".join(released)}
    if plan.tracked is not None:
        files["spec.json"] = _json(plan.tracked)
    return {"name": names.live_name(plan.run), "files": files}


def _released(plan: Plan) -> dict[str, list[str]]:
    """Workloads whose pods are removed when the run is finished: plural of the kind -> names."""
    found: dict[str, list[str]] = {plural: [] for plural in names.WORKLOADS.values()}
    for role in plan.roles:
        if role.role == "actor":
            shards = range(names.shards(role.most))
            found["deployments"] += [names.workload_name(plan.run, "actor", shard) for shard in shards]
        elif role.role not in KEPT:
            plural = "statefulsets" if role.role in names.STATEFUL else "deployments"
            found[plural].append(names.workload_name(plan.run, role.role))
    return found


def _page(plan: Plan, page: str) -> dict[str, Any]:
    component, port = names.PAGES[page]
    return {
        **_workload(plan, page),
        "shown_by": {names.INSTANCE: plan.run, names.COMPONENT: component},
        "port": names.PORTS[port],
    }


def _workload(plan: Plan, component: str) -> dict[str, Any]:
    """Template values of a workload that is no role."""
    labels = names.labels(plan.run, component)
    return {
        "name": names.workload_name(plan.run, component),
        "labels": labels,
        "pod_labels": labels | {names.UID: plan.uid},
        "selector": {names.INSTANCE: plan.run, names.COMPONENT: component},
    }


def _proxy(plan: Plan, spec: Spec, page: str) -> dict[str, Any]:
    proxy = spec.kubernetes.proxy
    assert proxy is not None  # the spec's checks see to it
    if proxy.secret is None:
        secret: dict[str, Any] = {"name": "secret", "emptyDir": {"sizeLimit": "1Mi"}}
    else:
        secret = {"name": "secret", "secret": {"secretName": proxy.secret, "defaultMode": 0o440}}
    return {
        **_workload(plan, f"proxy-{page}"),
        # not <run>-proxy-<page>: <run>-proxy may be a run, whose page is called that
        "name": names.workload_name(plan.run, f"{page}-proxy"),
        "image": proxy.image,
        "args": proxy.args,
        "port": proxy.port,
        "secret": secret,
        "source_ranges": spec.kubernetes.source_ranges,
    }


def quantity(mebibytes: float) -> str:
    """Memory in the form in which a cluster returns it: whole bytes, rounded up, in the largest unit that divides them.

    Example:
        2048 is 2Gi, 307.2 is 322122548.
    """
    amount = math.ceil(mebibytes * 2**20)
    for unit, size in (("Ti", 2**40), ("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10)):
        if amount % size == 0:
            return f"{amount // size}{unit}"
    return str(amount)


def millicores(cores: float) -> str:
    """Cores in the form in which a cluster returns them: 2, or 1500m."""
    amount = round(cores * 1000)
    return str(amount // 1000) if amount % 1000 == 0 else f"{amount}m"


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, allow_nan=False) + "\n"
