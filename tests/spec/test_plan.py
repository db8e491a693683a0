import json
from pathlib import Path

import pytest

from rlctl.plan import Plan, make
from rlctl.spec.algorithms import R2d2
from rlctl.spec.base import ROLES
from rlctl.spec.fields import leaves, normal
from rlctl.spec.schema import Spec
from tests.spec.full import FULL

UID = "0123456789abcdef" * 2


def plan(**more: object) -> Plan:
    return make(Spec.model_validate({"run": "a", "env": {"id": "b"}, **more}), uid=UID, base=Path("/base"))


def test_a_plan_has_every_role_of_the_spec_in_start_order() -> None:
    assert [role.role for role in plan().roles] == ["manager", "modelpool", "learner", "actor", "evaluator"]
    assert [role.role for role in make(FULL, uid=UID, base=Path("/")).roles] == list(ROLES)


def test_a_role_without_replicas_stays_in_the_plan_so_that_it_can_be_scaled() -> None:
    roles = {role.role: role.replicas for role in plan(roles={"actor": {"replicas": 0}}).roles}
    assert roles == {"manager": 1, "modelpool": 1, "learner": 1, "actor": 0, "evaluator": 1}


@pytest.mark.parametrize(("cpu", "threads"), [("250m", 1), (1, 1), (1.9, 1), (2, 2), (4.5, 4)])
def test_threads_are_whole_cores_and_at_least_one(cpu: object, threads: int) -> None:
    learner = plan(roles={"learner": {"cpu": cpu, "memory": "2Gi", "gpu": 1}}).roles[2]
    assert (learner.threads, learner.memory_mib, learner.gpu) == (threads, 2048, 1)


def test_learner_replicas_are_per_member_of_every_policy() -> None:
    learner = next(role for role in make(FULL, uid=UID, base=Path("/")).roles if role.role == "learner")
    assert learner.replicas == 9


@pytest.mark.parametrize("role", ROLES)
def test_a_run_file_is_a_spec_that_says_what_its_role_reads_and_nothing_else(role: str) -> None:
    run_file = next(it.run_file for it in make(FULL, uid=UID, base=Path("/")).roles if it.role == role)
    assert {key: run_file[key] for key in run_file if key != "spec"} == {
        "format": 1,
        "run": "full",
        "uid": UID,
        "role": role,
    }
    read = json.loads(json.dumps(run_file))["spec"]
    spec = Spec.model_validate(read)
    said = {".".join(leaf.path): leaf.value for leaf in leaves(normal(FULL)) if _is_read(leaf.applies, role)}
    assert {name: value for name, value in _flat(read) if name in said or name != "env.id"} == said
    assert {name: _value(spec, name) for name in said} == said


def _is_read(applies: object, role: str) -> bool:
    read = getattr(applies, "when", "") != "live" and getattr(applies, "in_run_file", False)
    return read and role in getattr(applies, "roles", ())


def _value(spec: object, name: str) -> object:
    for key in name.split("."):
        spec = spec[key] if isinstance(spec, dict) else getattr(spec, f"{key}_" * (key in ("lambda", "class")) or key)
    return spec


def _flat(values: dict[str, object], path: str = "") -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = []
    for key, value in values.items():
        name = f"{path}.{key}" if path else key
        if isinstance(value, dict) and key not in ("kwargs", "params", "tags"):
            found += _flat(value, name)
        else:
            found.append((name, value))
    return found


def test_a_run_file_of_a_role_that_does_not_look_at_the_environment_has_none() -> None:
    specs = {role.role: role.run_file["spec"] for role in plan().roles}
    assert specs["learner"]["env"] == specs["manager"]["env"] == specs["modelpool"]["env"] == {"id": "-"}
    assert specs["actor"]["env"]["id"] == specs["evaluator"]["env"]["id"] == "b"


def test_actor_evaluator_and_learner_agree_on_the_shape_of_experience() -> None:
    specs = {role.role: role.run_file["spec"] for role in plan(algorithm={"unroll_length": 7}).roles}
    for role in ("learner", "actor", "evaluator"):
        algorithm = Spec.model_validate(specs[role]).policy().algorithm
        assert (algorithm.name, algorithm.unroll_length) == ("impala", 7)


def test_roles_that_run_a_recurrent_q_network_agree_on_the_reward_that_it_is_given() -> None:
    made = plan(algorithm={"name": "r2d2", "reward_scale": 0.5, "reward_clip": 1.0}, roles={"replay": {}})
    specs = {role.role: role.run_file["spec"] for role in made.roles}
    for role in ("learner", "actor", "evaluator"):
        algorithm = Spec.model_validate(specs[role]).policy().algorithm
        assert isinstance(algorithm, R2d2)
        assert (algorithm.reward_scale, algorithm.reward_clip) == (0.5, 1.0)


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("dqn", "epsilon_final", 0.2), ("apex_dqn", "epsilon_base", 0.2), ("r2d2", "epsilon_power", 2.0),
        ("td3", "exploration_noise", 0.3), ("sac", "random_steps", 7),
    ],
)  # fmt: skip
def test_the_learner_knows_how_actors_explore_for_it_describes_the_policy(name: str, field: str, value: float) -> None:
    made = plan(algorithm={"name": name, field: value}, roles={"replay": {}})
    learner = next(role.run_file["spec"] for role in made.roles if role.role == "learner")
    assert getattr(Spec.model_validate(learner).policy().algorithm, field) == value


def test_policies_come_resolved_into_run_files() -> None:
    found = plan(policies={"main": {"algorithm": {"lr": 0.1}}, "b": {"like": "main"}})
    learner = Spec.model_validate(found.roles[2].run_file["spec"])
    assert learner.policies is not None
    assert learner.policies["b"].like is None
    assert learner.policy("b").algorithm == learner.policy("main").algorithm


def test_live_fields_of_the_manager_lie_apart_in_the_shape_of_the_spec() -> None:
    found = plan(stop={"eval_return": 475, "wall_time": "5m"}, evaluation={"episodes": 20})
    assert found.live == {
        "stop": {"eval_return": 475.0, "agent_steps": None, "wall_time": 300.0},
        "evaluation": {"episodes": 20, "every": None, "mode": "greedy", "video_every": None},
        "checkpoint": {"every": 60.0, "keep": 3},
        "roles": {"learner": {"replicas": 1}, "evaluator": {"replicas": 1}},
    }
    assert "stop" not in found.roles[0].run_file["spec"]


def test_code_is_an_absolute_folder_beside_the_spec() -> None:
    assert plan().code_path is None
    assert plan(code={"path": "x/../mine"}).code_path == "/base/mine"
    assert plan(code={"path": "/else"}).code_path == "/else"


def test_the_same_spec_gives_the_same_hashes_in_another_process() -> None:
    assert [role.hash for role in plan().roles] == [role.hash for role in plan().roles]
    assert all(len(role.hash) == 12 for role in plan().roles)
    assert len({role.hash for role in plan().roles}) == 5
    assert (
        plan().roles[0].hash
        != make(Spec.model_validate({"run": "a", "env": {"id": "b"}}), uid="f" * 32, base=Path()).roles[0].hash
    )
