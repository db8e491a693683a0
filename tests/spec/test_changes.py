from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlctl.changes import Change, changes, why_not_scale
from rlctl.plan import Plan, live_with, make
from rlctl.spec import load
from rlctl.spec.fields import brought, filled, leaves, max_actors
from rlctl.spec.schema import Spec
from tests.spec.full import CLUSTER, FULL, LEAVES, changed, image

PLAN = make(FULL, uid="0123456789abcdef" * 2, base=Path("/base"))
HASHES = {role.role: role.hash for role in PLAN.roles}
SPECS = Path(__file__).parents[2] / "specs"
SELDOM = ("policies.main.algorithm.name", "policies.main.like", "policies.other.like")
"""Fields with tests of their own: a name is a section of another kind, `like` is what it brings."""
MARKED = [name for name in LEAVES if name not in SELDOM]


def plan(spec: Spec) -> Plan:
    return make(spec, uid="0123456789abcdef" * 2, base=Path("/base"))


def hashes(spec: Spec) -> dict[str, str]:
    return {role.role: role.hash for role in plan(spec).roles}


def small(**more: object) -> Spec:
    return Spec.model_validate({"run": "a", "env": {"id": "b"}} | more)


def whys(old: Spec, new: Spec) -> list[tuple[str, str, str]]:
    return [(change.role, change.action, change.why) for change in changes(old, new)]


def test_the_fields_tested_one_by_one_are_all_there_are() -> None:
    assert len(LEAVES) > 100
    assert set(LEAVES) - set(MARKED) == set(SELDOM)


@pytest.mark.parametrize("path", sorted(SPECS.glob("**/*.yaml")), ids=lambda path: path.stem)
def test_a_spec_as_it_is_stored_is_the_spec(path: Path) -> None:
    spec = load([path]).spec
    assert changes(Spec.model_validate(filled(spec).model_dump(mode="json")), spec) == []


def test_a_model_that_says_a_part_is_stored_with_what_its_algorithm_brings() -> None:
    model, named = {"layer_norm": True}, {"name": "dqn"}
    for sections in (
        {"algorithm": named, "model": model},
        {"policies": {"main": {"algorithm": named, "model": model}, "other": {"like": "main"}}},
    ):
        spec = small(**sections)
        assert changes(Spec.model_validate(filled(spec).model_dump(mode="json")), spec) == []


ATARI = {"id": "ALE/Pong-v5", "preset": "atari"}


@pytest.mark.parametrize(
    ("algorithm", "meant"),
    [
        (None, {"reward_clip": 1, "batch_size": 160, "max_lag_versions": 32, "entropy_coef": 0.01}),
        ({}, {"reward_clip": 1, "batch_size": 160, "max_lag_versions": 32, "entropy_coef": 0.01}),
        (
            {"name": "impala", "reward_clip": None, "batch_size": 320, "entropy_coef": "auto"},
            {"reward_clip": None, "batch_size": 320, "max_lag_versions": 16, "entropy_coef": "auto"},
        ),
        ({"name": "appo"}, {"reward_clip": 1, "batch_size": 512, "entropy_coef": "auto"}),
        ({"name": "apex_dqn"}, {"reward_clip": 1}),
        ({"name": "r2d2"}, {"reward_clip": None}),
        ({"name": "mine:Own"}, {"reward_clip": None, "batch_size": 640}),
    ],
)
def test_the_preset_atari_brings_what_goes_with_its_games_where_the_spec_says_nothing(
    algorithm: dict[str, object] | None, meant: dict[str, object]
) -> None:
    section: dict[str, object] = {} if algorithm is None else {"algorithm": algorithm}
    for sections in (section, {"policies": {"main": section, "other": {"like": "main"}}}):
        spec = small(**sections, env=ATARI)
        stored = Spec.model_validate(filled(spec).model_dump(mode="json"))
        assert changes(stored, spec) == []
        for one in (spec, stored):
            for policy in one.policy_names:
                found = one.policy(policy).algorithm.model_dump()
                assert {name: found[name] for name in meant} == meant
        if "policies" not in sections:
            assert stored.algorithm is not None, "a later release may bring something else"
    assert small(**section).policy().algorithm.reward_clip is None
    assert brought(small(**section), "main") == {}
    left_out = {name: value for name, value in meant.items() if value is not None and name not in (algorithm or {})}
    assert brought(small(**section, env=ATARI), "main").items() <= left_out.items()


def test_no_field_changed_is_no_change() -> None:
    assert changes(FULL, FULL) == []
    assert changes(FULL, Spec.model_validate(FULL.model_dump(mode="json"))) == []


@pytest.mark.parametrize("name", MARKED)
def test_a_changed_field_does_what_its_mark_says(name: str) -> None:
    applies = LEAVES[name].applies
    found = [(change.role, change.action, change.path) for change in changes(FULL, changed(FULL, name))]
    if applies.when == "new_run":
        assert found == [("", "refuse", name)]
    elif not applies.in_run_file:  # pods of a cluster are made of it, and nothing on one machine
        assert found == [("", "live", name)]
    else:
        assert found == [(role, applies.when, name) for role in applies.roles or ("",)]


@pytest.mark.parametrize("name", [name for name in MARKED if name != "target"])  # other processes altogether
def test_a_changed_field_alters_the_hashes_of_the_roles_that_read_it_and_no_others(name: str) -> None:
    applies, before, after = LEAVES[name].applies, HASHES, hashes(changed(FULL, name))
    altered = {role for role in before if before[role] != after[role]}
    assert altered == (set() if applies.when == "live" or not applies.in_run_file else set(applies.roles))


OF_PODS = [name for name in MARKED if not LEAVES[name].applies.in_run_file]


@pytest.mark.parametrize("name", OF_PODS)
def test_what_pods_are_made_of_restarts_its_roles_on_a_cluster_and_is_in_no_run_file(name: str) -> None:
    new, roles = changed(CLUSTER, name), LEAVES[name].applies.roles
    assert [(change.role, change.action, change.path) for change in changes(CLUSTER, new)] == [
        (role, "restart", name) for role in roles
    ]
    before, after = hashes(CLUSTER), hashes(new)
    assert {role for role in before if before[role] != after[role]} == set(roles)
    assert [role.run_file for role in plan(CLUSTER).roles] == [role.run_file for role in plan(new).roles]


def test_images_and_the_gang_are_what_pods_are_made_of() -> None:
    images = [f"images.{name}" for name in ("core", "actor", "learner")]
    assert [*images, "kubernetes.gang", "kubernetes.queue"] == OF_PODS


def test_on_a_cluster_a_new_image_restarts_the_roles_that_run_from_it() -> None:
    new = changed(CLUSTER, "images.actor", image("newer"))
    assert {(change.role, change.action) for change in changes(CLUSTER, new)} == {
        ("actor", "restart"),
        ("evaluator", "restart"),
    }


def test_a_volume_grows_alive_and_never_shrinks() -> None:
    larger = changed(CLUSTER, "storage.size", "60Gi")
    assert whys(CLUSTER, larger) == [("", "live", "storage.size: 50Gi -> 60Gi")]
    assert whys(larger, CLUSTER) == [("", "refuse", "storage.size: 60Gi -> 50Gi: a volume only grows")]
    assert changes(small(storage={"size": "50Gi"}), small(storage={"size": "51200Mi"})) == []


@pytest.mark.parametrize("name", MARKED)
def test_a_changed_field_reaches_the_manager_alive_exactly_when_it_says_so(name: str) -> None:
    applies = LEAVES[name].applies
    reaches = PLAN.live != plan(changed(FULL, name)).live
    assert reaches == (applies.when == "live" and "manager" in applies.roles)


@settings(max_examples=40, deadline=None, database=None)
@given(st.sets(st.sampled_from([name for name in MARKED if LEAVES[name].applies.when != "new_run"]), max_size=8))
def test_roles_to_restart_are_the_roles_whose_hash_differs(names: set[str]) -> None:
    new = FULL
    for name in sorted(names):
        new = changed(new, name)
    restarted = {change.role for change in changes(FULL, new) if change.action == "restart"}
    before, after = HASHES, hashes(new)
    assert restarted == {role for role in before if before[role] != after[role]}


def test_a_change_names_the_field_as_the_user_wrote_it_and_both_values() -> None:
    old = small(algorithm={"lr": 1e-4})
    assert changes(old, small(algorithm={"lr": 1e-3})) == [
        Change("learner", "restart", "algorithm.lr", "algorithm.lr: 0.0001 -> 0.001")
    ]
    assert changes(old, small(policies={"main": {"algorithm": {"lr": 1e-3}}})) == [
        Change("learner", "restart", "policies.main.algorithm.lr", "policies.main.algorithm.lr: 0.0001 -> 0.001")
    ]


def test_more_actors_restart_nothing() -> None:
    new = small(roles={"actor": {"replicas": 8}})
    assert whys(small(), new) == [("", "live", "roles.actor.replicas: 1 -> 8")]
    assert hashes(small()) == hashes(new)


def test_a_new_environment_is_refused_with_the_way_out() -> None:
    assert whys(small(), small(env={"id": "c"})) == [
        ("", "refuse", "env.id: b -> c: fixed for the life of a run; start a new run: change `run:`")
    ]


def test_another_name_is_another_run() -> None:
    assert whys(small(), small(run="c")) == [
        ("", "refuse", "run: a -> c: another name is another run; `rlctl up` starts it")
    ]


def test_another_algorithm_is_one_refusal_however_much_its_fields_differ() -> None:
    new = small(algorithm={"name": "mine:Ours", "batch_size": 20, "params": {"x": 1}})
    assert whys(small(), new) == [
        (
            "",
            "refuse",
            "algorithm.name: impala -> mine:Ours: fixed for the life of a run; start a new run: change `run:`",
        )
    ]


def test_a_policy_that_comes_or_goes_is_one_refusal() -> None:
    one, two = small(policies={"main": {}}), small(policies={"main": {}, "b": {"algorithm": {"lr": 0.1}}})
    assert [change.path for change in changes(one, two)] == ["policies.b"]
    assert changes(two, one)[0].why.startswith("policies.b: given -> absent: fixed for the life of a run")


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (small(), small(policies={"main": {}})),
        (small(algorithm={"lr": 0.1}), small(policies={"main": {"algorithm": {"name": "impala", "lr": 0.1}}})),
        (
            small(policies={"main": {"algorithm": {"lr": 0.1}}, "b": {"like": "main"}}),
            small(policies={"main": {"algorithm": {"lr": 0.1}}, "b": {"algorithm": {"lr": 0.1}}}),
        ),
        (small(roles={"actor": {"memory": "2Gi"}}), small(roles={"actor": {"memory": "2048Mi"}})),
        (small(roles={"actor": {"cpu": 0.5}}), small(roles={"actor": {"cpu": "500m"}})),
        (small(stop={"wall_time": 300}), small(stop={"wall_time": "5m"})),
    ],
)
def test_two_spellings_of_one_run_differ_in_nothing(one: Spec, two: Spec) -> None:
    assert changes(one, two) == []
    assert hashes(one) == hashes(two)


def test_like_is_judged_by_what_it_brings() -> None:
    old = small(policies={"main": {"algorithm": {"lr": 0.1}}, "b": {}})
    new = small(policies={"main": {"algorithm": {"lr": 0.1}}, "b": {"like": "main"}})
    assert whys(old, new) == [("learner", "restart", "policies.b.algorithm.lr: 0.0005 -> 0.1")]


def test_code_that_comes_or_goes_restarts_the_roles_that_import_it() -> None:
    for old, new in ((small(), small(code={})), (small(code={}), small())):
        assert {(change.role, change.action) for change in changes(old, new)} == {
            ("learner", "restart"),
            ("actor", "restart"),
            ("evaluator", "restart"),
        }


def test_a_role_that_comes_or_goes_restarts_nobody() -> None:
    with_replay = small(roles={"replay": {"replicas": 2}})
    assert whys(small(), with_replay) == [("", "live", "roles.replay: absent -> given")]
    assert whys(with_replay, small()) == [("", "live", "roles.replay: given -> absent")]


def test_nobody_is_told_to_restart_a_role_that_the_run_does_not_have() -> None:
    changed_wait = small(inference={"max_wait_ms": 9})
    assert [(change.role, change.action) for change in changes(small(), changed_wait)] == [("learner", "restart")]
    assert [(change.role, change.action) for change in changes(small(replay={}), small(replay={"capacity": 5}))] == [
        ("", "live")
    ]


LOCK_STEP = {"sync": True, "algorithm": {"batch_size": 320}}


@pytest.mark.parametrize(
    ("new", "path"),
    [
        ({"roles": {"actor": {"replicas": 2}}}, "roles.actor.replicas"),
        ({"roles": {"actor": {"envs": 8}}}, "roles.actor.envs"),
        ({"algorithm": {"batch_size": 640}}, "algorithm.batch_size"),
        ({"algorithm": {"batch_size": 320, "unroll_length": 10}}, "algorithm.unroll_length"),
    ],
)
def test_lock_step_refuses_what_changes_its_streams(new: dict[str, object], path: str) -> None:
    (change,) = changes(small(**LOCK_STEP), small(**{**LOCK_STEP, **new}))
    assert (change.action, change.path) == ("refuse", path)
    assert change.why.endswith(": sync fixes which streams make a batch; start a new run: change `run:`")


def test_lock_step_still_takes_what_leaves_its_streams_alone() -> None:
    found = changes(
        small(**LOCK_STEP), small(**LOCK_STEP, stop={"agent_steps": 5}, roles={"evaluator": {"replicas": 2}})
    )
    assert {change.action for change in found} == {"live"}


def test_without_a_most_one_machine_allows_64_actors_or_what_the_spec_asks_for() -> None:
    assert max_actors(small()) == 64
    assert max_actors(small(roles={"actor": {"replicas": 100}})) == 100
    assert max_actors(small(roles={"actor": {"max_replicas": 8}})) == 8


@pytest.mark.parametrize(("replicas", "most"), [(0, 1000), (1, 1000), (1000, 1000), (1001, 2000), (10_000, 10_000)])
def test_without_a_most_a_cluster_allows_whole_thousands_of_actors(replicas: int, most: int) -> None:
    assert max_actors(small(target="kubernetes", roles={"actor": {"replicas": replicas}})) == most
    assert plan(small(target="kubernetes", roles={"actor": {"replicas": replicas}})).roles[3].most == most


@pytest.mark.parametrize(
    ("role", "replicas"),
    [
        ("actor", 0),
        ("actor", 1),
        ("actor", 64),
        ("evaluator", 0),
        ("evaluator", 3),
        ("learner", 1),
        ("modelpool", 1),
        ("modelpool", 64),
    ],
)
def test_scaling_within_bounds_is_fine(role: str, replicas: int) -> None:
    assert why_not_scale(small(), {role: replicas}, {}) == []


def test_the_number_of_learners_of_a_gang_that_runs_is_kueues() -> None:
    spec = small(kubernetes={"gang": "kueue", "queue": "gpus"}, roles={"actor": {"replicas": 4}})
    why = "roles.learner.replicas: Kueue keeps the number of a gang that runs: rlctl down, then up with another"
    assert why_not_scale(spec, {"learner": 2}, {"learner": 1}) == [why]
    assert why_not_scale(spec, {"learner": 1, "actor": 6}, {"learner": 1}) == []


@pytest.mark.parametrize(
    ("role", "replicas", "why"),
    [
        ("actor", -1, "roles.actor.replicas: must be at least 0, got -1"),
        ("actor", 65, "roles.actor.replicas: 65 is more than roles.actor.max_replicas 64; raise it first"),
        ("manager", 2, "manager: a run has exactly one"),
        (
            "learner",
            2,
            "roles.learner.replicas: each learner needs an actor, at most roles.actor.replicas, got 2 > 1",
        ),
        ("learner", 0, "roles.learner.replicas: must be at least 1, got 0"),
        ("modelpool", 65, "roles.modelpool.replicas: must be at most 64, got 65"),
        ("replay", 2, "replay: this run has no such role; it has manager, modelpool, learner, actor or evaluator"),
        ("actr", 2, "actr: this run has no such role; it has manager, modelpool, learner, actor or evaluator"),
        (
            "evaluator",
            0,
            "stop.eval_return: needs an evaluator: set roles.evaluator.replicas to at least 1, got 0",
        ),
    ],
)
def test_scaling_beyond_bounds_is_refused_in_words(role: str, replicas: int, why: str) -> None:
    assert why_not_scale(small(stop={"eval_return": 1}), {role: replicas}, {}) == [why]


REPLAYED = {"algorithm": {"name": "dqn"}}


@pytest.mark.parametrize("roles", [{}, {"replay": {"replicas": 2}}], ids=["left out", "given"])
def test_shards_of_a_replay_are_scaled_within_bounds_also_where_the_spec_leaves_the_role_out(
    roles: dict[str, object],
) -> None:
    spec, live = small(**REPLAYED, roles=roles), {"actor": 1, "replay": 2}
    assert [why_not_scale(spec, {"replay": count}, live) for count in (1, 2, 3, 256)] == [[]] * 4
    assert why_not_scale(spec, {"replay": 0}, live) == ["roles.replay.replicas: must be at least 1, got 0"]
    assert why_not_scale(spec, {"replay": 257}, live) == ["roles.replay.replicas: must be at most 256, got 257"]


def test_more_shards_of_a_replay_restart_nobody() -> None:
    (change,) = changes(small(**REPLAYED), small(**REPLAYED, roles={"replay": {"replicas": 5}}))
    assert (change.role, change.action, change.path) == ("manager", "live", "roles.replay.replicas")


def test_live_fields_take_the_numbers_that_they_have_and_never_fewer_than_a_spec_may_have() -> None:
    live = plan(small(**REPLAYED, stop={"agent_steps": 9})).live
    now = live_with(live, {"learner": 0, "replay": 3, "evaluator": 0, "actor": 7, "modelpool": 2})
    assert now["roles"] == {"learner": {"replicas": 1}, "replay": {"replicas": 3}, "evaluator": {"replicas": 0}}
    assert {key: value for key, value in now.items() if key != "roles"} == {
        key: value for key, value in live.items() if key != "roles"
    }
    assert live_with(live, {"replay": 0})["roles"]["replay"] == {"replicas": 1}
    assert live_with(live, {"actor": 7}) == live
    assert live["roles"]["replay"] == {"replicas": 1}, "what was given is as it was"
    assert live_with({"stop": {}}, {"replay": 3}) == {"stop": {}}


def test_more_modelpools_restart_nobody() -> None:
    (change,) = changes(small(), small(roles={"modelpool": {"replicas": 5}}))
    assert (change.role, change.action, change.path) == ("", "live", "roles.modelpool.replicas")


def test_lock_step_has_one_modelpool() -> None:
    (why,) = why_not_scale(small(**LOCK_STEP), {"modelpool": 2}, {"manager": 1, "learner": 1, "actor": 1})
    assert why.startswith("roles.modelpool.replicas: with sync the actors need every version")


def test_lock_step_cannot_be_scaled() -> None:
    (why,) = why_not_scale(small(**LOCK_STEP), {"actor": 2}, {"manager": 1, "learner": 1, "actor": 1})
    assert "sync fixes which streams make a batch" in why


FEW = "roles.learner.replicas: each learner needs an actor, at most roles.actor.replicas, got {} > {}"


@pytest.mark.parametrize(
    ("spec", "live", "wanted", "why"),
    [
        (4, {"actor": 1}, {"learner": 4}, [FEW.format(4, 1)]),
        (1, {"actor": 4}, {"learner": 2}, []),
        (1, {"actor": 1}, {"actor": 4, "learner": 2}, []),
        (1, {"actor": 1}, {"learner": 2, "actor": 4}, []),
        (4, {"actor": 4, "learner": 2}, {"actor": 1}, [FEW.format(2, 1)]),
        (4, {"actor": 1, "learner": 2}, {"evaluator": 2}, []),
        (4, {"actor": 4}, {"actor": 65, "modelpool": 0}, [
            "roles.actor.replicas: 65 is more than roles.actor.max_replicas 64; raise it first",
            "roles.modelpool.replicas: must be at least 1, got 0",
        ]),
    ],
)  # fmt: skip
def test_scaling_is_judged_by_what_runs_and_by_all_that_is_wanted_together(
    spec: int, live: dict[str, int], wanted: dict[str, int], why: list[str]
) -> None:
    assert why_not_scale(small(roles={"actor": {"replicas": spec}}), wanted, {"manager": 1} | live) == why


def test_every_leaf_has_a_mark_that_names_only_roles_of_the_full_spec() -> None:
    there = {role.role for role in plan(FULL).roles}
    assert all(set(leaf.applies.roles) <= there for leaf in leaves(FULL))


EMPTY = ": it begins empty, no generation holds its rows"
FORM = ": rows that its generations hold have another form, it begins empty"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"algorithm.unroll_length": 20}, "algorithm.unroll_length: 40 -> 20" + FORM),
        ({"algorithm.sequence_length": 120}, "algorithm.sequence_length: 80 -> 120" + FORM),
        ({"algorithm.burn_in": 0}, "algorithm.burn_in: 40 -> 0" + FORM),
        ({"algorithm.n_step": 3}, "algorithm.n_step: 5 -> 3"),
        ({"replay.capacity": 5000}, "replay.capacity: 9000 -> 5000: the newest rows that fit stay"),
        ({"replay.capacity": 10_000}, "replay.capacity: 9000 -> 10000"),
        ({"replay.checkpoint": "none"}, "replay.checkpoint: full -> none" + EMPTY),
        ({"roles.replay.replicas": 1}, "roles.replay.replicas: 2 -> 1: rows of the shards that go are dropped"),
        ({"roles.replay.replicas": 3}, "roles.replay.replicas: 2 -> 3"),
    ],
)  # fmt: skip
def test_rows_that_a_replay_loses_by_a_change_are_told_before(change: dict[str, Any], why: str) -> None:
    def replayed(checkpoint: str, **more: Any) -> Spec:
        sections: dict[str, Any] = {
            "run": "r", "env": {"id": "-"}, "algorithm": {"name": "r2d2"},
            "replay": {"checkpoint": checkpoint, "capacity": 9000}, "roles": {"replay": {"replicas": 2}},
        }  # fmt: skip
        for path, value in more.items():
            inner = sections
            *above, key = path.split(".")
            for name in above:
                inner = inner[name]
            inner[key] = value
        return Spec.model_validate(sections)

    told = {one.role: one.why for one in changes(replayed("full"), replayed("full", **change))}
    assert told.get("replay", told.get("manager")) == why
    assert all(EMPTY not in text and FORM not in text for role, text in told.items() if role != "replay")
    for one in changes(replayed("none"), replayed("none", **change)):
        assert one.why.endswith(EMPTY) == (one.role == "replay" and one.action == "restart")
