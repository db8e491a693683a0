"""Settings that all cells of the scaling benchmark share."""

from __future__ import annotations

from typing import Any

SEGMENT_STEPS = 16
BATCH_ROWS = 256
LATENCIES_MS, CPUS_MS = (0.0, 10.0), (0.1, 0.5)
BEST_OF = (32, 128)
"""Environments of the best single process: the fastest of these counts."""


def run_spec(replicas: int, latency_ms: float, cpu_ms: float, *, envs: int = 1, **more: Any) -> dict[str, Any]:
    """Actors of one environment each, a real learner, no evaluator."""
    return {
        "run": "scaling",
        "env": {"id": "benchmarks.envs.latency:Latency", "kwargs": {"latency_ms": latency_ms, "cpu_ms": cpu_ms}},
        "algorithm": {"name": "impala", "unroll_length": SEGMENT_STEPS, "batch_size": BATCH_ROWS,
                      "max_lag_versions": 16, "lr": 1e-4, "value_batches": 0},
        "model": {"hidden": [64, 64]},
        "roles": {"actor": {"replicas": replicas, "max_replicas": 256, "envs": envs, "cpu": 0.1,
                            "memory": "256Mi", **more}, "evaluator": {"replicas": 0}},
        "checkpoint": {"every": "10m"},
    }  # fmt: skip
