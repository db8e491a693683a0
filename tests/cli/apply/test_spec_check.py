"""Answers of the child that tries the environment, in `lint` and `up`."""

from typing import Any

import pytest

from rlctl.probe import Probed
from rlctl.spec.problems.messages import Fault
from tests.cli.clusters import CLUSTER_SPEC
from tests.cli.conftest import Rlctl

UNKNOWN = Probed(
    "problem", "no such id", (Fault(("env", "id"), "Gymnasium has no CartPole-v9; it has CartPole-v0 and CartPole-v1"),)
)
TORSO = Probed("problem", "which", (Fault(("model", "torso"), "auto cannot know"), *UNKNOWN.faults))
LACKING = Probed("problem", "lacks", (), (Fault(("env", "id"), "Hopper-v5 needs the package mujoco"),))
SLOW = Probed("not checked", "CartPole-v1: it took longer than 5 s")


@pytest.mark.parametrize("verb", [("lint",), ("up", "-d"), ("up", "--dry-run", "client")])
def test_what_the_child_refuses_ends_3_at_its_line_and_starts_nothing(rlctl: Rlctl, verb: tuple[str, ...]) -> None:
    rlctl.probed = TORSO
    result = rlctl(verb[0], rlctl.spec, *verb[1:])
    assert result.code == 3
    said = (result.out + result.err).splitlines()
    assert f"{rlctl.spec}:2:7: env.id: {UNKNOWN.faults[0].message}" in said
    assert f"{rlctl.spec}:1:1: model.torso: auto cannot know" in said
    assert rlctl.backend.find("pole") is None
    assert rlctl.checks[-1].over


def test_what_the_child_refuses_is_in_the_json_of_lint(rlctl: Rlctl) -> None:
    rlctl.probed = UNKNOWN
    result = rlctl("lint", rlctl.spec, "-o", "json")
    assert result.code == 3
    assert [(problem["path"], problem["line"], problem["column"]) for problem in result.json["problems"]] == [
        ("env.id", 2, 7)
    ]


def test_lint_and_up_show_which_leaf_goes_through_which_net(rlctl: Rlctl) -> None:
    checked = rlctl("lint", rlctl.spec)
    assert (checked.code, checked.out) == (0, "")
    assert "checked: CartPole-v1: obs float32 [4] -> mlp\n" in checked.err
    assert rlctl("lint", rlctl.spec, "-o", "json").json["environment"]["inputs"]["main"][0]["net"] == "mlp"
    assert "ok       environment  CartPole-v1: obs float32 [4] -> mlp\n" in rlctl("up", rlctl.spec, "-d").err


def test_what_could_not_be_tried_is_one_line_with_its_reason_and_stops_nothing(rlctl: Rlctl) -> None:
    rlctl.probed = SLOW
    checked = rlctl("lint", rlctl.spec)
    assert checked.code == 0
    assert checked.err.count("not checked: CartPole-v1: it took longer than 5 s\n") == 1
    up = rlctl("up", rlctl.spec, "-d")
    assert up.code == 0
    assert up.err.count("environment  CartPole-v1: it took longer than 5 s\n") == 1


def test_a_package_that_is_not_installed_is_a_finding_of_lint_and_keeps_up_from_starting(rlctl: Rlctl) -> None:
    rlctl.probed = LACKING
    checked = rlctl("lint", rlctl.spec)
    assert (checked.code, checked.out) == (1, f"{rlctl.spec}:2:7: env.id: Hopper-v5 needs the package mujoco\n")
    up = rlctl("up", rlctl.spec, "-d")
    assert up.code == 5
    assert f"packages: {rlctl.spec}:2:7: env.id: Hopper-v5 needs the package mujoco" in up.err
    assert rlctl.backend.find("pole") is None


def test_the_second_up_of_a_live_run_waits_for_no_child(rlctl: Rlctl) -> None:
    rlctl.up()
    assert rlctl.checks[-1].asked
    rlctl.probed = UNKNOWN
    again = rlctl("up", rlctl.spec, "-d", "--set", "run=pole")
    assert again.code == 0
    assert not rlctl.checks[-1].asked
    assert rlctl.checks[-1].over
    assert rlctl("up", rlctl.spec, "-d", "--set", "algorithm.lr=1e-4").code == 3


def test_a_spec_for_a_cluster_is_tried_by_nobody_and_lint_alone_says_so(rlctl: Rlctl) -> None:
    spec = str(rlctl.write("cluster.yaml", CLUSTER_SPEC))
    checked = rlctl("lint", spec)
    assert "not checked: " in checked.err
    assert "on a cluster it lives in the image" in checked.err
    dry = rlctl("up", spec, "--dry-run", "client")
    assert dry.code == 0
    assert "not checked" not in dry.err
    assert rlctl.checks == []


def test_a_broken_spec_starts_no_child(rlctl: Rlctl) -> None:
    assert rlctl("lint", str(rlctl.write("faulty.yaml", "run: Pole\nenv: {id: CartPole-v1}\n"))).code == 3
    assert rlctl.checks == []


def test_a_child_is_ended_when_up_refuses_for_another_reason(rlctl: Rlctl) -> None:
    rlctl.up()
    refused: Any = rlctl("up", rlctl.spec, "-d", "--set", "env.id=Acrobot-v1")
    assert refused.code == 5
    assert rlctl.checks[-1].over
    assert not rlctl.checks[-1].asked


DQN = "run: pole\nenv: {id: CartPole-v1}\nalgorithm: {name: dqn}\nreplay: {capacity: 400000}\n"
LARGE = Probed("ok", "CartPole-v1: obs -> mlp", shard_bytes=100 * 2**30)  # the machine of these tests has 64Gi
TOLD = "replay.capacity: 400,000 rows in 1 shard of 100.0Gi; this machine has 64.0Gi; replay.capacity 200,000 would fit"


def test_lint_and_up_tell_what_a_replay_comes_to(rlctl: Rlctl) -> None:
    rlctl.probed = Probed("ok", "CartPole-v1: obs -> mlp", shard_bytes=3 * 2**30)
    spec = str(rlctl.write("dqn.yaml", DQN + "roles: {replay: {replicas: 2}}\n"))
    text = "400,000 rows in 2 shards of 3.0Gi, 6.0Gi in all"
    assert f"replay: {text}\n" in rlctl("lint", spec).err
    assert rlctl("lint", spec, "-o", "json").json["environment"]["replay_shard_bytes"] == 3 * 2**30
    assert f"ok       replay       {text}\n" in rlctl("up", spec, "-d").err
    saved = rlctl("lint", spec, "--set", "replay.checkpoint=full").err
    assert f"replay: {text}; generations hold it: up to 24.0Gi of the volume" in saved


@pytest.mark.parametrize("verb", [("lint",), ("up", "-d"), ("up", "--dry-run", "client")])
def test_a_replay_that_the_machine_has_no_memory_for_is_refused_at_its_line(
    rlctl: Rlctl, verb: tuple[str, ...]
) -> None:
    rlctl.probed = LARGE
    spec = str(rlctl.write("dqn.yaml", DQN))
    result = rlctl(verb[0], spec, *verb[1:])
    assert result.code == 3
    assert f"{spec}:4:10: {TOLD}" in (result.out + result.err).splitlines()
    assert rlctl.backend.find("pole") is None


def test_lint_measures_a_replay_on_a_cluster_and_says_what_its_pods_have_to_ask_for(rlctl: Rlctl) -> None:
    rlctl.probed = LARGE
    spec = str(rlctl.write("cluster.yaml", CLUSTER_SPEC.replace("impala", "dqn")))
    checked = rlctl("lint", spec, "--set", "roles.replay.memory=90Gi", "--set", "replay.capacity=500000")
    assert checked.code == 1
    assert "roles.replay.memory: 90Gi, but replay.capacity is 500,000 rows in 1 shard of 100.0Gi: ask for 101Gi;" in (
        checked.out
    )
    assert "on a cluster it lives in the image" in checked.err
    enough = rlctl("lint", spec, "--set", "roles.replay.memory=101Gi", "-o", "json")
    assert enough.json["findings"] == []
    assert enough.json["environment"] == {"verdict": "not checked", "replay_shard_bytes": 100 * 2**30}


def test_a_cluster_whose_environment_is_not_here_is_no_fault_of_the_spec(rlctl: Rlctl) -> None:
    rlctl.probed = UNKNOWN
    checked = rlctl("lint", str(rlctl.write("cluster.yaml", CLUSTER_SPEC.replace("impala", "dqn"))))
    assert checked.code == 0
    assert "not checked: memory of the replay: no such id\n" in checked.err
