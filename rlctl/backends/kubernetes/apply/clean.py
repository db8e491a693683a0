"""Removal of a run's folder from a volume that is not ours, by a pod, as only pods reach the volume."""

from __future__ import annotations

from typing import Final

from rlctl.backends.kubernetes.api.interface import Key, Object, kubectl
from rlctl.backends.kubernetes.api.watch import follow
from rlctl.backends.kubernetes.run_state.desired_state import DesiredState
from rlctl.backends.kubernetes.run_state.session import Session
from rlctl.backends.kubernetes.run_state.volume_pod import folder_of, pod_of
from rlctl.errors import PartlyApplied

TIMEOUT_S: Final = 300.0
_REMOVE: Final = "import shutil, sys, os; os.path.isdir(sys.argv[1]) and shutil.rmtree(sys.argv[1])"


def key_of(run: str) -> Key:
    return Key("Pod", f"{run}-clean")


def pod(wanted: DesiredState) -> Object | None:
    """Pod that removes VOLUME/runs/<run>-<uid8> and nothing else; None: the run has no manager to copy it from."""
    return pod_of(wanted, key_of(wanted.run).name, "clean", ["python", "-c", _REMOVE, folder_of(wanted)])


def await_end(session: Session, key: Key, folder: str) -> None:
    """Wait for the end of the pod that removes files.

    Raises:
        PartlyApplied: the pod could not run, did not finish in time, or is gone; the same command tries again.
    """
    phase, do = _phase(session, key), kubectl(session.api)
    if phase == "Succeeded":
        return
    ends = {None: "was deleted by another hand", "Failed": "has failed"}
    look = "" if phase is None else f"{do} logs {key.name} and {do} describe pod {key.name} say why; "
    raise PartlyApplied(
        f"Pod {key.name}, which removes {folder} from the volume, "
        + ends.get(phase, f"has not come to its end within {TIMEOUT_S:g} s"),
        hint=f"{look}the same command tries again.",
        objects=(str(key),),
    )


def _phase(session: Session, key: Key) -> str | None:
    """Phase in which the pod has ended, or is at the timeout; None: it is gone."""
    patience = session.patience(TIMEOUT_S)
    for known in follow(session.api, "Pod", fields=f"metadata.name={key.name}"):
        pod = known.get(key.name)
        if pod is None:
            return None
        phase = str((pod.get("status") or {}).get("phase") or "")
        if phase in ("Succeeded", "Failed") or patience.over(f"{key}, which removes the data of the run"):
            return phase
    return ""
