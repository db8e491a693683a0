"""Verbs that change a run that is there."""

import signal
from collections.abc import Iterator, Mapping

import pytest

from rlctl.backends.base import Applied
from tests.cli.clusters import CLUSTER_SPEC, Clusters
from tests.cli.conftest import Rlctl
from tests.support.memory import MemoryBackend


def test_down_keeps_the_data_and_says_how_to_remove_it(rlctl: Rlctl) -> None:
    rlctl.up()
    result = rlctl("down")
    assert result.code == 0
    assert "pole is stopped" in result.err
    assert "/data/runs/pole-" in result.err
    assert "rlctl down pole --volumes" in result.err
    state = rlctl.backend.find("pole")
    assert state is not None
    assert state.phase == "stopped"


@pytest.mark.parametrize(("kept", "told"), [("none", True), ("full", False)])
def test_down_says_when_the_rows_of_a_replay_are_not_kept(rlctl: Rlctl, kept: str, told: bool) -> None:
    rlctl.up("--set", "algorithm.name=dqn", "--set", f"replay.checkpoint={kept}")
    assert ("its replay is filled anew" in rlctl("down").err) is told


def test_down_of_an_absent_run_is_no_error(rlctl: Rlctl) -> None:
    assert rlctl("down").code == 0
    assert rlctl("down", "nobody").code == 0
    rlctl.up()
    rlctl("down")
    writes = rlctl.backend.writes
    assert rlctl("down").code == 0
    assert rlctl.backend.writes == writes


def test_removing_data_without_a_terminal_is_refused_and_names_yes(rlctl: Rlctl) -> None:
    rlctl.up()
    result = rlctl("down", "--volumes")
    assert result.code == 9
    assert "rlctl down pole --volumes --yes" in result.err
    assert rlctl.backend.find("pole") is not None


def test_removing_data_says_what_goes_and_wants_the_name_typed(rlctl: Rlctl) -> None:
    rlctl.up()
    for wrong in ("", "y\n", "yes\n", "poles\n"):
        assert rlctl("down", "--volumes", terminal=True, answer=wrong).code == 9
    result = rlctl("down", "--volumes", terminal=True, answer="pole\n")
    assert result.code == 0
    assert "removes run pole on local for good" in result.err
    assert "6 processes are stopped" in result.err
    assert rlctl.backend.find("pole") is None


def test_yes_removes_without_asking(rlctl: Rlctl) -> None:
    rlctl.up()
    assert rlctl("down", "--volumes", "--yes").code == 0
    assert rlctl.backend.find("pole") is None


def test_up_after_down_goes_on_with_the_same_uid(rlctl: Rlctl) -> None:
    rlctl.up()
    before = rlctl.backend.find("pole")
    rlctl("down")
    rlctl.up()
    after = rlctl.backend.find("pole")
    assert before is not None
    assert after is not None
    assert before.uid == after.uid


def test_scale_adds_and_removes_and_touches_nothing_else(rlctl: Rlctl) -> None:
    rlctl.up()
    up = rlctl("scale", "actor=4", "-o", "json")
    assert up.code == 0
    changed = [entry for entry in up.json["applied"] if entry["what"] != "unchanged"]
    assert [(entry["object"], entry["what"]) for entry in changed] == [("actor/2", "created"), ("actor/3", "created")]
    assert up.json["from"] == {"actor": 2}
    assert up.json["to"] == {"actor": 4}
    down = rlctl("scale", "actor=1")
    assert down.out == "actor: 4 -> 1\n"
    writes = rlctl.backend.writes
    assert rlctl("scale", "actor=1").out == "actor: 1, unchanged\n"
    assert rlctl.backend.writes == writes


def test_a_role_is_named_once(rlctl: Rlctl) -> None:
    rlctl.up()
    done = rlctl("scale", "actor=3", "actor=4")
    assert done.code == 2
    assert "actor is given twice: 3 and 4" in done.err
    assert rlctl("scale", "actor=4", "actor=4").out == "actor: 2 -> 4\n"


def test_scale_judges_learners_by_the_actors_that_run(rlctl: Rlctl) -> None:
    rlctl.up()
    assert rlctl("scale", "actor=1").code == 0
    assert rlctl("scale", "learner=2").code == 5
    assert rlctl("scale", "learner=3", "actor=3").code == 0


def test_scale_respects_max_replicas_and_says_how_to_raise_it(rlctl: Rlctl) -> None:
    rlctl.up("--set", "roles.actor.max_replicas=4")
    assert rlctl("scale", "actor=4").code == 0
    result = rlctl("scale", "actor=5")
    assert result.code == 5
    assert "--set roles.actor.max_replicas=5" in result.err


def test_scale_without_max_replicas_ends_at_64_on_one_machine(rlctl: Rlctl) -> None:
    rlctl.up()
    assert rlctl("scale", "actor=64").code == 0
    assert rlctl("scale", "actor=65").code == 5


def test_on_a_cluster_fewer_modelpools_with_too_little_memory_for_all_actors_are_noted(rlctl: Rlctl) -> None:
    many = "{actor: {replicas: 4, max_replicas: 10000}, manager: {memory: 2Gi}, modelpool: {replicas: 6}}"
    spec = CLUSTER_SPEC.replace("{actor: {replicas: 2, envs: 8}}", many)
    Clusters(rlctl)
    assert rlctl("up", str(rlctl.write("many.yaml", spec)), "-d").code == 0
    fewer = rlctl("scale", "modelpool=1")
    assert fewer.code == 0
    assert "note: roles.modelpool.memory: 1Gi, but with up to 10,000 actors it needs 4096Mi" in fewer.err
    assert "note" not in rlctl("scale", "modelpool=6").err
    assert "note" not in rlctl("scale", "actor=5").err


def test_scale_refuses_what_a_run_cannot_have(rlctl: Rlctl) -> None:
    rlctl.up()
    assert rlctl("scale", "manager=2").code == 5
    assert rlctl("scale", "learner=9").code == 5, "more than actors"
    assert rlctl("scale", "modelpool=0").code == 5


def test_on_a_cluster_fewer_shards_must_fit_into_their_pods_when_they_are_started_again(rlctl: Rlctl) -> None:
    clusters = Clusters(rlctl)
    replayed = CLUSTER_SPEC.replace("{name: impala, lr: 1e-3}", "{name: apex_dqn}").replace(
        "roles: {", "replay: {capacity: 2000000}\nroles: {replay: {replicas: 2, memory: 2Gi}, "
    )
    spec = str(rlctl.write("cluster.yaml", replayed))
    assert rlctl("up", spec, "-d").code == 0
    assert rlctl("scale", "replay=1").code == 0, "nobody says what a row takes"
    assert rlctl("scale", "replay=2").code == 0
    clusters.report(replay={"capacity": 1_000_000, "array_bytes": 10**9})
    refused = rlctl("scale", "replay=1")
    assert refused.code == 5
    assert (
        "  roles.replay.memory: 2Gi, but replay.capacity is 2,000,000 rows in 1 shard of 1.9Gi: ask for 3Gi; with 2Gi"
        " replay.capacity 1,300,000 would fit" in refused.err
    )
    clusters.report(replay={"capacity": 1_000_000, "array_bytes": 8 * 10**8})
    assert rlctl("scale", "replay=1").code == 0


def test_on_one_machine_more_shards_must_fit_beside_those_that_keep_their_size(rlctl: Rlctl) -> None:
    rlctl.up("--set", "algorithm.name=apex_dqn", "--set", "replay.capacity=1000000")
    rlctl.report(replay={"capacity": 1_000_000, "array_bytes": 50 * 2**30})
    refused = rlctl("scale", "replay=2")
    assert refused.code == 5
    assert "  roles.replay.replicas: 1 more of 25.0Gi beside 50.0Gi of those that run; this machine has 64.0Gi" in (
        refused.err
    )
    rlctl.report(replay={"capacity": 1_000_000, "array_bytes": 40 * 2**30})
    assert rlctl("scale", "replay=2").code == 0


@pytest.mark.parametrize("text", ["actor", "actor=", "=3", "actor=two", "actor=-1", "replay=2", "actr=2"])
def test_scale_wants_role_and_number(rlctl: Rlctl, text: str) -> None:
    rlctl.up()
    assert rlctl("scale", text).code == 2


def test_scale_and_restart_of_a_run_that_is_over_are_conflicts(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl("down")
    assert rlctl("scale", "actor=3").code == 5
    assert rlctl("restart", "learner").code == 5


def test_restart_restarts_that_role_alone(rlctl: Rlctl) -> None:
    rlctl.up()
    result = rlctl("restart", "learner", "-o", "json")
    assert result.code == 0
    assert result.json["applied"] == [{"object": "learner/0", "what": "restarted", "why": ""}]
    assert "newest generation" in result.err


def test_restart_of_a_role_that_the_run_has_not_is_a_usage_error(rlctl: Rlctl) -> None:
    rlctl.up()
    result = rlctl("restart", "replay")
    assert result.code == 2
    assert "roles: manager, modelpool, learner, actor, evaluator" in result.err


class Interrupted(MemoryBackend):
    """A backend with Ctrl-C pressed so often during its `delete`."""

    times = 1

    def delete(self, run: str, *, volumes: bool, grace_s: float) -> Iterator[Applied]:
        for applied in super().delete(run, volumes=volumes, grace_s=grace_s):
            for _ in range(self.times):
                signal.raise_signal(signal.SIGINT)
            self.times = 0
            yield applied


@pytest.mark.parametrize(("times", "code", "left"), [(1, 0, 0), (2, 130, 5)])
def test_down_is_ended_by_the_second_ctrl_c_and_not_by_the_first(
    rlctl: Rlctl, times: int, code: int, left: int
) -> None:
    rlctl.backend = backend = Interrupted()
    rlctl.up()
    backend.times = times
    result = rlctl("down", "pole")
    assert result.code == code
    assert len(backend.processes("pole")) == left
    assert ("left pole half stopped; the same command goes on" in result.err) == (code != 0)


def test_ctrl_c_of_scale_says_what_to_do(rlctl: Rlctl) -> None:
    class Stopped(MemoryBackend):
        def scale(self, run: str, replicas: Mapping[str, int]) -> Iterator[Applied]:
            for applied in super().scale(run, replicas):
                yield applied
                signal.raise_signal(signal.SIGINT)

    rlctl.backend = Stopped()
    rlctl.up()
    result = rlctl("scale", "actor=3")
    assert result.code == 130
    assert "left pole half scaled; the same command goes on" in result.err
