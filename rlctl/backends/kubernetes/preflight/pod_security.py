"""Check whether the Pod Security level of a namespace admits the pods of a run, patches included."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rlctl.backends.base import Check
from rlctl.backends.kubernetes.api.interface import Api, Object
from rlctl.backends.kubernetes.diagnose.causes.base import containers
from rlctl.backends.kubernetes.preflight import doctor, fleet
from rlctl.backends.kubernetes.preflight.fleet import Fleet
from rlctl.backends.kubernetes.run_state.inventory import role_of


def pod_security(api: Api, run: Fleet) -> Iterator[Check]:
    """Whether the namespace's level admits the pods, patches included."""
    level, why = doctor.psa_level(api)
    if why:
        yield Check("pod security", "not checked", f"the level of namespace {api.namespace}: {why}")
        return
    faults = dict.fromkeys(
        f"{role_of(run.objects[key])}: {fault}"
        for key in run.pods
        for fault, in_baseline in _faults(run.objects[key])
        if level == "restricted" or (level == "baseline" and in_baseline)
    )
    if faults:
        text = f"namespace {api.namespace} enforces {level}, and would refuse {'; '.join(faults)}"
        yield Check("pod security", "problem", text, "change the patch beside the spec")
    else:
        yield Check("pod security", "ok", f"namespace {api.namespace} enforces {level}")


def _faults(workload: Object) -> Iterator[tuple[str, bool]]:
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
        if "ALL" not in ((own.get("capabilities") or {}).get("drop") or ()):
            yield f"container {name} does not drop all capabilities", False
        if own.get("runAsNonRoot", pod.get("runAsNonRoot")) is not True:
            yield f"container {name} may run as root", False
        profile = (own.get("seccompProfile") or pod.get("seccompProfile") or {}).get("type")
        if profile not in ("RuntimeDefault", "Localhost"):
            yield f"container {name} has no seccomp profile", False
        if any(port.get("hostPort") for port in each.get("ports") or ()):
            yield f"container {name} uses a host port", True
