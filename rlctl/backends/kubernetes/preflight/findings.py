"""Preflight findings: faults that can be known before anything is sent, in figures, each with its arithmetic.

A problem stops `up`: it cannot work. A lack of capacity that other users may still free is a warning.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from rlctl.backends.base import Check, Sizes, no_sizes
from rlctl.backends.kubernetes.api.interface import Api, ApiError, Key, Object
from rlctl.backends.kubernetes.diagnose.causes.base import containers
from rlctl.backends.kubernetes.preflight import capacity, doctor, fleet, shared_volume
from rlctl.backends.kubernetes.preflight.fleet import Fleet
from rlctl.backends.kubernetes.run_state import desired_state
from rlctl.backends.kubernetes.run_state.inventory import role_of
from rlctl.plan import Document, Plan
from rlctl.spec.words import duration

STRING_BYTES: Final = 131_072
"""Linux: bytes of one argument or variable, its end included."""
START_BYTES: Final = 2_097_152
"""Linux: bytes of all arguments and variables of a process, a quarter of its stack."""
REQUEST_BYTES: Final = 1_572_864
"""etcd: bytes of one object, 1.5 MiB."""
DATA_BYTES: Final = 1_048_576
"""Kubernetes: bytes of data of a ConfigMap or Secret, 1 MiB."""
ANNOTATIONS_BYTES: Final = 262_144
"""Kubernetes: bytes of all annotations of an object."""
PODS_IN_NAMESPACE: Final = 3_000
ENDPOINTS: Final = 250
SERVICES_IN_NAMESPACE: Final = 5_000
"""Kubernetes is tested up to these limits by its scalability group; beyond, it works and slows down."""
CREATED_PER_S: Final = 20.0
"""Pods created per second: default of the controllers' client, for all workloads of the cluster together."""
BOUND_PER_S: Final = 50.0
"""Pods bound per second: default of the scheduler's client."""
_LINK_BYTES: Final = 7 * 60
"""Bytes of the seven variables for each Service of the namespace, unless enableServiceLinks is false."""
_SLOW_S: Final = 60.0


def checks(api: Api, plan: Plan, documents: Iterable[Document], sizes: Sizes = no_sizes) -> list[Check]:
    """All checks; one whose data may not be read is "not checked".

    Args:
        sizes: queries registries for images that no node is known to have.

    Raises:
        RlctlError: a document is no object of this run.
        ApiError: workloads may not be read.
    """
    run = fleet.of(api, plan, documents, sizes)
    found: list[Check] = []
    for name, part in _PARTS.items():
        try:
            found += part(api, run)
        except ApiError as error:
            found.append(capacity.not_read(name, error))
    return found


def _environment(api: Api, run: Fleet) -> Iterator[Check]:
    links = 0
    if any((fleet.template(run.objects[key]).get("spec") or {}).get("enableServiceLinks", True) for key in run.pods):
        links = len(api.list("Service").items)
    largest, whole = (0, "-", "-"), (0, "-")
    too_long: list[str] = []
    for key in run.pods:
        workload = run.objects[key]
        linked = (fleet.template(workload).get("spec") or {}).get("enableServiceLinks", True)
        for container in containers(fleet.template(workload)):
            strings = list(_strings(run, container))
            total = sum(size for _, size in strings) + (links * _LINK_BYTES if linked else 0)
            name, size = max(strings, key=lambda each: each[1], default=("-", 0))
            largest = max(largest, (size, name, str(key)))
            whole = max(whole, (total, str(key)))
            too_long += [f"{name} of {key} has {size:,} bytes"] if size > STRING_BYTES else []
            too_long += [f"those of {key} together {total:,} of {START_BYTES:,}"] if total > START_BYTES else []
    text = (
        f"largest argument or variable: {largest[1]} of {largest[2]}, {largest[0]:,} of {STRING_BYTES:,} bytes; "
        f"all of one process: {whole[0]:,} of {START_BYTES:,}"
    )
    if links:
        text += f", of which {links} Services x {_LINK_BYTES} bytes: set enableServiceLinks: false"
    if too_long:
        text = f"the kernel takes {STRING_BYTES:,} bytes for one argument or variable: {'; '.join(too_long)}"
        yield Check("environment", "problem", text, "put it into a file: a ConfigMap that the pod mounts")
    else:
        yield Check("environment", "warning" if largest[0] > STRING_BYTES / 2 else "ok", text)


def _strings(run: Fleet, container: Object) -> Iterator[tuple[str, int]]:
    """Each argument and variable with its bytes, the end included; for a reference, by what the run itself defines."""
    for part in [*(container.get("command") or ()), *(container.get("args") or ())]:
        yield f"argument {str(part)[:24]}", len(str(part).encode()) + 1
    for variable in container.get("env") or ():
        value = str(variable.get("value") or "")
        reference = ((variable.get("valueFrom") or {}).get("configMapKeyRef")) or {}
        if source := run.objects.get(Key("ConfigMap", str(reference.get("name", "")))):
            value = str((source.get("data") or {}).get(reference.get("key"), ""))
        yield str(variable.get("name")), len(f"{variable.get('name')}={value}".encode()) + 1


def _services(api: Api, run: Fleet) -> Iterator[Check]:
    services = {key: thing for key, thing in run.objects.items() if key.kind == "Service"}
    sizes = {key: _endpoints(run, thing) for key, thing in services.items()}
    key, most = max(sizes.items(), key=lambda each: each[1], default=(Key("Service", "-"), 0))
    text = (
        f"{len(services)} Services of {SERVICES_IN_NAMESPACE:,} in a namespace; "
        f"largest: {key.name} with {most:,} endpoints of {ENDPOINTS}"
    )
    if most > ENDPOINTS:
        text += ": every pod that comes or goes is told to every node"
        yield Check("services", "warning", text, "fewer replicas, or a patch without that Service")
    else:
        yield Check("services", "warning" if len(services) > SERVICES_IN_NAMESPACE else "ok", text)


def _endpoints(run: Fleet, service: Object) -> int:
    selector = (service.get("spec") or {}).get("selector") or {}
    if not selector:
        return 0
    found = 0
    for key, count in run.pods.items():
        labels = (fleet.template(run.objects[key]).get("metadata") or {}).get("labels") or {}
        found += count if selector.items() <= labels.items() else 0
    return found


def _objects(api: Api, run: Fleet) -> Iterator[Check]:
    objects = dict(run.objects)
    revision = desired_state.revision_document(run.wanted, 1, datetime.now(UTC), "")
    objects[Key("ConfigMap", "the record of the revision")] = revision
    sizes = {key: _bytes(thing) for key, thing in objects.items()}
    faults = []
    for key, thing in objects.items():
        data = _data_bytes(thing) if key.kind in ("ConfigMap", "Secret") else 0
        notes = _bytes((thing.get("metadata") or {}).get("annotations") or {})
        faults += [f"{key}: {sizes[key]:,} of {REQUEST_BYTES:,} bytes (etcd)"] if sizes[key] > REQUEST_BYTES else []
        faults += [f"{key}: {data:,} of {DATA_BYTES:,} bytes of data"] if data > DATA_BYTES else []
        if notes > ANNOTATIONS_BYTES:
            faults.append(f"{key}: {notes:,} of {ANNOTATIONS_BYTES:,} bytes of annotations")
    largest = max(sizes, key=lambda key: sizes[key])
    text = (
        f"{len(run.objects)} objects, {sum(sizes.values()):,} bytes; "
        f"largest: {largest}, {sizes[largest]:,} of {REQUEST_BYTES:,} bytes"
    )
    if faults:
        yield Check("objects", "problem", f"too large for the cluster: {'; '.join(faults)}", "rlctl render")
    else:
        yield Check("objects", "warning" if sizes[largest] > REQUEST_BYTES / 2 else "ok", text)


def _bytes(value: object) -> int:
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())


def _data_bytes(thing: Object) -> int:
    packed = sum(len(str(value)) * 3 // 4 for value in (thing.get("binaryData") or {}).values())  # counted decoded
    return packed + sum(len(str(value).encode()) for value in (thing.get("data") or {}).values())


def _pods(api: Api, run: Fleet) -> Iterator[Check]:
    page = api.list("Pod", most=1)
    there = len(page.items) + page.remaining
    others = max(0, there - sum(run.live.values()))
    total = run.total + others
    text = f"{run.total:,} pods of this run + {others:,} others = {total:,} in namespace {api.namespace}"
    if total > PODS_IN_NAMESPACE:
        text += f"; Kubernetes is tested with {PODS_IN_NAMESPACE:,} in one: listing them gets slow"
        yield Check("pods", "warning", text)
    else:
        yield Check("pods", "ok", f"{text} (tested with {PODS_IN_NAMESPACE:,})")


def _rate(api: Api, run: Fleet) -> Iterator[Check]:
    new = sum(run.new.values())
    if not new:
        yield Check("creation", "ok", "all pods exist")
        return
    made_s, bound_s = new / CREATED_PER_S, new / BOUND_PER_S
    text = (
        f"{new:,} pods take at least {math.ceil(made_s):,} s at the controllers' default of {CREATED_PER_S:.0f}/s "
        f"({new:,} / {CREATED_PER_S:.0f}), and {math.ceil(bound_s):,} s at the scheduler's of {BOUND_PER_S:.0f}/s"
    )
    slow = made_s > _SLOW_S
    again = f"rlctl up --timeout: allow more than {duration(made_s + 60)}" if slow else ""
    yield Check("creation", "warning" if slow else "ok", text, again)


def _pod_security(api: Api, run: Fleet) -> Iterator[Check]:
    """Whether the namespace's level admits the pods, patches included."""
    level, why = doctor.psa_level(api)
    if why:
        yield Check("pod security", "not checked", f"the level of namespace {api.namespace}: {why}")
        return
    faults = dict.fromkeys(
        f"{role_of(run.objects[key])}: {fault}"
        for key in run.pods
        for fault, in_baseline in _psa_faults(run.objects[key])
        if level == "restricted" or (level == "baseline" and in_baseline)
    )
    if faults:
        text = f"namespace {api.namespace} enforces {level}, and would refuse {'; '.join(faults)}"
        yield Check("pod security", "problem", text, "change the patch beside the spec")
    else:
        yield Check("pod security", "ok", f"namespace {api.namespace} enforces {level}")


_BASELINE_CAPABILITIES: Final = frozenset(
    ("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP",
     "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT")
)  # fmt: skip
"""Those that the Pod Security level `baseline` lets a container add."""


def _psa_faults(workload: Object) -> Iterator[tuple[str, bool]]:
    """Settings that a patch could add and the level `restricted` forbids; whether `baseline` forbids each too."""
    spec: dict[str, Any] = fleet.template(workload).get("spec") or {}
    pod = spec.get("securityContext") or {}
    yield from ((name, True) for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name))
    allowed = {
        "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret",
    }  # fmt: skip
    for each in spec.get("volumes") or ():
        for kind in set(each) - allowed - {"name"}:
            yield f"volume {each.get('name')} of kind {kind}", kind == "hostPath"
    for each in containers(fleet.template(workload)):
        own = each.get("securityContext") or {}
        name = each.get("name")
        if own.get("privileged"):
            yield f"container {name} is privileged", True
        if own.get("allowPrivilegeEscalation") is not False:
            yield f"container {name} may escalate privileges", False
        for added in (own.get("capabilities") or {}).get("add") or ():
            if added != "NET_BIND_SERVICE":
                yield f"container {name} adds the capability {added}", added not in _BASELINE_CAPABILITIES
        if "ALL" not in ((own.get("capabilities") or {}).get("drop") or ()):
            yield f"container {name} does not drop all capabilities", False
        if own.get("runAsNonRoot", pod.get("runAsNonRoot")) is not True:
            yield f"container {name} may run as root", False
        profile = (own.get("seccompProfile") or pod.get("seccompProfile") or {}).get("type")
        if profile not in ("RuntimeDefault", "Localhost"):
            yield f"container {name} has no seccomp profile", profile == "Unconfined"
        if any(port.get("hostPort") for port in each.get("ports") or ()):
            yield f"container {name} uses a host port", True


_PARTS: Final[Mapping[str, Callable[[Api, Fleet], Iterable[Check]]]] = {
    "environment": _environment,
    "services": _services,
    "objects": _objects,
    "pods": _pods,
    "creation": _rate,
    "quota": capacity.quotas,
    "volume": shared_volume.volume,
    "model traffic": capacity.models,
    "nodes": capacity.nodes,
    "gang": capacity.gang,
    "pod security": _pod_security,
}
