"""Memory of a shard, asked before there is one: by a child without torch, and by the role itself."""

from __future__ import annotations

from typing import Any

import pytest

from rlctl.spec import fields
from rlctl.spec.algorithms import Replayed
from rlctl.spec.schema import Spec
from rlctl_agents import algorithms
from rlctl_agents.experience.replay.memory import (
    DRAWS_BYTES,
    draws_bytes,
    shard_bytes,
    shard_capacity,
    shard_settings,
    stored,
)
from rlctl_agents.experience.replay.shard import Shard
from rlctl_agents.roles.replay import require_memory
from rlctl_agents.runtime.process import UserFault
from rlctl_agents.types.spaces import Box, Dict, Discrete, MultiDiscrete, Spaces, Tuple
from tests.test_layers import SOURCES, imports

VECTOR, REACH = Box((3,), "float32"), Box((2,), "float32", -1.0, 1.0)
FRAMES = Box((4, 84, 84), "uint8", 0, 255, stack=4)


def spec(name: str, **sections: Any) -> Spec:
    return fields.normal(Spec.model_validate({"run": "r", "env": {"id": "-"}, "algorithm": {"name": name}, **sections}))


@pytest.mark.parametrize(
    ("name", "model", "spaces"),
    [
        ("dqn", {}, Spaces(VECTOR, Discrete(3))),
        ("dqn", {}, Spaces(FRAMES, Discrete(3))),
        ("apex_dqn", {}, Spaces(Dict({"camera": FRAMES, "speed": VECTOR}), Discrete(3), legal=True)),
        ("r2d2", {}, Spaces(VECTOR, Discrete(3))),
        ("r2d2", {"core": "gru", "width": 7}, Spaces(FRAMES, Tuple((Discrete(2), MultiDiscrete((3, 2)))), legal=True)),
        ("sac", {}, Spaces(VECTOR, REACH)),
        ("td3", {}, Spaces(VECTOR, REACH)),
    ],
)
def test_what_is_computed_without_torch_is_the_schema_that_the_algorithm_states(
    name: str, model: dict[str, Any], spaces: Spaces
) -> None:
    one = spec(name, model=model, replay={"capacity": 1000}, roles={"replay": {"replicas": 3}})
    config = one.policy("main").algorithm
    assert isinstance(config, Replayed)
    agreed = algorithms.schema_of(one, spaces, "main")
    assert stored(config, one.policy("main").model, spaces) == agreed
    assert shard_capacity(one) == 334
    shard = Shard(agreed, shard_settings(config), capacity=334, seed=0)
    assert shard_bytes(one, config, spaces) == shard.totals.nbytes


def test_what_computes_the_memory_of_a_shard_imports_no_torch() -> None:
    todo, seen = ["rlctl_agents.experience.replay.memory"], set[str]()
    while todo:
        for _, name in imports(todo.pop()):
            assert name.split(".")[0] != "torch", f"by way of {sorted(seen)}"
            if name in SOURCES and name not in seen:
                seen.add(name)
                todo.append(name)


def test_a_shard_that_would_be_killed_hours_later_does_not_begin() -> None:
    one = spec("dqn", replay={"capacity": 1_000_000}, roles={"replay": {"replicas": 2}})
    require_memory(one, 3 * 2**30, 4 * 2**30, 2)
    with pytest.raises(UserFault) as raised:
        require_memory(one, 3 * 2**30, 3 * 2**30 + 2**28, 2)
    assert str(raised.value) == (
        "replay.capacity: 1,000,000 rows in 2 shards of 3.0Gi, 6.0Gi in all; 3.2Gi of memory is left here for one and "
        "its process; replay.capacity 780,000 would fit"
    )


def test_large_draws_count() -> None:
    told = []
    for size in (32, 8192):
        one = spec("dqn", algorithm={"name": "dqn", "batch_size": size}, replay={"capacity": 1000})
        config = one.policy("main").algorithm
        assert isinstance(config, Replayed)
        told.append(draws_bytes(config, stored(config, one.policy("main").model, Spaces(FRAMES, Discrete(3)))))
    frames = 2 * 4 * 84 * 84  # of a decision, and of the one at which its outcome ends
    assert told == [0, pytest.approx(2 * 8192 * frames - DRAWS_BYTES, rel=0.01)]
    require_memory(one, 2**30, 2**31, 1)
    with pytest.raises(UserFault, match=r"1\.0Gi; 2\.0Gi of memory is left here for one and its process; .* 760 would"):
        require_memory(one, 2**30, 2**31, 1, told[1])
