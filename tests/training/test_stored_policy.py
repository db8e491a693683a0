"""Conformance of generations that describe themselves: what acts after loading is what was saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlctl.spec.algorithms import ApexDqn, Dqn, External, Impala, Sac, Td3
from rlctl.spec.schema import Network
from rlctl_agents import algorithms
from rlctl_agents.algorithms.base import ActInputs, Algorithm
from rlctl_agents.checkpoint.parts import LEARNER, POLICY, Corrupt
from rlctl_agents.checkpoint.policy import PolicyFileError, describe, pack_policy, unpack_policy
from rlctl_agents.models.weights import digest, pack
from rlctl_agents.training.checkpoint_writer import CheckpointWriter, Job
from rlctl_agents.training.stored_policy import load_kept, load_policy, read_policy
from rlctl_agents.training.trainer import Trainer
from rlctl_agents.types.control import Commit, Generation, Reply
from rlctl_agents.types.experience import ModelRef
from rlctl_agents.types.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Spaces, Tuple, leaf_array, leaves
from rlctl_agents.weights.client import Model
from rlctl_agents.weights.disk_store import keep

FLAT = Spaces(Box((2,), "float32", low=(-1.0, None), high=1.0), Discrete(3))
MIXED = Spaces(
    Dict({"speed": Box((3,), "float32"), "room": Discrete(5)}),
    Tuple((Discrete(2), Box((2,), "float32", -1.0, 1.0))),
    seats=2,
)
CHOSEN = {
    "hidden": [8], "core": "gru", "width": 6, "layer_norm": True, "gaussian": {"std": "network", "squash": True},
}  # fmt: skip
OUTSIDE = External(name="tests.training.outside.double_dqn:DoubleDqn", params={"copy_every": 7})
KINDS: list[tuple[Any, Network, Spaces]] = [
    (Impala(lr=0.1), Network(hidden=[8]), FLAT),
    (Impala(unroll_length=3), Network.model_validate({"hidden": [8], "core": "lstm", "width": 6}), MIXED),
    (Impala(unroll_length=3), Network.model_validate(CHOSEN), MIXED),
    (Impala(), Network(hidden=[8]), Spaces(Box((4,), "float32"), MultiBinary(3))),
    (OUTSIDE, Network(hidden=[8, 8]), FLAT),
    (Dqn(), Network(hidden=[8]), FLAT),
    (ApexDqn(), Network(hidden=[8]), Spaces(MIXED.obs, Tuple((Discrete(2), Discrete(5))))),
    (Sac(), Network(hidden=[8]), Spaces(MIXED.obs, Box((2,), "float32", -1.0, 3.0))),
    (Sac(), Network(hidden=[8]), Spaces(MIXED.obs, Tuple((Discrete(2), MultiDiscrete((3, 2)))))),
    (Td3(), Network(hidden=[8]), Spaces(FLAT.obs, Dict({"a": Box((2,), "float32", -1.0, 3.0)}))),
]
IDS = ["flat", "mixed", "chosen", "bits", "outside", "dqn", "apex_dqn", "sac", "sac of options", "td3"]


def saved(folder: Path, config: Any, network: Network, spaces: Spaces) -> tuple[Generation, Algorithm]:
    """A generation as the learner writes one, and the policy in it."""
    kind = algorithms.find(config.name)
    trainer = Trainer(kind(config, network, spaces, seed=5), policy="main", lineage=2, device=torch.device("cpu"))
    trainer.version, trainer.consumed_steps = 17, 1234
    commits: list[Commit] = []

    def commit(one: Commit) -> Reply:
        commits.append(one)
        return Reply(ok=True)

    schema = kind.schema(config, network, spaces)
    sections = network.model_dump(mode="json"), config.model_dump(mode="json")
    described = describe(trainer.ref, 0, spaces, schema, *sections)
    checkpoints = CheckpointWriter(folder, "boot", described, commit=commit, count=lambda seconds: None)
    checkpoints.start()
    checkpoints.save(Job(3, trainer.capture(), trainer.ref, trainer.consumed_steps, term=1))
    assert checkpoints.settle(10.0)
    checkpoints.close()
    return commits[0].generation, trainer._algorithm


def chosen(algorithm: Algorithm, spaces: Spaces) -> dict[str, torch.Tensor]:
    """Greedy actions for the same ten observations."""
    rng, obs = np.random.default_rng(0), {}
    for name, leaf in leaves(spaces.obs, "obs"):
        dtype, shape = leaf_array(leaf)
        values = rng.integers(0, 2, (10, *shape)) if dtype == "int64" else rng.normal(size=(10, *shape))
        obs[name] = torch.from_numpy(np.asarray(values, dtype))
    noise, first = torch.full((10, algorithm.noise_width), 0.5), torch.ones(10, dtype=torch.bool)
    return algorithm.act(ActInputs(obs, first, algorithm.initial_state(10), noise, greedy=True)).action


@pytest.mark.parametrize(("config", "network", "spaces"), KINDS, ids=IDS)
def test_a_policy_acts_after_loading_as_it_did(tmp_path: Path, config: Any, network: Network, spaces: Spaces) -> None:
    generation, algorithm = saved(tmp_path, config, network, spaces)
    described, loaded = load_policy(tmp_path, generation)
    assert type(loaded) is type(algorithm)
    assert (described.ref, described.steps) == (generation.ref, 1234)
    assert described.tensors == generation.parts[LEARNER]
    assert described.spaces == spaces
    assert described.schema == type(algorithm).schema(config, network, spaces)
    assert [one.name for one in described.observations] == [name for name, _ in leaves(spaces.obs, "obs")]
    expected, found = chosen(algorithm, spaces), chosen(loaded, spaces)
    for name, values in expected.items():
        assert torch.equal(values, found[name])


@pytest.mark.parametrize(("config", "network", "spaces"), KINDS, ids=IDS)
def test_a_kept_model_acts_after_loading_as_it_did(
    tmp_path: Path, config: Any, network: Network, spaces: Spaces
) -> None:
    kind = algorithms.find(config.name)
    algorithm = kind(config, network, spaces, seed=5)
    sections = network.model_dump(mode="json"), config.model_dump(mode="json")
    described = describe(ModelRef("main", 1, 7), 700, spaces, kind.schema(config, network, spaces), *sections)
    data = pack(algorithm.net.state_dict(), 700)
    file = keep(tmp_path, Model(described.ref, digest(data), data, pack_policy(described)))
    found, loaded = load_kept(tmp_path / file)
    assert (found.ref, found.steps, found.spaces) == (described.ref, 700, spaces)
    expected, again = chosen(algorithm, spaces), chosen(loaded, spaces)
    for name, values in expected.items():
        assert torch.equal(values, again[name])
    (tmp_path / found.tensors).write_bytes(data[:-1])
    with pytest.raises(Corrupt):
        load_kept(tmp_path / file)


def test_the_description_lies_beside_the_tensors_as_json_that_people_can_read(tmp_path: Path) -> None:
    generation, _ = saved(tmp_path, *KINDS[1])
    file = generation.parts[POLICY]
    assert file.startswith("main-000003-policy-")
    assert file.endswith(".json")
    text = (tmp_path / file).read_text()
    assert '"name": "obs.room"' in text
    assert '"name": "impala"' in text


def test_a_description_survives_its_bytes() -> None:
    config, network, spaces = KINDS[1]
    schema = algorithms.find(config.name).schema(config, network, spaces)
    ref = Trainer(
        algorithms.find(config.name)(config, network, spaces, seed=1), policy="main", lineage=1,
        device=torch.device("cpu"),
    ).ref  # fmt: skip
    described = describe(ref, 5, spaces, schema, network.model_dump(mode="json"), config.model_dump(mode="json"))
    assert unpack_policy(pack_policy(described)) == described


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\xff", b'{"format": 1}'])
def test_other_bytes_describe_no_policy(data: bytes) -> None:
    with pytest.raises(PolicyFileError, match="describe no policy"):
        unpack_policy(data)


def test_a_later_format_is_told() -> None:
    with pytest.raises(PolicyFileError, match="format 9; this release reads format 1"):
        unpack_policy(b'{"format": 9}')


def test_damage_and_absence_are_told(tmp_path: Path) -> None:
    generation, _ = saved(tmp_path, *KINDS[0])
    parts = {name: file for name, file in generation.parts.items() if name != POLICY}
    old = Generation(
        generation.number, "main", 1, generation.ref, generation.steps, generation.created, parts, generation.sha256
    )
    with pytest.raises(PolicyFileError, match="does not describe its policy"):
        read_policy(tmp_path, old)
    (tmp_path / generation.parts[POLICY]).write_text("{}")
    with pytest.raises(Corrupt):
        read_policy(tmp_path, generation)
