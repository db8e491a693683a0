"""Fleet of a plan on a cluster: its objects, the number of pods of each kind, and their requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rlctl.backends.base import Sizes, no_sizes
from rlctl.backends.kubernetes.api.interface import Api, ApiError, Key, Object
from rlctl.backends.kubernetes.api.quantity import amount
from rlctl.backends.kubernetes.api.refusals import in_words
from rlctl.backends.kubernetes.diagnose.causes.base import containers
from rlctl.backends.kubernetes.run_state import desired_state
from rlctl.backends.kubernetes.run_state.inventory import role_of
from rlctl.plan import Document, Plan
from rlctl.spec import names

MODEL_MB: Final = 10.0
"""MB of weights assumed for traffic: the size is unknown before a learner has created them."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """All objects of a run, and its pods by workload."""

    wanted: desired_state.DesiredState
    pods: Mapping[Key, int]  # workload -> replicas
    live: Mapping[Key, int]  # workload -> pods that exist already
    sizes: Sizes = no_sizes

    @property
    def objects(self) -> Mapping[Key, Object]:
        return self.wanted.objects

    @property
    def total(self) -> int:
        return sum(self.pods.values())

    @property
    def new(self) -> Mapping[Key, int]:
        """Pods that do not exist yet."""
        return {key: max(0, count - self.live.get(key, 0)) for key, count in self.pods.items()}

    def of(self, role: str) -> int:
        """Pods of a role."""
        return sum(count for key, count in self.pods.items() if role_of(self.objects[key]) == role)


def of(api: Api, plan: Plan, documents: Iterable[Document], sizes: Sizes = no_sizes) -> Fleet:
    """Pods and objects of a run, as planned and as live.

    Args:
        sizes: queries registries for image sizes.

    Raises:
        RlctlError: a document is no object of this run.
        ApiError: workloads may not be read.
    """
    known = desired_state.of_plan(plan, documents, {})
    replicas = {role.role: role.replicas for role in plan.roles}
    pods: dict[Key, int] = {}
    for role in dict.fromkeys(role_of(known.objects[key]) for key in known.workloads()):
        workloads = known.workloads(role)
        count = replicas.get(role)  # type: ignore[call-overload]
        pods |= dict.fromkeys(workloads, 1) if count is None else desired_state.shares(workloads, count)
    live: dict[Key, int] = {}
    for kind in names.WORKLOADS:
        try:
            listed = api.list(kind, labels=names.selector(plan.run)).items
        except ApiError as error:
            raise in_words(error, "list", Key(kind, plan.run), api, written=False) from error
        for found in listed:
            live[Key(kind, found["metadata"]["name"])] = int((found.get("status") or {}).get("replicas") or 0)
    return Fleet(known, pods, live, sizes)


def template(workload: Object) -> dict[str, Any]:
    """Pod template of a workload."""
    return dict((workload.get("spec") or {}).get("template") or {})


def asks(workload: Object) -> dict[str, float]:
    """Amounts that one pod counts for in a quota: "requests.cpu" -> 4, "limits.memory" -> bytes, "pods" -> 1.

    The maximum of the sum over containers and of each init container, as in the scheduler.
    """
    spec = template(workload).get("spec") or {}
    found: dict[str, float] = {"pods": 1.0}
    for side in ("requests", "limits"):
        total: dict[str, float] = {}
        for each in spec.get("containers") or ():
            for name, value in _resources(each, side).items():
                total[name] = total.get(name, 0.0) + amount(value)
        for each in spec.get("initContainers") or ():
            for name, value in _resources(each, side).items():
                total[name] = max(total.get(name, 0.0), amount(value))
        found |= {f"{side}.{name}": value for name, value in total.items()}
    for name in ("cpu", "memory", "ephemeral-storage"):  # a quota may leave out the side
        if f"requests.{name}" in found:
            found[name] = found[f"requests.{name}"]
    return found


def _resources(container: Object, side: str) -> dict[str, Any]:
    resources = container.get("resources") or {}
    given = dict(resources.get(side) or {})
    return given if side == "limits" else {**(resources.get("limits") or {}), **given}  # a limit alone is a request too


def images(workload: Object) -> list[str]:
    return [str(each["image"]) for each in containers(template(workload)) if each.get("image")]
