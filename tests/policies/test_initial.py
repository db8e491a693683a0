"""First weights out of another policy: which parts are copied, and what is said of those that do not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from rlctl.spec.algorithms import ApexDqn, Appo, Dqn, Impala, Sac, Td3
from rlctl.spec.schema import Init, Network
from rlctl_agents import algorithms
from rlctl_agents.algorithms.base import Algorithm
from rlctl_agents.checkpoint.policy import describe, pack_policy
from rlctl_agents.models.weights import digest, pack
from rlctl_agents.policies.initial import NotInitial, begin_from, begin_from_stored
from rlctl_agents.types.experience import ModelRef
from rlctl_agents.types.spaces import Box, Discrete, Space, Spaces
from tests.cli.models.store import flip

POLE = Spaces(Box((4,), "float32"), Discrete(2))
SHARED = {"hidden": [8], "core": "gru", "width": 6}


def made(network: dict[str, Any], spaces: Spaces = POLE, config: Any = None, seed: int = 1) -> Algorithm:
    config = config or Impala()
    return algorithms.find(config.name)(config, Network.model_validate(network), spaces, seed=seed)


def stored(folder: Path, algorithm: Algorithm, network: dict[str, Any], spaces: Spaces = POLE) -> Path:
    """A folder as `rlctl pull` makes one."""
    folder.mkdir()
    data, settings = pack(algorithm.net.state_dict(), 700), Network.model_validate(network)
    config = getattr(algorithm, "config", Impala())
    schema, sections = type(algorithm).schema(config, settings, spaces), (settings, config)
    described = describe(
        ModelRef("main", 1, 7), 700, spaces, schema, *(one.model_dump(mode="json") for one in sections)
    )
    written = json.loads(pack_policy(described)) | {"tensors": "policy.safetensors", "sha256": digest(data)}
    (folder / "policy.safetensors").write_bytes(data)
    (folder / "policy.json").write_text(json.dumps(written))
    return folder


def trained(network: dict[str, Any], spaces: Spaces = POLE) -> Algorithm:
    """With moments that have moved, and weights of another seed."""
    algorithm = made(network, spaces, seed=5)
    for name, value in algorithm.net.state_dict().items():
        if value.dtype == torch.float64:
            value.fill_(len(name))
    return algorithm


def alike(one: Algorithm, other: Algorithm) -> set[str]:
    """Arrays that hold the same."""
    theirs = other.net.state_dict()
    return {name for name, value in one.net.state_dict().items() if torch.equal(value, theirs[name])}


def init(*parts: str) -> Init:
    return Init(run="pole@best", parts=list(parts))


def test_all_parts_are_all_arrays_moments_included(tmp_path: Path) -> None:
    source, new = trained(SHARED), made(SHARED)
    names = set(source.net.state_dict())
    assert {name.partition(".")[0] for name in names} == {"torso", "core", "policy", "value", "observed", "returns"}
    assert alike(new, source) < names
    begun = begin_from(stored(tmp_path / "model", source, SHARED), new, init())
    assert begun == ModelRef("main", 1, 7)
    assert alike(new, source) == names


def test_named_parts_are_copied_and_the_others_stay(tmp_path: Path) -> None:
    source, new, untouched = trained(SHARED), made(SHARED), made(SHARED)
    begin_from(stored(tmp_path / "model", source, SHARED), new, init("torso", "observed"))
    names = set(source.net.state_dict())
    taken = {name for name in names if name.startswith(("torso.", "observed."))}
    assert taken <= alike(new, source)
    assert names - taken <= alike(new, untouched)


def test_parts_that_fit_are_taken_though_others_do_not(tmp_path: Path) -> None:
    source, new = trained(SHARED), made(SHARED, Spaces(Box((4,), "float32"), Discrete(7)))
    folder = stored(tmp_path / "model", source, SHARED)
    begin_from(folder, new, init("torso", "core", "observed"))
    assert torch.equal(
        new.net.state_dict()["core.from_hidden.weight"], source.net.state_dict()["core.from_hidden.weight"]
    )


def test_a_target_network_begins_as_a_copy_of_what_was_taken(tmp_path: Path) -> None:
    source, new = trained(SHARED), made(SHARED, config=Appo())
    begin_from(stored(tmp_path / "model", source, SHARED), new, init())
    target = new.modules["target"].state_dict()
    assert all(torch.equal(value, target[name]) for name, value in new.net.state_dict().items())


def test_every_array_that_does_not_fit_is_named_with_both_shapes_and_nothing_is_changed(tmp_path: Path) -> None:
    wide = {**SHARED, "hidden": [16], "normalize": {"observations": False}}
    source, new, untouched = trained(SHARED), made(wide), made(wide)
    with pytest.raises(NotInitial) as refused:
        begin_from(stored(tmp_path / "model", source, SHARED), new, init())
    text = str(refused.value)
    weight = next(name for name in source.net.state_dict() if name.startswith("torso.") and name.endswith("0.weight"))
    for words in (
        f"{weight} is float32 [8, 4] in pole@best, and float32 [16, 4] in this network",
        "core.from_input.weight is float32 [18, 8] in pole@best, and float32 [18, 16] in this network",
        "part `observed`: pole@best has it, and this network has not; name in init.parts those to take",
    ):
        assert words in text
    assert text.count("in this network") == 3, "bias of the layer too"
    assert alike(new, untouched) == set(new.net.state_dict())


def test_an_unknown_part_is_named_with_those_that_exist(tmp_path: Path) -> None:
    folder = stored(tmp_path / "model", trained(SHARED), SHARED)
    with pytest.raises(NotInitial, match=r"init\.parts: pole@best has no part `tors`; did you mean `torso`\?; it has"):
        begin_from(folder, made(SHARED), init("tors", "core"))


@pytest.mark.parametrize(("config", "copied"), [(Dqn(), "target"), (ApexDqn(), "target"), (Td3(), "target_policy")])
def test_a_target_without_moments_begins_as_a_copy_too(tmp_path: Path, config: Any, copied: str) -> None:
    spaces = Spaces(POLE.obs, Box((1,), "float32", -1.0, 1.0)) if isinstance(config, Td3) else POLE
    source, new = made({"hidden": [8]}, spaces, config, seed=5), made({"hidden": [8]}, spaces, config)
    assert "observed" in {name.partition(".")[0] for name in new.net.state_dict()}
    begin_from(stored(tmp_path / "model", source, {"hidden": [8]}, spaces), new, init())
    assert alike(new, source) == set(source.net.state_dict())
    own = source.net.state_dict()
    assert all(torch.equal(value, own[name]) for name, value in new.modules[copied].state_dict().items())


@pytest.mark.parametrize("action", [Box((1,), "float32", -1.0, 1.0), Discrete(2)], ids=["numbers", "options"])
def test_critics_are_no_copies_of_a_policy(tmp_path: Path, action: Space) -> None:
    spaces = Spaces(POLE.obs, action)
    source, new = made({"hidden": [8]}, spaces, Sac(), seed=5), made({"hidden": [8]}, spaces, Sac())
    before = {name: value.clone() for name, value in new.modules["target_critics"].state_dict().items()}
    begin_from(stored(tmp_path / "model", source, {"hidden": [8]}, spaces), new, init())
    after = new.modules["target_critics"].state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_a_damaged_policy_is_refused(tmp_path: Path) -> None:
    folder = stored(tmp_path / "model", trained(SHARED), SHARED)
    flip(folder / "policy.safetensors")
    with pytest.raises(NotInitial, match="is damaged"):
        begin_from(folder, made(SHARED), init())
    with pytest.raises(NotInitial, match=r"init\.run pole@best: .*No such file"):
        begin_from(tmp_path / "none", made(SHARED), init())


def test_a_folder_beside_the_spec_is_begun_from_with_nothing_in_between(tmp_path: Path) -> None:
    source, new = trained(SHARED), made(SHARED)
    stored(tmp_path / "model", source, SHARED)
    begin_from_stored(tmp_path, new, Init(run="./model"))
    assert alike(new, source) == set(source.net.state_dict())
    with pytest.raises(NotInitial, match=r"init\.run: .*holds no policy\.json"):
        begin_from_stored(tmp_path, new, Init(run="./none"))


def test_a_name_without_a_slash_is_a_run_though_a_folder_is_called_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    stored(tmp_path / "model", trained(SHARED), SHARED)
    with pytest.raises(NotInitial, match=r"init\.run: there is no run model on this machine; the folder is \./model"):
        begin_from_stored(tmp_path, made(SHARED), Init(run="model"))
