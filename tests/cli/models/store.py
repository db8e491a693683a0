"""A run's folder with models in it, written as its learner and its evaluators write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from rlctl.spec.layout import Layout
from rlctl.spec.schema import Network
from rlctl_agents.algorithms.base import Algorithm
from rlctl_agents.checkpoint.policy import describe, pack_policy
from rlctl_agents.manager.checkpoints.manifests import Manifests
from rlctl_agents.manager.evaluation.selection import Selected
from rlctl_agents.manager.state_store import Evaluation
from rlctl_agents.models.weights import digest, pack
from rlctl_agents.types.experience import ModelRef
from rlctl_agents.types.spaces import Spaces
from rlctl_agents.weights.client import Model
from rlctl_agents.weights.disk_store import keep
from tests.training.test_stored_policy import saved


def evaluation(version: int, mean: float, mode: str = "greedy") -> Evaluation:
    """Of a hundred episodes."""
    return Evaluation(mean, 41.5, 98.0, 301.0, 100, mode, ModelRef("main", 2, version), 1234, 10.1, 2.5, 1.79e9)


def generation(layout: Layout, config: Any, network: Network, spaces: Spaces) -> Algorithm:
    """Generation 3: version 17, learned from 1,234 steps."""
    layout.checkpoints.mkdir(parents=True, exist_ok=True)
    made, algorithm = saved(layout.checkpoints, config, network, spaces)
    Manifests(layout.checkpoints).commit(made)
    return algorithm


def best(
    layout: Layout, algorithm: Algorithm, config: Any, network: Network, spaces: Spaces, *, version: int = 17
) -> None:
    """A version as the best model."""
    layout.models.mkdir(parents=True, exist_ok=True)
    schema = type(algorithm).schema(config, network, spaces)
    sections = network.model_dump(mode="json"), config.model_dump(mode="json")
    described = describe(ModelRef("main", 2, version), 1234, spaces, schema, *sections)
    data = pack(algorithm.net.state_dict(), 1234)
    file = keep(layout.models, Model(described.ref, digest(data), data, pack_policy(described)))
    selected = Selected(
        policy=file, tensors=file.replace(".json", ".safetensors"), sha256=digest((layout.models / file).read_bytes()),
        evaluation=evaluation(version, 212.3), other=evaluation(version, 187.5, "sample"),
    )  # fmt: skip
    (layout.models / "best.json").write_bytes(msgspec.json.encode(selected))


def evaluated(layout: Layout, *evaluations: Evaluation) -> None:
    """Lines of evaluations.jsonl, the last of them torn."""
    layout.results.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({**msgspec.to_builtins(one), "returns": [1.0]}) for one in evaluations]
    (layout.results / "evaluations.jsonl").write_text("\n".join([*lines, '{"mean": 1']))


def flip(path: Path) -> None:
    """Change one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
