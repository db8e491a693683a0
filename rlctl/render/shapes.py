"""Shapes of the parts of a patched object that rlctl itself reads; the cluster validates the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rlctl.spec.words import Path as Keys
from rlctl.spec.words import show

_SOME: Final[dict[str, Any]] = {}
"""A mapping of anything."""
_CONTAINER: Final = {
    "name": "",
    "image": "",
    "command": [None],
    "args": [None],
    "env": [{"name": "", "valueFrom": {"configMapKeyRef": _SOME}}],
    "ports": [_SOME],
    "resources": {"requests": _SOME, "limits": _SOME},
    "securityContext": {"capabilities": {"drop": [None]}, "seccompProfile": _SOME},
    "volumeMounts": [_SOME],
}
_POD: Final = {
    "metadata": {"labels": _SOME, "annotations": _SOME},
    "spec": {
        "containers": [_CONTAINER],
        "initContainers": [_CONTAINER],
        "securityContext": {"seccompProfile": _SOME},
        "volumes": [{"name": "", "persistentVolumeClaim": _SOME}],
    },
}
_METADATA: Final = {"labels": _SOME, "annotations": _SOME}
_WORKLOAD: Final = {"metadata": _METADATA, "spec": {"template": _POD}}
_OTHER: Final = {"metadata": _METADATA, "spec": {"selector": _SOME, "resources": {"requests": _SOME}}}


def faults(kind: str, patch: Any) -> Iterator[tuple[Keys, str]]:
    """Faults in the form of a patch, by the schema that Kubernetes has for an object of this kind.

    null is no fault: it removes. An entry of a list that is known by its name has to say it.
    """
    yield from _faults(_WORKLOAD if kind in ("Deployment", "StatefulSet") else _OTHER, patch, ())


def _faults(shape: Any, value: Any, keys: Keys) -> Iterator[tuple[Keys, str]]:
    if isinstance(shape, Mapping):
        if not isinstance(value, dict):
            yield keys, f"must be a mapping (key: value), got {show(value)}"
            return
        for key, below in shape.items():
            if value.get(key) is not None:
                yield from _faults(below, value[key], (*keys, key))
    elif isinstance(shape, list):
        if not isinstance(value, list):
            yield keys, f"must be a list, got {show(value)}"
            return
        for index, item in enumerate(value):
            yield from _faults(shape[0], item, (*keys, index))
            if isinstance(item, dict) and isinstance(shape[0], Mapping) and "name" in shape[0]:
                yield from () if item.get("name") is not None else [((*keys, index), "needs a `name`")]
    elif shape == "" and not isinstance(value, str):
        yield keys, f"must be text, got {show(value)}"
