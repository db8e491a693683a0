"""Rollback of a deployment: to which revision, and past changes that a person has made meanwhile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlctl.backends.base import Failure
from rlctl.backends.kubernetes.api.interface import ApiError
from rlctl.errors import Conflict, PartlyApplied, TimedOut, WorkloadFailed
from rlctl_ci.core.errors import BuildStopped, Transient
from rlctl_ci.deploy.deployment import RunDeployment, Step
from tests.ci.deploy.test_deploy import acting, cluster, made, source, step, target, templates
from tests.conformance.targets import Memory, Pretended, Target

__all__ = ["cluster", "target"]

CODE = "code: {path: .}\n"


def well(target: Target) -> None:
    """Make the target well: its manager answers, and all processes have joined."""
    if isinstance(target, Memory):
        roles = {
            role: [{"index": index, "joined": True, "age_s": 0.0} for index in range(9)]
            for role in target.state().replicas
        }
        target.memory.report("pole", {"phase": "running", "time": 4e9, "roles": roles, "totals": {"consumed_steps": 1}})


def deployed(target: Target, tmp_path: Path, actor: str = "replicas: 2") -> tuple[RunDeployment, Step, dict[str, Any]]:
    """A deployment that has been applied: its act, its step, and the run before."""
    doing, begun = acting(target), step(target)
    live = doing.look()
    assert live is not None
    revision = doing.apply(begun, source(tmp_path, target, CODE, actor), made(target, tmp_path))
    assert revision == begun.before + 1
    well(target)
    return doing, replace(begun, made=revision), live["baseline"]


@pytest.mark.parametrize("recorded", [True, False])
def test_going_back_brings_the_documents_of_before(target: Target, tmp_path: Path, recorded: bool) -> None:
    before = target.state()
    doing, went, baseline = deployed(target, tmp_path)
    went = went if recorded else replace(went, made=None)
    doing.undo(went, baseline)
    assert target.state().hashes == before.hashes
    revision = target.state().revision
    assert doing.undo(went, baseline) == revision, "a second time, after a kill, nothing changes"


def test_half_a_deployment_is_gone_back_from_though_no_revision_tells_of_it(cluster: Pretended, tmp_path: Path) -> None:
    api, doing, before, ran = cluster.api, acting(cluster), cluster.state(), templates(cluster)

    def written() -> None:
        if templates(cluster) != ran:
            api.refuse = lambda method, key: ApiError("away", status=503, key=key) if method == "PATCH" else None

    api.on_write = written
    with pytest.raises(Transient, match="away"):
        doing.apply(step(cluster), source(tmp_path, cluster, "code: {path: .}\n"), made(cluster, tmp_path))
    assert cluster.state().revision == before.revision
    assert templates(cluster) != ran
    api.on_write, api.refuse = lambda: None, lambda method, key: None
    assert doing.undo(step(cluster), {}) == before.revision
    assert templates(cluster) == ran


def test_another_run_of_that_name_is_neither_changed_nor_gone_back_with(target: Target, tmp_path: Path) -> None:
    doing, went, baseline = deployed(target, tmp_path)
    before, other = target.state(), replace(went, uid="f" * 32)
    for act in (
        lambda: doing.undo(other, baseline),
        lambda: doing.apply(other, source(tmp_path, target, CODE), made(target, tmp_path)),
    ):
        with pytest.raises(BuildStopped, match="is another one by now") as error:
            act()
        assert error.value.code == "ended"
    assert target.state() == before
    assert baseline["uid"] == before.uid
    doing.undo(replace(went, uid=before.uid), baseline)


def test_a_run_that_a_person_has_stopped_is_not_started_again(target: Target, tmp_path: Path) -> None:
    doing, went, baseline = deployed(target, tmp_path)
    target.down()
    stopped = target.state()
    with pytest.raises(BuildStopped, match="run pole is stopped") as error:
        doing.undo(went, baseline)
    assert error.value.code == "ended"
    assert target.state() == stopped
    target.down(volumes=True)
    with pytest.raises(BuildStopped, match="run pole is gone"):
        doing.undo(went, baseline)


def test_a_run_that_has_finished_stays_so_and_one_that_has_failed_is_gone_back_with(tmp_path: Path) -> None:
    target = Memory()
    target.up()
    before = target.state()
    doing, went, baseline = deployed(target, tmp_path)
    cause = Failure("learner/0", "learner 0 exited 1", (), before.created)
    target.memory.fail("pole", cause)
    doing.undo(went, baseline | {"missing": "it is asked later"})
    assert target.state().phase == "running"
    assert target.state().hashes == before.hashes
    target.memory.finish("pole", "rows")
    with pytest.raises(BuildStopped, match="run pole is finished"):
        doing.undo(went, baseline)


@pytest.mark.parametrize("recorded", [True, False])
def test_what_a_person_has_applied_since_stays(target: Target, tmp_path: Path, recorded: bool) -> None:
    doing, went, baseline = deployed(target, tmp_path)
    target.up(lr=0.5)
    theirs = target.state()
    with pytest.raises(BuildStopped, match=r"at revision 3 by .*@.*, and this deployment went") as error:
        doing.undo(went if recorded else replace(went, made=None), baseline)
    assert error.value.code == "changed"
    assert target.state() == theirs


def test_a_person_who_goes_back_to_another_revision_is_not_gone_back_from(target: Target, tmp_path: Path) -> None:
    target.up(lr=0.5)
    doing, went, baseline = deployed(target, tmp_path)
    list(target.backend.rollback("pole", 1))
    with pytest.raises(BuildStopped, match=r"at revision 4 by .* \(rollback to 1\), and this deployment went 2 to 3"):
        doing.undo(went, baseline)
    list(target.backend.rollback("pole", 3))
    well(target)
    assert doing.undo(went, baseline) == 6, "that is the deployment again"


def test_what_a_person_applies_between_two_attempts_is_not_deployed_over(target: Target, tmp_path: Path) -> None:
    doing, begun = acting(target), step(target)
    target.up(lr=0.5)
    theirs = target.state()
    with pytest.raises(Transient, match="changed just now") as error:
        doing.apply(begun, source(tmp_path, target, CODE), made(target, tmp_path))
    assert error.value.code == "locked"
    assert target.state() == theirs


@pytest.mark.parametrize("pushed", [2, 4])
def test_the_numbers_that_ran_before_run_again(target: Target, tmp_path: Path, pushed: int) -> None:
    list(target.backend.scale("pole", {"actor": 6}))
    doing, went, baseline = deployed(target, tmp_path, f"replicas: {pushed}")
    assert target.state().replicas["actor"] == (6 if pushed == 2 else 4)
    list(target.backend.rollback("pole", went.before))  # as a rollback that was killed before its end
    list(target.backend.scale("pole", {"evaluator": 2}))
    well(target)
    doing.undo(went, baseline)
    assert target.state().replicas["actor"] == 6
    assert target.state().replicas["evaluator"] == 2


def test_a_number_that_may_not_be_set_again_does_not_say_that_nothing_was_gone_back_from(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(run: str, replicas: Any) -> Any:
        raise Conflict("an autoscaler has set the replicas of the actors")

    list(target.backend.scale("pole", {"actor": 6}))
    doing, went, baseline = deployed(target, tmp_path, "replicas: 4")
    monkeypatch.setattr(target.backend, "scale", refuse)
    with pytest.raises(PartlyApplied, match="autoscaler"):
        doing.undo(went, baseline)
    assert target.state().revision == went.before + 2


def test_a_number_that_a_person_has_set_meanwhile_stays(target: Target, tmp_path: Path) -> None:
    doing, went, baseline = deployed(target, tmp_path, "replicas: 4")
    list(target.backend.scale("pole", {"actor": 5}))
    well(target)
    doing.undo(went, baseline)
    assert target.state().replicas["actor"] == 5


def test_a_run_that_was_not_ready_is_deployed_to_and_gone_back_from_without_a_wait(tmp_path: Path) -> None:
    target = Memory()
    target.up()
    well(target)
    target.memory.set_process("pole", "actor", 1, state="starting", reason="Pending")
    doing, went, baseline = deployed(target, tmp_path)
    assert baseline["missing"] == "actor: 1 of 2 run"
    target.memory.set_process("pole", "actor", 1, state="starting", reason="Pending")
    with pytest.raises(TimedOut) as error:
        doing.verify(baseline)
    assert error.value.message.endswith("(it was not ready before the push either: actor: 1 of 2 run)")
    target.memory.silence("pole")
    assert doing.undo(went, baseline) == went.before + 2


def test_a_run_that_was_ready_is_waited_for(tmp_path: Path) -> None:
    target = Memory()
    target.up()
    well(target)
    doing, went, baseline = deployed(target, tmp_path)
    assert baseline["missing"] == ""
    target.memory.silence("pole")
    with pytest.raises(TimedOut, match="not ready"):
        doing.undo(went, baseline)


@pytest.mark.parametrize(("actors", "per_s", "well_enough"), [(1, 60.0, True), (1, 40.0, False), (4, 60.0, False)])
def test_of_fewer_actors_less_is_expected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, actors: int, per_s: float, well_enough: bool
) -> None:
    target = Memory()
    target.up()
    target.memory.report("pole", {"throughput": {"consumed_steps_per_s": 200.0}})
    doing, _, baseline = deployed(target, tmp_path, f"replicas: {actors}")
    clock = doing.clock

    def slept(seconds: float) -> None:
        doing_sleep(seconds)
        target.memory.report("pole", {"totals": {"consumed_steps": per_s * clock()}})

    doing_sleep, doing.sleep = doing.sleep, slept
    if well_enough:
        assert "60 steps/s (before: 100)" in doing.verify(baseline)
    else:
        with pytest.raises(WorkloadFailed, match="less than 50%"):
            doing.verify(baseline)
