"""Names, labels and ports of the objects of a run on a cluster.

The single source: templates get these names, the backend finds objects by them, the roles bind these ports.
"""

from __future__ import annotations

from typing import Final

DOMAIN: Final = "rlctl.dev"
MANAGER: Final = "rlctl"
"""Field manager of everything that is rendered."""
SCALE_MANAGER: Final = "rlctl-scale"
"""Field manager of `spec.replicas`, and of nothing else."""
IN_CLUSTER: Final = "in-cluster"
"""Context of a pod's own cluster, where there is no kubeconfig."""
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
INSTANCE: Final = "app.kubernetes.io/instance"
COMPONENT: Final = "app.kubernetes.io/component"
UID: Final = f"{DOMAIN}/uid"
"""Annotation of every object, and label of its pods: the uid of the run."""
WORKLOADS: Final = {"Deployment": "deployments", "StatefulSet": "statefulsets"}
"""Kind that has pods -> its plural in a path of the API."""
STATEFUL: Final = ("manager", "modelpool", "replay", "learner")
"""Roles of a StatefulSet: the names of their pods have a meaning, and there are few."""
QUEUE: Final = "kueue.x-k8s.io/queue-name"
"""Label of a workload that Kueue admits: its queue."""
_WAVES: Final = {"PersistentVolumeClaim": 1, "Service": 2, "PodDisruptionBudget": 2}
_WAVES_OF_ROLES: Final = {"manager": 3, "modelpool": 3, "replay": 4, "inference": 5, "learner": 5, "actor": 7}
SHARD: Final = f"{DOMAIN}/shard"
"""Label of the pods of one actor Deployment, and part of its selector: its number."""
SHARD_REPLICAS: Final = 1000
"""Replicas of one actor Deployment, at most."""
PORTS: Final = {"rpc": 7100, "notice": 7101, "experience": 7102, "probe": 7180, "control": 7190, "tensorboard": 6006}
PAGES: Final = {"tensorboard": ("tensorboard", "tensorboard"), "status": ("manager", "probe")}
"""Page -> component whose pods show it, and the name of its port."""
VOLUME: Final = "/rlctl"
"""Mount path of the shared volume; the folder of a run is VOLUME/runs/<name>-<uid8>."""


def wave(kind: str, role: str) -> int:
    """Wave in which an object is sent: what others need comes first. `down` goes the other way."""
    return _WAVES_OF_ROLES.get(role, 6) if kind in WORKLOADS else _WAVES.get(kind, 0)


def labels(run: str, role: str = "") -> dict[str, str]:
    """Labels of an object; those of a pod are the same, and its selector's are instance and component."""
    ours = {"app.kubernetes.io/name": "rlctl", "app.kubernetes.io/part-of": "rlctl", MANAGED_BY: MANAGER}
    return {**ours, INSTANCE: run, **({COMPONENT: role} if role else {})}


def selector(run: str, role: str = "") -> str:
    """The label selector that finds the objects, or pods, of a run."""
    found = f"{MANAGED_BY}={MANAGER},{INSTANCE}={run}"
    return f"{found},{COMPONENT}={role}" if role else found


def state_name(run: str) -> str:
    """ConfigMap: record of the run, and inventory of its objects."""
    return f"{run}-state"


def revision_name(run: str, revision: int) -> str:
    """Immutable ConfigMap: spec and documents of one revision."""
    return f"{run}-revision-{revision}"


def lock_name(run: str) -> str:
    """Lease held while a command writes."""
    return f"{run}-lock"


def keys_name(run: str, key_class: str) -> str:
    """Secret with the CURVE keys of a class, `actor` or `core`."""
    return f"{run}-keys-{key_class}"


def run_file_name(run: str, role: str, digest: str) -> str:
    """Immutable ConfigMap: run file of a role, named by its hash."""
    return f"{run}-{role}-{digest}"


def live_name(run: str) -> str:
    """ConfigMap: live fields, which the manager reads again while it runs."""
    return f"{run}-live"


def volume_name(run: str) -> str:
    """PersistentVolumeClaim of a run whose spec names none."""
    return f"{run}-volume"


def workload_name(run: str, role: str, shard: int | None = None) -> str:
    """StatefulSet or Deployment of a role; actors have one Deployment for each shard."""
    return f"{run}-{role}" if shard is None else f"{run}-{role}-{shard}"


def document_name(kind: str, name: str) -> str:
    """File name of the document of an object."""
    return f"{kind}-{name}.yaml".lower()


def shards(most: int) -> int:
    """Number of Deployments that hold so many actors; at least one."""
    return max(1, -(-most // SHARD_REPLICAS))


def spread(replicas: int, shards: int) -> list[int]:
    """Replicas of each shard: the first are filled first.

    Example:
        2,300 over 3 are 1,000, 1,000 and 300.
    """
    return [min(SHARD_REPLICAS, max(0, replicas - shard * SHARD_REPLICAS)) for shard in range(shards)]
