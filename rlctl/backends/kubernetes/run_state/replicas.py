"""Owner of a workload's number of replicas: `rlctl-scale`, unless another field manager has set another number.

A workload is created with no replicas by `rlctl`; then `rlctl-scale` takes the field over and sets the number. From
then on `rlctl` does not name it, so no `up` resets it. A number set by an autoscaler, kubectl or a person stays theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlctl.backends.kubernetes.api.interface import Key, Object
from rlctl.backends.kubernetes.api.ownership import REPLICAS, owning
from rlctl.backends.kubernetes.api.refusals import REPLICAS_FIELD, Row
from rlctl.spec.names import MANAGER, SCALE_MANAGER


@dataclass(frozen=True, slots=True)
class Count:
    """Replicas of a workload, and the owner of that number."""

    value: int
    whose: Literal["ours", "unfinished", "foreign"]  # unfinished: created, then we were killed
    by: str = ""  # the field managers, when foreign


def count(live: Object) -> Count:
    spec = live.get("spec") or {}
    value = int(spec.get("replicas", 1))
    found = owning(live, REPLICAS)
    if any(owner.manager == MANAGER and owner.applied for owner in found):
        return Count(value, "unfinished")
    foreign = [owner.manager for owner in found if owner.manager != SCALE_MANAGER]
    if foreign and len(foreign) == len(found):
        return Count(value, "foreign", ", ".join(dict.fromkeys(foreign)))
    return Count(value, "ours")


def with_replicas(document: Object, number: int = 0) -> Object:
    """A document with a number of replicas; at 0 nothing of it runs until another owner sets one."""
    return {**document, "spec": {**document["spec"], "replicas": number}}


def row(key: Key, found: Count, ours: int) -> Row:
    """The number as a row of a conflict."""
    return Row(str(key), REPLICAS_FIELD, found.by, str(found.value), str(ours))
