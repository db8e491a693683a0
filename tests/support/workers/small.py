"""A run small enough for a test, and how far its learner is."""

from __future__ import annotations

from typing import Any

from rlctl.spec.schema import Spec
from rlctl_agents.types.experience import ModelRef
from tests.support.fakes import Manager

NEWEST = ModelRef("main", -1, -1)


def spec_of(**changes: Any) -> Spec:
    return Spec.model_validate(
        {
            "run": "test",
            "env": {"id": "tests.envs.tiny:Mixed"},
            "algorithm": {"name": "impala", "unroll_length": 5, "batch_size": 40, "max_lag_versions": 100},
            "model": {"hidden": [8]},
            "roles": {"actor": {"envs": 4}},
            **changes,
        }
    )


SPEC = spec_of()


def consumed(manager: Manager) -> float:
    report = manager.newest("learner")
    return report.counters.get("consumed_steps", 0.0) if report is not None else 0.0
