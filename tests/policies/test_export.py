"""Policies as files of other programs: they act as the policy does."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from rlctl.spec.algorithms import ApexDqn, Dqn, Impala, R2d2, Sac, Td3
from rlctl.spec.schema import Network
from rlctl_agents import algorithms
from rlctl_agents.algorithms.base import Algorithm
from rlctl_agents.checkpoint.policy import PolicyFile, describe
from rlctl_agents.policies.answering import NoModel
from rlctl_agents.policies.export import difference, export
from rlctl_agents.policies.graph import Graph, bounds_of, graph_of, network_of, plain, sampling, tried
from rlctl_agents.policies.loaded import LoadedPolicy
from rlctl_agents.types.experience import ModelRef
from rlctl_agents.types.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Spaces, Tuple
from tests.training.test_stored_policy import FLAT, MIXED, OUTSIDE

GAUSSIAN = {"std": "network", "squash": True}
FRAMES = Box((4, 84, 84), "uint8", 0, 255, stack=4)
CASES: dict[str, tuple[Spaces, dict[str, Any]]] = {
    "mlp, gaussian": (
        Spaces(Box((3,), "float32"), Box((2, 2), "float32", low=(-1.0, None, -2.0, -1.0), high=2.0)), {"hidden": [8]},
    ),
    "lstm, dict, tuple": (MIXED, {"hidden": [8], "core": "lstm", "width": 6}),
    "gru, squashed": (MIXED, {"hidden": [8], "core": "gru", "width": 6, "layer_norm": True, "gaussian": GAUSSIAN}),
    "nature_cnn and vector": (
        Spaces(Dict({"camera": FRAMES, "speed": Box((2,), "float32")}), Discrete(4)), {"hidden": [8]},
    ),
    "impala_cnn, stack of colours": (
        Spaces(Box((2, 36, 36, 3), "uint8", 0, 255, stack=2), Discrete(2)), {"torso": "impala_cnn", "width": 8},
    ),
    "small_cnn, mask": (Spaces(Box((7, 7, 3), "uint8"), Discrete(4), legal=True), {"width": 8}),
    "codes and bits, masks": (
        Spaces(
            Dict({"a": MultiDiscrete((3, 4)), "b": MultiBinary(3), "c": Discrete(3)}),
            Tuple((MultiDiscrete((3, 4)), MultiBinary(3))), legal=True,
        ),
        {"hidden": [8]},
    ),
}  # fmt: skip
REPLAYED: dict[str, tuple[Spaces, dict[str, Any], Any]] = {
    "dqn": (Spaces(Box((4,), "float32"), Discrete(3)), {"hidden": [8]}, Dqn(epsilon_steps=1400)),
    "apex_dqn, choices, masks": (
        Spaces(
            Dict({"a": Box((3,), "float32"), "b": Discrete(4)}),
            Tuple((Discrete(2), MultiDiscrete((3, 4)))), legal=True,
        ),
        {"hidden": [8]}, ApexDqn(),
    ),
    "r2d2, gru": (Spaces(Box((4,), "float32"), Discrete(3)), {"hidden": [8], "core": "gru", "width": 5}, R2d2()),
    "r2d2, lstm, choices, masks": (
        Spaces(Box((4,), "float32"), Tuple((Discrete(2), MultiDiscrete((3, 4)))), legal=True),
        {"hidden": [8], "core": "lstm", "width": 5}, R2d2(value_rescaling=False),
    ),
    "dqn, frames": (Spaces(FRAMES, Discrete(4)), {"hidden": [8]}, Dqn(dueling=True)),
    "sac": (
        Spaces(
            Box((3,), "float32"), Dict({"a": Box((2, 2), "float32", -2.0, 1.0), "b": Box((1,), "float32", 0.0, 5.0)}),
        ),
        {"hidden": [8]}, Sac(),
    ),
    "sac, options": (Spaces(Box((4,), "float32"), Discrete(3)), {"hidden": [8]}, Sac()),
    "sac, choices, masks": (
        Spaces(
            Dict({"a": Box((3,), "float32"), "b": Discrete(4)}),
            Tuple((Discrete(2), MultiDiscrete((3, 4)))), legal=True,
        ),
        {"hidden": [8]}, Sac(),
    ),
    "sac, options, frames": (Spaces(FRAMES, Discrete(4)), {"hidden": [8]}, Sac()),
    "td3": (Spaces(Box((3,), "float32"), Box((2,), "float32", -2.0, 1.0)), {"hidden": [8]}, Td3()),
}  # fmt: skip


def made(spaces: Spaces, network: dict[str, Any], config: Any = None) -> tuple[PolicyFile, Algorithm]:
    """A policy with other moments and heads than those of the beginning."""
    config, settings = config or Impala(), Network.model_validate(network)
    kind = algorithms.find(config.name)
    algorithm = kind(config, settings, spaces, seed=5)
    rng = np.random.default_rng(1)
    with torch.no_grad():
        for name, values in algorithm.net.state_dict().items():
            if name.endswith(".mean"):
                values.copy_(torch.from_numpy(rng.normal(size=values.shape)))
            elif name.endswith((".variance", "policy.weight", "log_std")):
                values.copy_(torch.from_numpy(rng.uniform(0.5, 3.0, values.shape)))
    sections = settings.model_dump(mode="json"), config.model_dump(mode="json")
    return describe(ModelRef("main", 1, 7), 700, spaces, kind.schema(config, settings, spaces), *sections), algorithm


def described_by(file: Path) -> dict[str, Any]:
    """Description that the file holds of itself."""
    if file.suffix == ".pt2":
        extra = {"policy.json": ""}
        torch.export.load(file, extra_files=extra)
        return json.loads(extra["policy.json"])  # type: ignore[no-any-return]
    metadata = onnxruntime.InferenceSession(file).get_modelmeta().custom_metadata_map
    return json.loads(metadata["policy.json"])  # type: ignore[no-any-return]


@pytest.mark.parametrize("suffix", ["onnx", "pt2"])
@pytest.mark.parametrize("case", [*CASES, *REPLAYED])
def test_the_file_acts_as_the_policy_and_describes_itself(tmp_path: Path, case: str, suffix: str) -> None:
    described, algorithm = made(*(CASES | REPLAYED)[case])
    file = tmp_path / f"policy.{suffix}"
    found = export(described, algorithm, file, {"run": "pole", "model": "best"})
    assert found["checked"]["observations"] == 68
    assert found["checked"]["difference"] <= 1e-5
    told = described_by(file)
    assert (told["origin"], told["ref"]["version"], told["steps"]) == ({"run": "pole", "model": "best"}, 7, 700)
    assert (told["inputs"], told["outputs"]) == (found["inputs"], found["outputs"])
    inputs = [(one["name"], one["dtype"], tuple(one["shape"][1:])) for one in told["inputs"]]
    observed = [(one.name, one.dtype, one.shape) for one in described.observations]
    assert inputs[: len(observed)] == observed
    further = [name for name, _, _ in inputs[len(observed) :]]
    names = [one["name"] for one in told["outputs"]]
    memory = sorted(algorithm.initial_state(1))
    of_r2d2 = case.startswith("r2d2")
    others = [
        *(f"state.{name}" for name in memory),
        *(["first"] if memory else []),
        *(f"last_{one.name}" for one in described.schema.fields if one.name.startswith("action") and of_r2d2),
        *(["last_reward"] if of_r2d2 else []),
        *(["legal"] if told["spaces"]["legal"] else []),
    ]
    assert further == others
    assert [name for name in names if name.startswith("next_state.")] == [f"next_state.{name}" for name in memory]
    assert set(told["sampling"]) == {name for name in names if name.startswith("action")}


def test_the_graph_is_the_policy_in_python_as_well() -> None:
    """Without any exporter: what `rlctl_agents.load` gives is what the graph computes, episode after episode."""
    described, algorithm = made(*CASES["gru, squashed"])
    graph, policy = Graph(plain(network_of(algorithm)), described.spaces), LoadedPolicy(described, algorithm)
    rng, state, kept = np.random.default_rng(3), algorithm.initial_state(5), None
    for step in range(6):
        inputs = tried(described.spaces, network_of(algorithm), 5, rng)
        inputs["first"] = torch.from_numpy(rng.random(5) < 0.3) if step else torch.ones(5, dtype=torch.bool)
        inputs |= {f"state.{name}": values for name, values in state.items()}
        with torch.no_grad():
            found = graph(inputs)
        obs = {"speed": inputs["obs.speed"].numpy(), "room": inputs["obs.room"].numpy()}
        (which, where), kept = policy.act(obs, kept, first=inputs["first"].numpy())
        np.testing.assert_array_equal(which, found["action.0"])
        np.testing.assert_allclose(where, found["action.1"], rtol=1e-5, atol=1e-6)
        state = {name: found[f"next_state.{name}"] for name in state}


def test_a_policy_that_looks_at_the_last_reward_asks_for_it() -> None:
    policy, obs = LoadedPolicy(*made(*REPLAYED["r2d2, gru"])), np.zeros(4, np.float32)
    state = policy.act(obs)[1]
    with pytest.raises(ValueError, match=r"looks at the last reward: act\(obs, state, reward="):
        policy.act(obs, state)
    memory = [policy.act(obs, state, reward=reward)[1].memory["core.h"] for reward in (0.0, 1.0)]
    assert not torch.equal(*memory)
    for wrong in ([1.0, 2.0], "x", float("nan"), {"a": 1}):
        with pytest.raises(ValueError, match=r"reward is .*, not one finite number or 1 of them"):
            policy.act(obs, state, reward=wrong)  # type: ignore[arg-type]
    policy.act(np.zeros((2, 4), np.float32), policy.act(np.zeros((2, 4), np.float32))[1], first=np.ones(2, np.bool_))


def test_a_mask_is_taken_as_the_environment_gives_it() -> None:
    policy = LoadedPolicy(*made(*REPLAYED["apex_dqn, choices, masks"]))
    obs = {"a": np.zeros(3, np.float32), "b": 2}
    given = (np.array([0, 1], np.int8), (np.array([0, 1, 0], np.int8), np.array([1, 0, 0, 0], np.int8)))
    for greedy in (True, False):
        one, (first, second) = policy.act(obs, legal=given, greedy=greedy)[0]
        assert (one, first, second) == (1, 1, 0)
    with pytest.raises(ValueError, match="expected a tuple of 2"):
        policy.act(obs, legal=given[:1])


def test_actions_drawn_from_the_parameters_are_those_of_the_distribution() -> None:
    """The formulas of the description: log-probabilities of what they draw are those that the policy gives."""
    described, algorithm = made(*CASES["gru, squashed"])
    net = network_of(algorithm)
    graph, rng = Graph(net, described.spaces), np.random.default_rng(3)
    inputs = tried(described.spaces, net, 4, rng)
    noise = torch.from_numpy(rng.uniform(0.1, 0.9, (4, net.distribution.noise_width)).astype(np.float32))
    with torch.no_grad():
        found = graph(inputs)
        state = {name.removeprefix("state."): values for name, values in inputs.items() if name.startswith("state.")}
        params, _ = net.step(inputs, inputs["first"], state)
        drawn, _ = net.distribution.sample(params, noise, None)
    (_, discrete), (_, gaussian) = net.distribution.leaves
    assert sampling(discrete) == {"distribution": "categorical", "options": [2]}
    how = sampling(gaussian)
    assert how["squashed"]
    normal = torch.erfinv(2 * noise[:, 1:] - 1) * 2**0.5
    unit = (found["params.action.1.mean"] + found["params.action.1.log_std"].exp() * normal).tanh()
    torch.testing.assert_close(torch.tensor(how["centre"]) + torch.tensor(how["scale"]) * unit, drawn["action.1"])
    below = found["params.action.0.logits"].softmax(-1)[:, 0]
    assert torch.equal((noise[:, 0] >= below).long(), drawn["action.0"])


@pytest.mark.parametrize("case", [one for one in REPLAYED if "frames" not in one])
def test_what_is_loaded_acts_as_the_graph_and_samples_as_it_describes(case: str) -> None:
    described, algorithm = made(*REPLAYED[case])
    graph, policy = graph_of(algorithm, described.spaces, 700), LoadedPolicy(described, algorithm)
    rng, space = np.random.default_rng(3), described.spaces.action
    inputs = tried(described.spaces, network_of(algorithm), 1000, rng)
    if "first" in inputs:
        inputs["first"][:] = True  # so that there is nothing to remember
    obs: Any = inputs["obs"].numpy() if "obs" in inputs else {key: inputs[f"obs.{key}"].numpy() for key in "ab"}
    legal = inputs["legal"].numpy() if "legal" in inputs else None
    with torch.no_grad():
        found = graph(inputs)

    def flat(action: Any) -> dict[str, Any]:
        if isinstance(space, Tuple):
            return {f"action.{at}": one for at, one in enumerate(action)}
        return {f"action.{key}": one for key, one in action.items()} if isinstance(space, Dict) else {"action": action}

    for name, values in flat(policy.act(obs, legal=legal)[0]).items():
        np.testing.assert_allclose(values, found[name], rtol=1e-5, atol=1e-6)
    sampled, how = flat(policy.act(obs, greedy=False, legal=legal)[0]), graph.sampling()
    assert how.keys() == sampled.keys()
    for name, values in sampled.items():
        told = how[name]
        if told["distribution"] == "epsilon_greedy":
            others = [1 - 1 / size for size in told["options"]]
            differs = (values.reshape(1000, -1) != found[name].numpy().reshape(1000, -1)).mean(0)
            if legal is None:
                expected = told["epsilon"] * np.array(others)
                np.testing.assert_allclose(differs, expected, atol=4 * np.sqrt(expected / 1000).max())
            assert (differs < 2 * told["epsilon"] + 0.03).all()
        elif told["distribution"] == "categorical":
            logits = found[f"params.{name}.logits"].split_with_sizes(told["options"], 1)
            for chosen, part in zip(values.reshape(1000, -1).T, logits, strict=True):
                p = part.softmax(-1).numpy()
                code = np.eye(p.shape[1])[chosen]
                assert (p[code == 1] > 0).all()
                spread = np.sqrt((p * (1 - p)).sum(0)) + 1e-6
                assert (np.abs((code - p).sum(0)) < 4 * spread).all()
        else:
            centre, scale = np.array(told["centre"]), np.array(told["scale"])
            units = (values.reshape(1000, -1) - centre) / scale
            mean, std = found[f"params.{name}.mean"].numpy(), found[f"params.{name}.log_std"].exp().numpy()
            inner = np.abs(units) < 0.999
            normal = ((np.arctanh(units.clip(-0.9999, 0.9999)) if told["squashed"] else units) - mean) / std
            below = normal[inner & (np.abs(mean) + 2 * std < (3.0 if told["squashed"] else 0.99))]
            assert below.size > 100
            assert abs(np.mean(below)) < 4 / np.sqrt(below.size) + 0.02
            assert 0.85 < np.std(below) < 1.15


def test_epsilon_of_a_stored_dqn_is_that_of_the_steps_that_it_has_learned_from() -> None:
    described, algorithm = made(*REPLAYED["dqn"])
    assert graph_of(algorithm, described.spaces, described.steps).sampling()["action"]["epsilon"] == 1.0 - 0.5 * 0.95


def test_a_file_that_acts_otherwise_is_told() -> None:
    described, algorithm = made(Spaces(FLAT.obs, Discrete(3), legal=True), {"hidden": [8]})
    graph = Graph(plain(network_of(algorithm)), described.spaces)
    inputs = tried(described.spaces, network_of(algorithm), 64, np.random.default_rng(2))
    assert difference(graph, algorithm, described, inputs) <= 1e-6
    for name, change in (
        ("action", lambda one: (one + 1) % 3),
        ("params.action.logits", lambda one: one * 1.001),
        ("params.action.logits", lambda one: one.double()),
        ("params.action.logits", lambda one: one * torch.nan),
        ("params.action.logits", lambda one: one.clamp(min=-100.0)),
    ):
        with pytest.raises(NoModel, match=f"the file gives (another )?{name}"):
            difference(lambda given: {**graph(given), name: change(graph(given)[name])}, algorithm, described, inputs)  # noqa: B023


def test_equal_choices_may_be_told_the_other_way_round() -> None:
    described, algorithm = made(FLAT, {"hidden": [8]})
    with torch.no_grad():
        algorithm.net.policy.weight.zero_()  # type: ignore[union-attr, operator]
    graph = Graph(network_of(algorithm), described.spaces)
    inputs = tried(described.spaces, network_of(algorithm), 8, np.random.default_rng(2))
    assert (
        difference(lambda given: {**graph(given), "action": graph(given)["action"] + 1}, algorithm, described, inputs)
        == 0
    )


def test_an_algorithm_of_another_kind_is_refused(tmp_path: Path) -> None:
    described, algorithm = made(FLAT, {"hidden": [8]}, OUTSIDE)
    with pytest.raises(NoModel, match=r"DoubleDqn decides by other means .* \.safetensors can hold its weights"):
        export(described, algorithm, tmp_path / "policy.pt2", {})
    assert list(tmp_path.iterdir()) == []


class Branching(nn.Module):
    """Looks at numbers before it decides what to compute."""

    def __init__(self, space: Space) -> None:
        super().__init__()
        self.features = 2

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        return obs["obs"] if float(obs["obs"].sum()) > 0 else -obs["obs"]


def test_a_network_that_no_exporter_understands_is_told_in_one_sentence(tmp_path: Path) -> None:
    described, algorithm = made(FLAT, {"torso": "tests.policies.test_export:Branching"})
    with pytest.raises(NoModel, match="torch cannot export this network: ") as told:
        export(described, algorithm, tmp_path / "policy.pt2", {})
    assert "\n" not in str(told.value)


def test_without_onnxruntime_a_file_is_written_and_not_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    described, algorithm = made(FLAT, {"hidden": [8]})
    assert export(described, algorithm, tmp_path / "policy.onnx", {})["checked"] is None
    assert (tmp_path / "policy.onnx").stat().st_size


@pytest.mark.parametrize(
    "box",
    [Box((3,), "float32", low=(0.0, None, 2.0), high=(1.0, 5.0, 2.0)), Box((2, 2), "uint8", 0, 7), Box((4,), "int32"),
     Box((2,), "int64", low=-3.0, high=3.0)],
)  # fmt: skip
def test_observations_that_are_tried_are_of_the_space(box: Box) -> None:
    described, algorithm = made(Spaces(box, Discrete(2)), {"hidden": [4], "torso": "mlp"})
    found = tried(described.spaces, network_of(algorithm), 50, np.random.default_rng(1))["obs"]
    assert str(found.dtype) == f"torch.{box.dtype}"
    assert found.shape == (50, *box.shape)
    low, high = bounds_of(box)
    flat = found.flatten(1).double()
    assert ((flat >= torch.from_numpy(low)) & (flat <= torch.from_numpy(high))).all()
    assert flat[:, 0].unique().numel() > 1
