"""Stored models: listed, chosen, copied into a folder, and acting there as they did."""

from __future__ import annotations

import io
import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

import rlctl_agents
from rlctl.backends.local.access.stored_files import FilesOfFolder
from rlctl.cli.models import fetched
from rlctl.cli.models.listing import Stored, StoredModel, chosen, read_whole, stored_models
from rlctl.cli.models.pull import pull, pull_chosen
from rlctl.cli.models.tensors import NoWeights, weights
from rlctl.errors import BackendUnreachable, Refused, RlctlError, UsageError
from rlctl.spec.layout import Layout
from rlctl.spec.schema import Network
from rlctl_agents.models.weights import unpack_into
from rlctl_agents.training.learner_state import capture
from rlctl_agents.training.stored_policy import load_kept
from rlctl_agents.types.spaces import Spaces
from tests.cli.conftest import Rlctl
from tests.cli.models import store
from tests.training.test_stored_policy import IDS, KINDS
from tests.training.test_stored_policy import chosen as actions

ALL = pytest.mark.parametrize(("config", "network", "spaces"), KINDS, ids=IDS)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "pole-00000000")


@pytest.fixture
def state(rlctl: Rlctl) -> Any:
    rlctl.up()
    found = rlctl.backend.find("pole")
    assert found is not None
    return found


def listed(layout: Layout) -> list[StoredModel]:
    found = stored_models(FilesOfFolder(layout))
    assert not found.damaged
    return found.models


@ALL
@pytest.mark.parametrize("which", ["best", "3"])
def test_a_pulled_model_acts_as_it_did_and_describes_itself(
    layout: Layout, state: Any, which: str, config: Any, network: Network, spaces: Spaces
) -> None:
    algorithm = store.generation(layout, config, network, spaces)
    store.best(layout, algorithm, config, network, spaces)
    model = chosen(Stored(listed(layout), {}), "pole", which)
    folder = layout.root / "there"
    files = pull(FilesOfFolder(layout), model, state, folder)
    assert sorted(folder.iterdir()) == sorted(files)
    described, loaded = load_kept(folder / "policy.json")
    assert (described.ref.version, described.steps) == (17, 1234 if which == "best" else described.steps)
    expected, found = actions(algorithm, spaces), actions(loaded, spaces)
    for name, values in expected.items():
        assert torch.equal(values, found[name])
    origin = json.loads((folder / "run.json").read_text())
    assert (origin["run"], origin["model"], origin["spec"]) == ("pole", which, state.spec)


def test_models_are_listed_with_their_evaluations_and_the_first_is_the_default(layout: Layout) -> None:
    algorithm = store.generation(layout, *KINDS[0])
    assert chosen(Stored(listed(layout), {}), "pole", None).name == "3"
    store.best(layout, algorithm, *KINDS[0])
    store.evaluated(layout, store.evaluation(17, 100.0), store.evaluation(17, 150.0), store.evaluation(18, 1.0))
    models = listed(layout)
    assert [(one.name, one.version, one.steps) for one in models] == [("best", 17, 1234), ("3", 17, 1234)]
    assert {mode: one["mean"] for mode, one in models[0].evaluations.items()} == {"greedy": 212.3, "sample": 187.5}
    assert {mode: one["mean"] for mode, one in models[1].evaluations.items()} == {"greedy": 150.0}
    assert [chosen(Stored(models, {}), "pole", which).name for which in (None, "best", "last", "3")] == [
        "best",
        "best",
        "3",
        "3",
    ]
    with pytest.raises(UsageError, match="run pole has no model goal") as refused:
        chosen(Stored(models, {}), "pole", "goal")
    assert "best, 3" in refused.value.hint


def test_a_damaged_newest_generation_is_replaced_by_no_older_one(layout: Layout) -> None:
    store.generation(layout, *KINDS[0])
    with pytest.raises(RlctlError, match="run pole: torn"):
        chosen(Stored(listed(layout), {"4": "torn"}), "pole", None)


def test_a_best_model_that_is_replaced_while_it_is_copied_is_copied_anew(layout: Layout, state: Any) -> None:
    class Live(FilesOfFolder):
        """A run in which a better model comes, and this one's files go, with the first read of its weights."""

        better = False

        def read(self, folder: Any, name: str, offset: int, most: int) -> bytes:
            if name.endswith(".safetensors") and not self.better:
                self.better = True
                store.best(layout, algorithm, *KINDS[0], version=18)
                (layout.models / name).unlink()
            return super().read(folder, name, offset, most)

    algorithm = store.generation(layout, *KINDS[0])
    store.best(layout, algorithm, *KINDS[0])
    found, files = pull_chosen(Live(layout), state, "best", layout.root / "there", print)
    assert found.version == 18
    assert all(path.exists() for path in files)


def test_a_run_without_models_says_so(layout: Layout) -> None:
    assert listed(layout) == []
    for which in (None, "last", "best"):
        with pytest.raises(UsageError, match="has stored no model yet"):
            chosen(Stored([], {}), "pole", which)


SHALLOW = json.dumps({"generation": {"number": 4}})


@pytest.mark.parametrize(
    ("file", "text", "why"),
    [
        ("models/best.json", '{"policy": "../../etc/passwd"}', "names '../../etc/passwd', which is not there"),
        ("models/best.json", "[", "Expecting value"),
        ("models/best.json", "[" * 100_000, "RecursionError"),
        ("checkpoints/generation-000004.json", SHALLOW, "KeyError: 'parts'"),
        ("checkpoints/generation-000004.json", '{"generation": {"parts": {}, "sha256": {}}}', "release 0.1"),
    ],
)
def test_a_damaged_file_takes_its_model_alone_out_of_the_list(layout: Layout, file: str, text: str, why: str) -> None:
    algorithm = store.generation(layout, *KINDS[0])
    store.best(layout, algorithm, *KINDS[0])
    (layout.root / file).write_text(text)
    found = stored_models(FilesOfFolder(layout))
    name, others = ("best", ["3"]) if file.startswith("models") else ("4", ["best", "3"])
    assert [one.name for one in found.models] == others
    assert found.damaged[name].startswith(f"{file} cannot be used: ")
    assert why in found.damaged[name]
    for which in (name, None) if name == "best" else (name, "last"):  # none takes its place unasked
        with pytest.raises(RlctlError, match="cannot be used"):
            chosen(found, "pole", which)
    assert chosen(found, "pole", "3").name == "3"


@pytest.mark.parametrize(
    ("key", "value"),
    [("created", "today"), ("created", 1e30), ("steps", None), ("steps", -1), ("steps", 10**400), ("number", [])],
)
def test_odd_values_of_a_generation_are_told(layout: Layout, key: str, value: Any) -> None:
    store.generation(layout, *KINDS[0])
    (file,) = layout.checkpoints.glob("generation-*.json")
    written = json.loads(file.read_bytes())
    written["generation"][key] = value
    with unlimited():
        file.write_text(json.dumps(written))
    assert set(stored_models(FilesOfFolder(layout)).damaged) == {"3"}


@pytest.mark.parametrize(
    ("key", "value"), [("mean", "high"), ("mean", math.inf), ("std", None), ("episodes", 1.5), ("mode", 3)]
)
def test_odd_values_of_an_evaluation_are_told(layout: Layout, key: str, value: Any) -> None:
    store.best(layout, store.generation(layout, *KINDS[0]), *KINDS[0])
    file = layout.models / "best.json"
    written = json.loads(file.read_bytes())
    written["evaluation"][key] = value
    file.write_text(json.dumps(written))
    assert set(stored_models(FilesOfFolder(layout)).damaged) == {"best"}
    store.evaluated(layout, store.evaluation(17, 100.0))
    line = json.loads((layout.results / "evaluations.jsonl").read_text().splitlines()[0])
    (layout.results / "evaluations.jsonl").write_text(json.dumps({**line, key: value}))
    assert [one.evaluations for one in stored_models(FilesOfFolder(layout)).models] == [{}]


def test_a_description_of_the_best_model_that_has_changed_is_told(layout: Layout) -> None:
    store.best(layout, store.generation(layout, *KINDS[0]), *KINDS[0])
    (described,) = layout.models.glob("main-*.json")
    described.write_text(described.read_text().replace("1234", "5000"))
    (why,) = stored_models(FilesOfFolder(layout)).damaged.values()
    assert f"{described.name} has changed since it was stored" in why
    best = layout.models / "best.json"  # of a release that did not store the sha256
    best.write_text(json.dumps({**json.loads(best.read_bytes()), "sha256": ""}))
    assert [one.steps for one in stored_models(FilesOfFolder(layout)).models if one.name == "best"] == [5000]


class Pruned(FilesOfFolder):
    """Files of a run that removes one of them, after its size was told and before it is read."""

    def __init__(self, layout: Layout, file: Path, then: Path | None = None) -> None:
        super().__init__(layout)
        self.file, self.then, self.once = file, then, True

    def read(self, folder: Any, name: str, offset: int, length: int) -> bytes:
        if name == self.file.name and self.once:
            self.once = False
            self.file.unlink()
            if self.then is not None:
                self.then.rename(self.file)
        return super().read(folder, name, offset, length)


def test_what_a_live_run_changes_meanwhile_is_looked_at_again(layout: Layout) -> None:
    store.best(layout, store.generation(layout, *KINDS[0]), *KINDS[0])
    (manifest,) = layout.checkpoints.glob("generation-*.json")
    assert [one.name for one in stored_models(Pruned(layout, manifest)).models] == ["best"]
    later = layout.models / "later"
    (layout.models / "best.json").rename(later)
    (layout.models / "best.json").write_text('{"policy": "removed.json"}')
    found = stored_models(Pruned(layout, layout.models / "best.json", later))
    assert ([one.name for one in found.models], found.damaged) == (["best"], {})
    with pytest.raises(BackendUnreachable):
        read_whole(FilesOfFolder(layout), "checkpoints", manifest.name)


@pytest.mark.parametrize("part", ["learner", "policy"])
def test_a_damaged_part_is_not_pulled_and_leaves_nothing(layout: Layout, state: Any, part: str) -> None:
    store.generation(layout, *KINDS[0])
    (file,) = layout.checkpoints.glob(f"main-000003-{part}-*")
    store.flip(file)
    folder = layout.root / "there"
    with pytest.raises(RlctlError, match=f"checkpoints/{file.name} is damaged"):
        pull(FilesOfFolder(layout), listed(layout)[0], state, folder)
    assert not folder.exists()
    assert sorted(path.name for path in layout.root.iterdir()) == ["checkpoints"]


def test_nothing_is_overwritten(layout: Layout, state: Any) -> None:
    store.generation(layout, *KINDS[0])
    (model,) = listed(layout)
    folder = layout.root / "there"
    folder.mkdir()
    pull(FilesOfFolder(layout), model, state, folder)
    before = (folder / "policy.safetensors").read_bytes()
    with pytest.raises(Refused, match="nothing in it is overwritten"):
        pull(FilesOfFolder(layout), model, state, folder)
    assert (folder / "policy.safetensors").read_bytes() == before
    with pytest.raises(Refused):
        pull(FilesOfFolder(layout), model, state, folder / "policy.json")
    with pytest.raises(UsageError, match="cannot write"):
        pull(FilesOfFolder(layout), model, state, folder / "policy.json" / "below")


def test_weights_of_every_type_come_out_of_a_learners_state() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2).to(torch.bfloat16))
    net.register_buffer("count", torch.tensor(7, dtype=torch.int64))
    state = capture(net, torch.optim.Adam(net[0].parameters()), {"steps": 5.0}).pack()
    other = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2).to(torch.bfloat16))
    other.register_buffer("count", torch.tensor(0, dtype=torch.int64))
    assert unpack_into(other, weights(io.BytesIO(state), 99)) == 99
    for name, value in net.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


@pytest.mark.parametrize("size", [0, 4, 8, 100])
def test_other_bytes_are_no_state_of_a_learner(size: int) -> None:
    net = torch.nn.Linear(3, 2)
    state = capture(net, torch.optim.SGD(net.parameters()), {}).pack()
    with pytest.raises(NoWeights):
        weights(io.BytesIO(state[:size]), 1)


def test_files_that_are_no_state_of_a_learner_are_told() -> None:
    text = json.dumps({"__metadata__": {"rlctl": json.dumps({"plain": {}})}}).encode()
    with pytest.raises(NoWeights, match="holds no weights"):
        weights(io.BytesIO(len(text).to_bytes(8, "little") + text), 1)


@ALL
def test_a_loaded_policy_acts_on_one_observation_as_on_many(
    layout: Layout, state: Any, config: Any, network: Network, spaces: Spaces
) -> None:
    store.generation(layout, config, network, spaces)
    pull(FilesOfFolder(layout), listed(layout)[0], state, layout.root / "there")
    policy = rlctl_agents.load(layout.root / "there")
    many = nested(spaces.obs, np.random.default_rng(1), (6,))
    actions_of_many, state_of_many = policy.act(many)
    again, _ = policy.act(many, state_of_many)
    for row in range(6):
        one = pick(many, row)
        action, kept = policy.act(one)
        same(pick(actions_of_many, row), action)
        same(pick(again, row), policy.act(one, kept)[0])


def test_sampled_actions_are_those_of_the_seed(layout: Layout, state: Any) -> None:
    store.generation(layout, *KINDS[0])
    pull(FilesOfFolder(layout), listed(layout)[0], state, layout.root / "there")
    obs = np.zeros((64, 2), np.float32)
    sampled = [rlctl_agents.load(layout.root / "there", seed=seed).act(obs, greedy=False)[0] for seed in (1, 1, 2)]
    assert np.array_equal(sampled[0], sampled[1])
    assert not np.array_equal(sampled[0], sampled[2])
    legal = np.tile([False, True, False], (64, 1))
    assert set(rlctl_agents.load(layout.root / "there").act(obs, greedy=False, legal=legal)[0].tolist()) == {1}


def test_other_observations_and_states_are_refused(layout: Layout, state: Any) -> None:
    store.generation(layout, *KINDS[1])
    pull(FilesOfFolder(layout), listed(layout)[0], state, layout.root / "there")
    policy = rlctl_agents.load(layout.root / "there")
    good = {"speed": np.zeros(3, np.float32), "room": 4}
    _, kept = policy.act(good)
    for obs, why in (
        ({"speed": np.zeros(3)}, "has no obs.room"),
        ({"speed": np.zeros(4), "room": 4}, r"obs.speed is \[4\], not \[3\] or \[K, 3\]"),
        ({"speed": np.zeros((2, 3)), "room": 4}, "not of equally many"),
        ({"speed": np.zeros(3), "room": 4.5}, "cannot hold every value"),
        ({"speed": np.array([0, np.nan, 0]), "room": 4}, "obs.speed holds NaN"),
        ({"speed": np.array([0, 1e39, 0]), "room": 4}, "infinite as float32"),
    ):
        with pytest.raises(ValueError, match=why):
            policy.act(obs)
    with pytest.raises(ValueError, match="the state is of 1 observations, and these are 2"):
        policy.act({"speed": np.zeros((2, 3)), "room": np.zeros(2, np.int64)}, kept)


def test_what_cannot_be_loaded_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(LookupError, match="there is no run pole on this machine"):
        rlctl_agents.load("pole@best")
    with pytest.raises(LookupError, match=r"holds no policy\.json"):
        rlctl_agents.load(tmp_path)
    (tmp_path / "policy.json").write_text("{}")
    with pytest.raises(ValueError, match="describe no policy"):
        rlctl_agents.load(tmp_path)


def test_an_empty_folder_is_filled_and_stays_itself(
    layout: Layout, state: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.generation(layout, *KINDS[0])
    folder = layout.root / "there"
    (folder / ".rlctl-pull-killed").mkdir(parents=True)  # of a command that was killed
    inode = folder.stat().st_ino
    monkeypatch.chdir(folder)
    pull(FilesOfFolder(layout), listed(layout)[0], state, Path())
    assert folder.stat().st_ino == inode
    assert sorted(path.name for path in folder.iterdir()) == [
        ".rlctl-pull-killed", "policy.json", "policy.safetensors", "run.json",
    ]  # fmt: skip
    assert fetched.origin_of(folder)["run"] == "pole"


@pytest.mark.parametrize(
    ("key", "value"),
    [("run", "../../tmp/x"), ("run", None), ("model", "best/../.."), ("format", 2), ("spec", {}), ("spec", {"env": 3})],
)
def test_a_strangers_folder_names_no_other_place(layout: Layout, state: Any, key: str, value: Any) -> None:
    store.generation(layout, *KINDS[0])
    folder = layout.root / "there"
    pull(FilesOfFolder(layout), listed(layout)[0], state, folder)
    written = json.loads((folder / "run.json").read_bytes())
    (folder / "run.json").write_text(json.dumps({**written, key: value}))
    with pytest.raises(UsageError, match="is no folder that `rlctl pull` has made"):
        fetched.origin_of(folder)


def test_modules_of_the_user_are_those_that_the_run_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    origin = {"run": "odd", "spec": {"env": {"id": "odd:Env"}, "code": {"path": "."}}, "code": str(tmp_path)}
    assert fetched.code_of({"run": "odd", "spec": {}}, None) is None
    assert fetched.code_of(origin, None) == tmp_path
    other = tmp_path / "other"
    other.mkdir()
    assert fetched.code_of(origin, other) == other
    monkeypatch.chdir(tmp_path)
    assert fetched.code_of(origin, Path("other")) == other
    for recorded in (str(tmp_path / "moved"), "other", None):
        with pytest.raises(UsageError) as refused:
            fetched.code_of({**origin, "code": recorded}, None)
        assert "--code DIR" in refused.value.hint


@ALL
def test_episodes_that_begin_side_by_side_are_told_by_first(
    layout: Layout, state: Any, config: Any, network: Network, spaces: Spaces
) -> None:
    store.generation(layout, config, network, spaces)
    pull(FilesOfFolder(layout), listed(layout)[0], state, layout.root / "there")
    policy = rlctl_agents.load(layout.root / "there")
    obs = nested(spaces.obs, np.random.default_rng(1), (3,))
    fresh, kept = policy.act(obs)
    again, _ = policy.act(obs, kept)
    found, _ = policy.act(obs, kept, first=np.array([False, True, False]))
    for row, expected in enumerate((again, fresh, again)):
        same(pick(expected, row), pick(found, row))
    with pytest.raises(ValueError, match=r"first is \[2\], not \[3\]"):
        policy.act(obs, kept, first=np.array([False, True]))


def test_a_policy_of_masks_asks_for_them(layout: Layout, state: Any) -> None:
    config, network, spaces = KINDS[0]
    store.generation(layout, config, network, msgspec.structs.replace(spaces, legal=True))
    pull(FilesOfFolder(layout), listed(layout)[0], state, layout.root / "there")
    policy = rlctl_agents.load(layout.root / "there")
    obs = np.zeros((4, 2), np.float32)
    with pytest.raises(ValueError, match="has masks of legal options"):
        policy.act(obs)
    with pytest.raises(ValueError, match=r"legal is \[3\], not \[4, 3\]"):
        policy.act(obs, legal=np.ones(3, np.bool_))
    assert policy.act(obs[0], legal=np.array([False, True, False]))[0] == 1


@contextmanager
def unlimited() -> Iterator[None]:
    """Integers of any length as text."""
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        yield
    finally:
        sys.set_int_max_str_digits(before)


def nested(space: Any, rng: np.random.Generator, many: tuple[int, ...]) -> Any:
    """Observations of a space."""
    items = getattr(space, "items", None)
    if isinstance(items, dict):
        return {key: nested(one, rng, many) for key, one in items.items()}
    if hasattr(space, "n"):
        return rng.integers(0, space.n, many)
    return rng.normal(size=(*many, *space.shape)).astype(space.dtype)


def pick(value: Any, row: int) -> Any:
    """One row of nested arrays."""
    if isinstance(value, dict):
        return {key: pick(one, row) for key, one in value.items()}
    return tuple(pick(one, row) for one in value) if isinstance(value, tuple) else value[row]


def same(expected: Any, found: Any) -> None:
    if isinstance(expected, tuple):
        for one, other in zip(expected, found, strict=True):
            same(one, other)
    elif isinstance(expected, dict):
        assert expected.keys() == found.keys()
        for key, one in expected.items():
            same(one, found[key])
    else:
        np.testing.assert_allclose(expected, found, rtol=1e-5, atol=1e-6)
