"""The check of a spec: faults at the value that is wrong, and which leaf goes through which net."""

import sys
from typing import Any

import pytest

from rlctl.spec import fields
from rlctl.spec.schema import Spec
from rlctl_agents import algorithms
from rlctl_agents.roles import spec_check
from rlctl_agents.roles.spec_check import SpecFindings, check_spec
from rlctl_agents.types.spaces import Box, Dict, Discrete, Spaces, Tuple


def checked(id: str = "tests.acting.owned:Sound", **spec: Any) -> SpecFindings:
    env = {"id": id, **spec.pop("env", {})}
    whole = Spec.model_validate({"run": "a", "env": env, **spec})
    return check_spec(fields.normal(whole).model_dump(mode="json"))


def wide(leaves: int = 1, axes: int = 1, **spec: Any) -> dict[str, Any]:
    return {"id": "tests.acting.owned:Wide", "env": {"kwargs": {"leaves": leaves, "axes": axes}}, **spec}


ID, TORSO, ALGORITHM = ("env", "id"), ("policies", "main", "model", "torso"), ("policies", "main", "algorithm", "name")
GOAL = ("stop", "eval_return")
DOZEN = {"actor": {"envs": 12}}


@pytest.mark.parametrize(
    ("spec", "nets"),
    [
        ({"id": "CartPole-v1"}, {"obs": ("float32 [4]", "mlp")}),
        ({"id": "CartPole-v1", "algorithm": {"name": "sac"}}, {"obs": ("float32 [4]", "mlp")}),
        ({"id": "tests.acting.owned:Choices", "algorithm": {"name": "sac"}}, {"obs": ("float32 [3]", "mlp")}),
        ({"id": "CartPole-v1", "algorithm": {"name": "tests.acting.owned_nets:Mine"}}, {"obs": ("float32 [4]", "mlp")}),
        (
            {
                "id": "CartPole-v1",
                "algorithm": {"name": "tests.acting.owned_nets:Bringing", "max_lag_versions": 0},
            },
            {"obs": ("float32 [4]", "mlp")},
        ),
        (
            {"model": {"torso": "tests.acting.owned_nets:Sound"}},
            {"obs": ("float32 [3]", "tests.acting.owned_nets:Sound")},
        ),
        (
            {"model": {"torso": "tests.acting.owned_nets:Frozen"}, "algorithm": {"name": "sac"}},
            {"obs": ("float32 [3]", "tests.acting.owned_nets:Frozen")},
        ),
        ({"algorithm": {"name": "impala", "value_batches": 4}}, {"obs": ("float32 [3]", "mlp")}),
        (
            {"id": "tests.acting.owned:Several"},
            {
                "obs.camera": ("uint8 [84, 84, 3]", "nature_cnn"),
                "obs.room": ("Discrete(5)", "mlp"),
                "obs.speed": ("float32 [2]", "mlp"),
            },
        ),
        (
            {"id": "tests.acting.owned:Table", "model": {"torso": "impala_cnn"}},
            {"obs": ("float32 [40, 40]", "impala_cnn")},
        ),
    ],
)
def test_a_sound_spec_is_told_with_the_net_of_every_leaf(spec: dict[str, Any], nets: dict[str, Any]) -> None:
    found = checked(**spec)
    assert found.faults == []
    assert {leaf.leaf: (leaf.space, leaf.net) for leaf in found.inputs["main"]} == nets


@pytest.mark.parametrize(
    ("spec", "path", "words"),
    [
        ({"id": "CartPole-v1", "algorithm": {"name": "td3"}}, ALGORITHM, "is a Discrete: use sac or dqn"),
        ({"id": "tests.acting.owned:Both", "algorithm": {"name": "sac"}}, ALGORITHM, "action.1 is a Discrete: use sac"),
        ({"id": "tests.acting.owned:Bits", "algorithm": {"name": "sac"}}, ALGORITHM, "a MultiBinary: use sac or td3"),
        ({"id": "Pendulum-v1", "algorithm": {"name": "apex_dqn"}}, ALGORITHM, "action, a Box: use sac or td3"),
        ({"id": "CartPole-v9"}, ID, "it has CartPole-v0 and CartPole-v1"),
        ({"id": "tests.acting.owned:Soundd"}, ID, "did you mean Sound?"),
        ({"id": "tests.roles.nothing:X"}, ID, "there is no module tests.roles.nothing"),
        (
            {"id": "tests.acting.owned:Raising"},
            ID,
            "RuntimeError: no \x1b[31mlicence for this host (tests/acting/owned.py, line",
        ),
        (
            {"id": "tests.acting.owned:Ending"},
            ID,
            "it ends the process, by SystemExit(no licence) (tests/acting/owned.py",
        ),
        ({"id": "tests.acting.owned:Crooked"}, ID, "reset returned observation obs of shape (2,)"),
        ({"id": "CartPole-v1", "env": {"kwargs": {"nope": 1}}}, ID, "unexpected keyword argument 'nope'"),
        ({"id": "tests.envs.tiny:Duel", "stop": {"eval_return": 0}}, GOAL, "the environment has 2 seats"),
        (
            {"id": "tests.envs.tiny:Duel", "algorithm": {"name": "ppo", "batch_size": 2048}, "roles": DOZEN},
            (*ALGORITHM[:-1], "batch_size"),
            "roles.actor.envs x seats x unroll_length = 12 x 2 x 32 = 768 steps, or the rest of a block is dropped; got"
            " 2048; choose 1536 or 2304",
        ),
        ({"id": "tests.acting.owned:Table"}, TORSO, "auto cannot know whether obs, float32 [40, 40], is an image"),
        ({"id": "tests.acting.owned:RgbStack"}, TORSO, "auto cannot know what obs, uint8 [4, 84, 84, 3], is"),
        ({"model": {"torso": "nature_cnn"}}, TORSO, "nature_cnn needs an observation of two or three axes"),
        (
            {"model": {"gaussian": {"squash": True}}, "id": "tests.acting.owned:Unbounded"},
            ("policies", "main", "model", "gaussian", "squash"),
            "needs two different finite bounds for every entry, and action, Box",
        ),
        (
            {"algorithm": {"name": "sac"}, "id": "tests.acting.owned:Unbounded"},
            ALGORITHM,
            "bounds",
        ),
        (wide(leaves=300), ID, "would have 307 arrays, one for each leaf of observation and action"),
        (wide(leaves=300, algorithm={"name": "dqn"}), ID, "can have 256: join leaves into one Box"),
        (
            wide(leaves=300, model={"torso": "tests.acting.owned_nets:Constant"}),
            ID,
            "can have 256: join leaves into one Box",
        ),
        (wide(axes=7, model={"torso": "mlp"}), ID, "obs: shape [1, 1, 1, 1, 1, 1, 1] has more than 6 axes"),
        ({"model": {"torso": "tests.acting.owned_nets:Narrow"}}, TORSO, "must give finite float32 [1, 9]"),
        ({"model": {"torso": "tests.acting.owned_nets:Nope"}}, TORSO, "tests.acting.owned_nets has no Nope"),
        (
            {"algorithm": {"name": "impala", "value_batches": 4}, "id": "tests.acting.owned:Several"},
            ("policies", "main", "algorithm", "value_batches"),
            "is for a value that shares no torso with the policy, got 4: say auto or 0, or model.share: false",
        ),
        ({"algorithm": {"name": "tests.acting.owned_nets:Sound"}}, ALGORITHM, "must be a class derived from"),
        ({"algorithm": {"name": "tests.acting.owned_nets:Failing"}}, ALGORITHM, "RuntimeError: half done"),
        (
            {"algorithm": {"name": "tests.acting.owned_nets:Drawing"}},
            ALGORITHM,
            "an algorithm of your own uses the replay role as `class` of the one that it is derived from, whose"
            " settings the shards read: algorithm: {name: sac, class: tests.acting.owned_nets:Drawing}",
        ),
        (
            {"algorithm": {"name": "ppo", "class": "tests.acting.owned_nets:Drawing"}},
            ("policies", "main", "algorithm", "class"),
            "gets its batches from rlctl_agents.experience.replay.source:replay, and ppo from on_policy; derive it",
        ),
        (
            {"algorithm": {"name": "sac", "class": "tests.acting.owned_nets:Drawing"}},
            ("policies", "main", "algorithm", "class"),
            "sac has Sac settings, not Dqn",
        ),
        (
            {"algorithm": {"name": "tests.acting.owned_nets:Mine", "params": {"lrr": 1}}},
            ALGORITHM,
            "algorithm.params.lrr: Extra inputs are not permitted",
        ),
    ],
)
def test_a_fault_is_told_at_the_value_that_is_wrong(spec: dict[str, Any], path: tuple[str, ...], words: str) -> None:
    (fault,) = checked(**spec).faults
    assert fault.path == path
    assert words in fault.message
    assert "\n" not in fault.message
    assert not fault.missing


@pytest.mark.parametrize("legal", [False, True])
@pytest.mark.parametrize(
    ("algorithm", "core"),
    [("impala", "none"), ("ppo", "gru"), ("appo", "lstm"), ("apex_dqn", "none"), ("r2d2", "lstm"), ("sac", "none")],
)
def test_arrays_of_a_segment_are_counted_without_torch(algorithm: str, core: str, legal: bool) -> None:
    env, model = {"id": "CartPole-v1"}, {"core": core}
    whole = Spec.model_validate({"run": "a", "env": env, "algorithm": {"name": algorithm}, "model": model})
    spaces = Spaces(Dict({"a": Discrete(2), "b": Box((2,), "float32")}), Tuple((Discrete(2), Discrete(3))), legal=legal)
    found = spec_check._sent(fields.normal(whole).model_dump(mode="json"), "main", spaces).fields
    wanted = algorithms.schema_of(whole, spaces, "main").fields
    assert len(found) == len(wanted)
    observed, sent = (
        [one.name + str(one.shape) for one in told if one.name.startswith(("obs", "action"))]
        for told in (found, wanted)
    )
    assert observed == sent


DRAWN = {"evaluation": {"video_every": 10}}


def test_a_frame_is_drawn_where_episodes_are_to_be_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checked("CartPole-v1", **DRAWN).faults == []
    monkeypatch.setitem(sys.modules, "pygame", None)
    assert checked("CartPole-v1").faults == []
    (fault,) = checked("CartPole-v1", **DRAWN).faults
    assert fault.path == ("evaluation", "video_every")
    assert fault.message == 'the frames of a recorded episode need pygame: pip install "rlctl[agents]"'
    assert fault.missing


@pytest.mark.parametrize(
    ("id", "words"),
    [("tests.envs.tiny:Duel", "shows none of them"), ("tests.acting.owned:Sound", "episodes need render_mode")],
)
def test_an_environment_that_draws_nothing_cannot_be_recorded(id: str, words: str) -> None:
    (fault,) = checked(id, **DRAWN).faults
    assert fault.path == ("evaluation", "video_every")
    assert words in fault.message


def test_faults_of_environment_network_and_algorithm_are_told_at_once() -> None:
    found = checked("CartPole-v9", model={"torso": "tests.no:Net"}, algorithm={"name": "tests.no:Algorithm"})
    assert [fault.path for fault in found.faults] == [ID, TORSO, ALGORITHM]


def test_a_package_that_is_not_installed_is_marked(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needs_more.py").write_text("import nothing_like_it\n")
    monkeypatch.syspath_prepend(tmp_path)
    (fault,) = checked("needs_more:Env").faults
    assert fault.missing
    assert "needs_more imports nothing_like_it, which is not installed" in fault.message


def fitted(arrays: dict[str, str], *parts: str, **spec: Any) -> list[str]:
    """Faults of a policy with these arrays that a run begins from."""
    init = {"run": "pole@best", "parts": list(parts)}
    whole = Spec.model_validate({"run": "a", "env": {"id": "CartPole-v1"}, "init": init, **spec})
    found = check_spec(fields.normal(whole).model_dump(mode="json"), {"of": "pole@best", "arrays": arrays})
    return [f"{'.'.join(fault.path)}: {fault.message}" for fault in found.faults]


def test_the_policy_that_a_run_begins_from_has_to_fit_its_network() -> None:
    arrays = {"policy.weight": "float32 [2, 64]", "policy.bias": "float32 [2]"}
    assert fitted(arrays, "policy") == []
    assert fitted({**arrays, "policy.weight": "float32 [4, 64]"}, "policy") == [
        "init.run: policy.weight is float32 [4, 64] in pole@best, and float32 [2, 64] in this network"
    ]
    missing = [text for text in fitted(arrays) if "this network has it, and pole@best has not" in text]
    assert [text.split("`")[1] for text in missing] == ["torso", "value_torso", "value", "observed", "returns"]


def test_a_network_that_cannot_be_made_is_the_fault_then() -> None:
    (fault,) = fitted({}, model={"core": "gru", "share": False})
    assert fault.startswith("policies.main.model: model.share: false needs `core: none`")


@pytest.mark.parametrize(
    ("algorithm", "known"), [("dqn", True), ("impala", False), ("tests.acting.owned_nets:Mine", False)]
)
def test_the_memory_of_a_shard_is_told_where_there_is_one(algorithm: str, known: bool) -> None:
    found = checked("CartPole-v1", algorithm={"name": algorithm})
    assert not found.faults
    assert (found.shard_bytes > 40 * 1_000_000) == known


@pytest.mark.parametrize(
    ("id", "apart"),
    [("test_vectors:Same", True), ("test_vectors:Told", True), ("test_vectors:Next", False), ("tiny:Turns", True),
     ("tiny:Duel", False), ("tiny:Clock", False)],
)  # fmt: skip
@pytest.mark.parametrize("frames", [1, 2])
def test_copies_that_do_not_fill_their_segments_together_are_told(id: str, apart: bool, frames: int) -> None:
    env = {} if frames == 1 else {"frame_stack": frames}
    found = checked(f"tests.envs.{id}", env=env)
    assert (found.faults, found.apart) == ([], apart)


@pytest.mark.parametrize(
    ("id", "real"), [("CartPole-v1", False), ("Pendulum-v1", True), ("tests.acting.owned:Both", True)]
)
def test_an_action_that_holds_real_numbers_is_told(id: str, real: bool) -> None:
    assert checked(id).continuous is real
