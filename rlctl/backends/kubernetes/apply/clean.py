"""Removing the folder of a run from a volume that is not ours: a pod does it, because only pods reach the volume."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from rlctl.backends.kubernetes.api.interface import Key, Object
from rlctl.backends.kubernetes.api.session import Session
from rlctl.backends.kubernetes.api.watch import follow
from rlctl.backends.kubernetes.names import COMPONENT, UID, VOLUME, labels
from rlctl.backends.kubernetes.run_state.wanted import Wanted
from rlctl.errors import PartlyApplied
from rlctl.spec.layout import Layout

TIMEOUT_S: Final = 300.0
_REMOVE: Final = "import shutil, sys, os; os.path.isdir(sys.argv[1]) and shutil.rmtree(sys.argv[1])"
_TAKEN: Final = (
    "securityContext", "tolerations", "nodeSelector", "affinity", "imagePullSecrets", "volumes", "priorityClassName",
    "runtimeClassName",
)  # fmt: skip
"""Of the manager's pods: whatever lets them start there, and write to that volume."""


def key_of(run: str) -> Key:
    return Key("Pod", f"{run}-clean")


def pod(wanted: Wanted) -> Object | None:
    """The pod that removes VOLUME/runs/<run>-<uid8> and nothing else; None: the run has no manager to take after."""
    key = next(iter(wanted.workloads("manager")), None)
    if key is None:
        return None
    folder = str(Layout.of(Path(VOLUME), wanted.run, wanted.uid).root)
    return _pod(key_of(wanted.run), wanted.objects[key]["spec"]["template"], wanted.run, wanted.uid, folder)


def await_end(session: Session, key: Key, folder: str) -> None:
    """
    Raises:
        PartlyApplied: the pod could not run, or did not come to its end; the same command tries again.
    """
    phase = _phase(session, key)
    if phase != "Succeeded":
        raise PartlyApplied(
            f"Pod {key.name}, which removes {folder} from the volume, "
            + ("has failed" if phase == "Failed" else f"has not come to its end within {TIMEOUT_S:g} s"),
            hint=f"kubectl logs {key.name} and kubectl describe pod {key.name} say why; the same command tries again.",
            objects=(str(key),),
        )


def _pod(key: Key, template: Object, run: str, uid: str, folder: str) -> Object:
    spec = template["spec"]
    container = spec["containers"][0]
    mounts = [mount for mount in container.get("volumeMounts") or [] if mount["mountPath"] == VOLUME]
    names = {mount["name"] for mount in mounts}
    taken: dict[str, Any] = {name: spec[name] for name in _TAKEN if name in spec}
    taken["volumes"] = [volume for volume in taken.get("volumes") or [] if volume["name"] in names]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": key.name, "labels": {**labels(run), COMPONENT: "clean"}, "annotations": {UID: uid}},
        "spec": {
            **taken,
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "containers": [
                {
                    "name": "clean",
                    "image": container["image"],
                    "command": ["python", "-c", _REMOVE, folder],
                    "volumeMounts": mounts,
                    **{name: container[name] for name in ("resources", "securityContext") if name in container},
                }
            ],
        },
    }


def _phase(session: Session, key: Key) -> str:
    """The phase that the pod has ended with, or has when its time is up."""
    patience = session.patience(TIMEOUT_S)
    for known in follow(session.api, "Pod", fields=f"metadata.name={key.name}"):
        pod = known.get(key.name)
        phase = str(((pod or {}).get("status") or {}).get("phase") or "")
        if (
            pod is None
            or phase in ("Succeeded", "Failed")
            or patience.over(f"{key}, which removes the data of the run")
        ):
            return phase
    return ""
