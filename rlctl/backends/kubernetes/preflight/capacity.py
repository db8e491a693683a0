"""Capacity of a cluster for a run: quota, model traffic, images, nodes, a queue."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from rlctl.backends.base import Check
from rlctl.backends.kubernetes.api.interface import KINDS, Api, ApiError, Key, Object, kubectl
from rlctl.backends.kubernetes.api.quantity import amount
from rlctl.backends.kubernetes.api.refusals import unread
from rlctl.backends.kubernetes.diagnose.causes import admission
from rlctl.backends.kubernetes.diagnose.causes.base import name_of
from rlctl.backends.kubernetes.preflight import doctor, fleet
from rlctl.backends.kubernetes.preflight.fleet import MODEL_MB, Fleet
from rlctl.backends.kubernetes.run_state import desired_state, inventory, keys
from rlctl.backends.kubernetes.run_state.inventory import role_of
from rlctl.image_names import Reference
from rlctl.spec import names
from rlctl.spec.roles import serving

POOL_MB_PER_S: Final = 1_000.0
"""MB/s that one core encrypts; less than a network of 10 Gbit/s carries."""
REGISTRY_MB_PER_S: Final = 1_250.0
"""MB/s of a node with 10 Gbit/s."""
_REFRESH_S: Final = 30.0
_PULL_S: Final = 300.0
_NODES_READ: Final = 1_000
_BY_NAME: Final = ("Service", "ConfigMap", "Secret", "PersistentVolumeClaim")
"""Kinds that a quota may count by their plural alone."""


def quotas(api: Api, run: Fleet) -> Iterator[Check]:
    """Need of the run for each quota, with its use and its limit."""
    found = api.list("ResourceQuota").items
    if not found:
        yield Check("quota", "ok", f"namespace {api.namespace} has no quota")
    there = _left_by_down(api, run) if found else set()
    for quota in found:
        yield _quota(api, run, quota, there)


def _quota(api: Api, run: Fleet, quota: Object, there: set[Key]) -> Check:
    name, rooms = name_of(quota), admission.room(quota)
    again = f"{kubectl(api)} describe quota {name}"
    spec = quota.get("spec") or {}
    if spec.get("scopes") or spec.get("scopeSelector"):
        return Check("quota", "not checked", f"quota {name} counts some pods only (scopes)", again)
    if unstated := _unstated(api, run, rooms):
        text = f"quota {name} demands {unstated} of every pod, and there is no LimitRange that gives it"
        return Check("quota", "problem", text, "state it by a patch beside the spec, or ask for a LimitRange")
    whole, new = _demand(run, run.pods, set()), _demand(run, run.new, there)
    never, not_now, told = [], [], []
    for resource, (used, most) in rooms.items():
        need, more = whole.get(resource, 0.0), new.get(resource, 0.0)
        hard, adds = admission.shown(resource, most), f"{admission.shown(resource, used)} used + "
        adds += f"{admission.shown(resource, more)} more"
        if need > most:
            never.append(f"{resource}: the run needs {admission.shown(resource, need)} of {hard}")
        elif used + more > most:
            not_now.append(f"{resource}: {adds} > {hard}")
        elif need:
            told.append(f"{resource} {adds} of {hard}")
    if never:
        return Check("quota", "problem", f"quota {name} is smaller than the run: {'; '.join(never)}", again)
    if not_now:
        text = f"quota {name} has no room for all of it now, so part of the run will wait: {'; '.join(not_now)}"
        return Check("quota", "warning", text, again)
    return Check("quota", "ok", f"quota {name}: {', '.join(told) or 'limits nothing of a run'}")


def _demand(run: Fleet, pods: Mapping[Key, int], there: set[Key]) -> dict[str, float]:
    """Amounts of a quota that a run requests beyond those already used, by resource.

    Args:
        there: objects that are counted as used already.
    """
    total: dict[str, float] = {}
    for key, count in pods.items():
        for resource, value in fleet.asks(run.objects[key]).items():
            total[resource] = total.get(resource, 0.0) + count * value
    if run.live:  # the objects of a run that exists are counted as used already
        return total
    for key in [*run.objects, *_unrendered(run)]:
        if key in there:
            continue
        for name in _counted(key):
            total[name] = total.get(name, 0.0) + 1.0
        if key.kind == "PersistentVolumeClaim":
            claim = run.objects[key].get("spec") or {}
            asked = ((claim.get("resources") or {}).get("requests") or {}).get("storage", "0")
            total["requests.storage"] = total.get("requests.storage", 0.0) + amount(asked)
    return total


def _left_by_down(api: Api, run: Fleet) -> set[Key]:
    """Objects of the run that `down` has left."""
    if run.live:
        return set()
    left = [key for key in run.objects if key.kind in inventory.STAYS]
    return {key for key in [*left, *_unrendered(run)] if api.get(key) is not None}


def _unrendered(run: Fleet) -> list[Key]:
    """Objects that a first `up` creates beside the documents."""
    name = run.wanted.run
    made = [Key("ConfigMap", names.state_name(name)), Key("Lease", names.lock_name(name))]
    made += [keys.core_key(name), keys.actor_key(name), desired_state.revision_key(name, 1)]
    return [key for key in made if key not in run.objects]


def _counted(key: Key) -> list[str]:
    """Names by which a quota counts an object of that kind: `count/` and resource.group, and for some an older name."""
    kind = KINDS[key.kind]
    group = kind.api_version.rpartition("/")[0]
    every = f"count/{kind.plural}.{group}" if group else f"count/{kind.plural}"
    return [kind.plural, every] if key.kind in _BY_NAME else [every]


def _unstated(api: Api, run: Fleet, rooms: Mapping[str, tuple[float, float]]) -> str:
    """Resources that a quota counts and a container does not state: such a pod is refused. "": none."""
    names = {"cpu": "requests.cpu", "memory": "requests.memory", "ephemeral-storage": "requests.ephemeral-storage"}
    counted = {names.get(name, name) for name in rooms} & {
        f"{side}.{name}" for side in ("requests", "limits") for name in names
    }
    missing = sorted(name for name in counted if any(name not in fleet.asks(run.objects[key]) for key in run.pods))
    if not missing:
        return ""
    given = _given(api)
    return ", ".join(name for name in missing if name not in given)


def _given(api: Api) -> set[str]:
    """Resources that LimitRanges of the namespace fill in."""
    try:
        ranges = api.raw(f"/api/v1/namespaces/{api.namespace}/limitranges").get("items") or ()
    except ApiError:
        return {"requests.cpu", "requests.memory", "limits.cpu", "limits.memory"}  # may not be read: no reason to stop
    found: set[str] = set()
    for each in ranges:
        for limit in (each.get("spec") or {}).get("limits") or ():
            if limit.get("type") == "Container":
                found |= {f"limits.{name}" for name in limit.get("default") or {}}
                found |= {f"requests.{name}" for name in limit.get("defaultRequest") or limit.get("default") or {}}
    return found


def models(api: Api, run: Fleet) -> Iterator[Check]:
    """Time that one weight refresh of all actors takes."""
    actors, pools = run.of("actor"), max(1, run.of("modelpool"))
    serve = len(serving(pools))
    of_all = f"{serve} of {pools}" if pools > 1 else "1"
    seconds = actors * MODEL_MB / (serve * POOL_MB_PER_S)
    text = (
        f"each {MODEL_MB:.0f} MB of weights takes {seconds:,.1f} s to reach all actors "
        f"({actors:,} x {MODEL_MB:.0f} MB / ({of_all} model pool{'s' * (pools > 1)} x {POOL_MB_PER_S:,.0f} MB/s))"
    )
    if seconds > _REFRESH_S:
        again = (
            "actors play older weights for so long; more roles.modelpool.replicas serve them sooner, a larger "
            "algorithm.publish_every_updates asks for fewer"
        )
        yield Check("model traffic", "warning", text, again)
    else:
        yield Check("model traffic", "ok", text)


def nodes(api: Api, run: Fleet) -> Iterator[Check]:
    """Bytes that all nodes together have to pull, and whether each kind of pod fits on the largest node."""
    try:
        found = _nodes(api)
    except ApiError as error:
        yield _images(run, ())
        yield not_read("nodes", error)
        return
    yield _images(run, found)
    yield _largest(run, found)


def not_read(name: str, error: ApiError) -> Check:
    """Result of a check whose data cannot be read."""
    return Check(name, "not checked", unread(error))


def _images(run: Fleet, nodes: Sequence[Object]) -> Check:
    """Bytes of each image x nodes that lack it; at most one node per pod if no nodes can be read.

    Args:
        nodes: nodes that can be read.
    """
    pods: dict[str, int] = {}
    for key, count in run.pods.items():
        for image in dict.fromkeys(fleet.images(run.objects[key])):
            pods[image] = pods.get(image, 0) + count
    held = {image: _held(nodes, image) for image in pods}
    lack = {image: min(len(nodes) - len(held[image]), count) if nodes else count for image, count in pods.items()}
    told_by_registry = run.sizes([image for image in pods if lack[image] and not held[image]])
    total, told, unknown = 0.0, [], []
    for image, missing in lack.items():
        name = image if (named := Reference.try_parse(image)) is None else str(named.by_tag)
        size = max(held[image], default=float(told_by_registry.get(image, 0)))
        if not size:
            unknown.append(f"{name} on up to {missing:,} nodes")
            continue
        total += size * missing
        where = f"{missing:,} of {len(nodes):,}" if nodes else f"up to {missing:,}"
        told.append(f"{name} {size / 1e6:,.0f} MB x {where} nodes")
    seconds = total / 1e6 / REGISTRY_MB_PER_S
    text = "; ".join(told)
    if told:
        text += f": {total / 1e9:,.1f} GB, {seconds:,.0f} s from a registry with 10 Gbit/s"
    if unknown:
        text += f"{'; ' if told else ''}size not known, as no node has it and no registry says it: {', '.join(unknown)}"
    slow = bool(nodes) and seconds > _PULL_S  # one node per pod is an upper bound, and no reason to warn
    return Check("images", "warning" if slow else "ok" if told else "not checked", text)


def _held(nodes: Sequence[Object], image: str) -> list[float]:
    """Bytes of an image on each node that has it."""
    named = Reference.try_parse(image)
    digest = named.digest if named is not None and named.digest else image.partition("@")[2] or image
    return [size for node in nodes if (size := _size(node, digest)) is not None]


def _nodes(api: Api) -> list[Object]:
    found: list[Object] = []
    path = "/api/v1/nodes?limit=500"
    while path and len(found) < _NODES_READ:
        page = api.raw(path)
        found += page.get("items") or ()
        more = (page.get("metadata") or {}).get("continue")
        path = f"/api/v1/nodes?limit=500&continue={more}" if more else ""
    return found


def _size(node: Object, digest: str) -> float | None:
    for image in (node.get("status") or {}).get("images") or ():
        if any(str(name).endswith(digest) for name in image.get("names") or ()):
            return float(image.get("sizeBytes") or 0)
    return None


def _largest(run: Fleet, nodes: Sequence[Object]) -> Check:
    if not nodes:
        return Check("nodes", "warning", "the cluster has no node now; pods wait until one is added")
    too_large = []
    for role in dict.fromkeys(role_of(run.objects[key]) for key in run.pods):
        workload = next(run.objects[key] for key in run.pods if role_of(run.objects[key]) == role)
        parts = sorted(fleet.asks(workload).items())
        asked = {name.partition(".")[2]: value for name, value in parts if name.startswith("requests.")}
        if not any(all(value <= _allocatable(node, name) for name, value in asked.items()) for node in nodes):
            words = ", ".join(f"{name} {admission.shown(name, value)}" for name, value in asked.items())
            too_large.append(f"{role} asks for {words}")
    if too_large:
        text = f"no node of {len(nodes)} is large enough: {'; '.join(too_large)}; only an autoscaler could add one"
        return Check("nodes", "warning", text, "kubectl describe nodes  (Allocatable)")
    return Check("nodes", "ok", f"every kind of pod fits on one of {len(nodes)} nodes, when it is empty")


def _allocatable(node: Object, name: str) -> float:
    return amount(((node.get("status") or {}).get("allocatable") or {}).get(name, "0"))


def gang(api: Api, run: Fleet) -> Iterator[Check]:
    """Whether Kueue is installed, to hold back pods that are to start together."""
    named = ((run.objects[key]["metadata"].get("labels") or {}).get(names.QUEUE) for key in run.pods)
    queues = {str(queue) for queue in named if queue}
    if not queues:
        return
    groups = doctor.api_groups(api)
    if groups is None:
        yield Check("gang", "not checked", "the server's API groups cannot be read")
    elif "kueue.x-k8s.io" not in groups:
        text = f"Kueue is not installed: queue {', '.join(sorted(queues))} does not exist, learners start one by one"
        yield Check("gang", "problem", text, "kubernetes.gang: none, or have Kueue installed")
    else:
        yield Check("gang", "ok", f"learners wait in queue {', '.join(sorted(queues))} of Kueue")
