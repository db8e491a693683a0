"""Pod of ours with the volume of a run, which only pods reach: it is scheduled like the run's manager."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rlctl.backends.kubernetes.api.interface import Object
from rlctl.backends.kubernetes.run_state.desired_state import DesiredState
from rlctl.spec.layout import Layout
from rlctl.spec.names import UID, VOLUME, labels

_TAKEN: Final = (
    "securityContext", "tolerations", "nodeSelector", "affinity", "imagePullSecrets", "volumes", "priorityClassName",
    "runtimeClassName",
)  # fmt: skip
"""Fields copied from the manager's pods: they let a pod be scheduled there, and use that volume."""


def folder_of(wanted: DesiredState) -> str:
    """Folder of the run as its pods see it: VOLUME/runs/<run>-<uid8>."""
    return str(Layout.of(Path(VOLUME), wanted.run, wanted.uid).root)


def manager_of(wanted: DesiredState) -> Object | None:
    """Pod spec of the run's manager; None: the run has no manager."""
    key = next(iter(wanted.workloads("manager")), None)
    return None if key is None else dict(wanted.objects[key]["spec"]["template"]["spec"])


def pod_of(
    wanted: DesiredState, theirs: Object, name: str, component: str, command: Sequence[str], *,
    read_only: bool = False, container: Mapping[str, Any] | None = None, **spec: Any,
) -> Object:  # fmt: skip
    """Manifest of a pod with the volume and nothing else of the run.

    Args:
        wanted: the run as it was applied, patches included.
        theirs: pod spec of its manager, which is copied.
        component: label, and name of its container.
        command: program and arguments.
        read_only: mount the volume read-only.
        container, spec: fields that override those of the manager's container and pod.
    """
    manager = theirs["containers"][0]
    mounts = [mount for mount in manager.get("volumeMounts") or [] if mount["mountPath"] == VOLUME]
    if read_only:
        mounts = [{**mount, "readOnly": True} for mount in mounts]
    names = {mount["name"] for mount in mounts}
    taken: dict[str, Any] = {field: theirs[field] for field in _TAKEN if field in theirs}
    taken["volumes"] = [volume for volume in taken.get("volumes") or [] if volume["name"] in names]
    uid = {UID: wanted.uid}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {**labels(wanted.run, component), **uid}, "annotations": uid},
        "spec": {
            **taken,
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            **spec,
            "containers": [
                {
                    "name": component,
                    "image": manager["image"],
                    "command": [*command],
                    "volumeMounts": mounts,
                    **{field: manager[field] for field in ("resources", "securityContext") if field in manager},
                    **(container or {}),
                }
            ],
        },
    }
