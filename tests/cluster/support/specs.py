"""Spec files of the tests, and what they lay over our objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rlctl.spec.names import selector as selector
from tests.cluster.support.people import Person

NO_IMAGE: Final = "registry.invalid/rlctl/none@sha256:" + "0" * 64
WORKLOADS: Final = ("manager", "modelpool", "learner", "actor", "evaluator", "tensorboard")
SMALL: Final[Mapping[str, Mapping[str, Any]]] = {
    "manager": {"cpu": 0.05, "memory": "512Mi"},
    "modelpool": {"cpu": 0.05, "memory": "512Mi"},
    "learner": {"cpu": 0.1, "memory": "2Gi"},
    "actor": {"cpu": 0.1, "memory": "1Gi"},
    "evaluator": {"cpu": 0.1, "memory": "1Gi"},
}
"""A node of the test cluster claims the whole machine, so requests say little."""
CARTPOLE: Final[Mapping[str, Any]] = {
    "env": {"id": "CartPole-v1"},
    "algorithm": {
        "name": "impala", "unroll_length": 16, "batch_size": 256, "reward_clip": 0.1, "gamma": 0.99, "lambda": 0.95,
        "advantage": "vtrace", "value_batches": 0,
        "optimizer": "rmsprop", "lr": 1e-3, "entropy_coef": 0, "max_grad_norm": 0.1, "max_lag_versions": 4,
    },
    "model": {"hidden": [64, 64], "activation": "tanh"},
    "evaluation": {"episodes": 10, "every": "20s", "envs": 10},
    "checkpoint": {"every": "5s"},
    "storage": {"size": "1Gi"},
}  # fmt: skip


def spec(run: str, *, actors: int = 1, envs: int = 8, **more: Any) -> dict[str, Any]:
    """A run on the cluster that asks for little."""
    roles = {role: dict(section) for role, section in SMALL.items()}
    roles["actor"] |= {"replicas": actors, "envs": envs}
    return {"run": run, "target": "kubernetes", **CARTPOLE, "roles": roles, **more}


def parked(who: Person, run: str = "parked", **more: Any) -> str:
    """Write the spec of a run with all objects made and pods that find no node; returns the file.

    Its pods wait, so the control plane alone is at work, whether the cluster has nodes or not.
    """
    nowhere = {"spec": {"template": {"spec": {"nodeSelector": {"rlctl.dev/test": "nowhere"}}}}}
    for role in WORKLOADS:
        who.writes(f"templates/{role}.patch.yaml", nowhere)
    images = dict.fromkeys(("core", "actor", "learner"), NO_IMAGE)
    return who.writes(f"{run}.yaml", spec(run, **{"images": images, "actors": 2, **more}))
