"""Going back: what a person asks for, what a bad deployment leads to, and what is interrupted."""

from __future__ import annotations

from typing import Any

import pytest

from rlctl.errors import BackendUnreachable, TimedOut
from rlctl_ci.core.build_attempt import Job
from rlctl_ci.core.errors import BuildStopped, CiError, Transient
from rlctl_ci.core.service import Service
from rlctl_ci.forges.base import Event
from rlctl_ci.store.records import Deploy, Push
from tests.ci.lives.pushes import deployed, drain, drain_at, pushed
from tests.ci.world import MAIN, Clock, Outside, sha


def test_a_person_goes_back_from_what_has_changed_the_run_last(service: Service, outside: Outside) -> None:
    deployed(service, outside, 1, 2)
    service.trigger("pole", Push(MAIN, sha(2)))
    drain(service)  # it runs already: nothing to go back from
    assert service.roll_back("pole", "ana")["pinned"] == sha(2)
    assert outside.history[-1] == sha(1)
    assert service.roll_back("pole", "ana")["pinned"] == sha(2), "the newer one stays bad"
    assert outside.history[-1] == sha(0)
    with pytest.raises(CiError, match="no deployment to go back from"):
        service.roll_back("pole", "ana")


def test_a_rollback_and_a_deployment_wait_for_each_other(
    service: Service, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployed(service, outside, 1)
    undo, verify, others = outside.undo, outside.verify, []

    def while_it_is_undone(*arguments: Any) -> int:
        pushed(service, outside, 2)
        others.append(service.one())
        return undo(*arguments)

    def while_it_is_verified(*arguments: Any) -> str:
        with pytest.raises(CiError, match="is being changed by build 2"):
            service.roll_back("pole", "ana")
        return verify(*arguments)

    monkeypatch.setattr(outside, "undo", while_it_is_undone)
    monkeypatch.setattr(outside, "verify", while_it_is_verified)
    service.roll_back("pole", "ana")
    assert others == [False]
    drain(service)
    assert outside.history == [sha(0), sha(1), sha(0), sha(2)]


@pytest.mark.parametrize("end", [SystemExit("killed"), BackendUnreachable("away")])
def test_a_rollback_that_is_interrupted_has_pinned_the_branch_and_is_finished(
    service: Service, outside: Outside, clock: Clock, end: BaseException
) -> None:
    deployed(service, outside, 1)
    outside.faults["undo"] = [end]  # type: ignore[list-item]
    with pytest.raises(type(end)):
        service.roll_back("pole", "ana")
    assert service.reading.pins()["pole", MAIN][0] == sha(1)
    assert outside.history == [sha(0), sha(1)]
    clock.s += 31
    drain(service)
    assert outside.history == [sha(0), sha(1), sha(0)]
    deploy = service.reading.deploy(1)
    assert deploy is not None
    assert (deploy.state, deploy.note) == ("rolled_back", "rolled back by ana")
    assert (service.reading.build(1).state, service.reading.build(1).reason) == ("rolled_back", "rolled back by ana")


def test_a_deployment_whose_target_stays_away_is_undone_when_that_is_back(
    service: Service, outside: Outside, clock: Clock
) -> None:
    deployed(service, outside, 1)
    outside.faults["verify"] = [BackendUnreachable("away")] * 3
    outside.faults["undo"] = [BackendUnreachable("away")] * 2
    pushed(service, outside, 2)
    for _ in range(3):
        drain_at(service, clock)
    assert service.reading.build(2).state == "failed"
    assert outside.history[-1] == sha(2)
    pushed(service, outside, 3)
    drain_at(service, clock)
    assert outside.history == [sha(0), sha(1), sha(2), sha(1), sha(3)], "the run is free only then"
    assert [build.state for build in service.reading.builds()] == ["succeeded", "rolled_back", "succeeded"]
    assert service.reading.build(2).reason == "away; rolled back as soon as the target answers (away)"
    for number in (1, 0):
        service.roll_back("pole", "ana")
        assert outside.history[-1] == sha(number)


def test_a_target_that_stays_away_keeps_no_rollback_of_another_run_waiting(
    service: Service, outside: Outside, clock: Clock
) -> None:
    lab = service.config.projects["pole"].model_copy(update={"run": "lab"})
    service.config = service.config.model_copy(update={"projects": service.config.projects | {"lab": lab}})
    deployed(service, outside, 1)
    outside.push(sha(2))
    service.take("lab", Event("lab", "push", Push(MAIN, sha(2))))
    drain(service)
    outside.faults["undo"] = [BackendUnreachable("away")] * 3
    for name in ("pole", "lab"):
        with pytest.raises(BackendUnreachable):
            service.roll_back(name, "ana")
    clock.s += 31
    with pytest.raises(BackendUnreachable):
        service.one()
    assert service.one()
    assert [deploy.state for deploy in service.reading.deploys()] == ["rolled_back", "rolling_back"]


@pytest.mark.parametrize("asked_for", [True, False])
def test_what_was_given_to_another_run_than_the_project_has_now_is_left_as_it_is(
    service: Service, outside: Outside, clock: Clock, asked_for: bool
) -> None:
    outside.faults["undo" if asked_for else "verify"] = [BackendUnreachable("away")]
    pushed(service, outside, 1)
    drain(service)
    if asked_for:
        with pytest.raises(BackendUnreachable):
            service.roll_back("pole", "ana")
    other = service.config.projects["pole"].model_copy(update={"run": "other"})
    service.config = service.config.model_copy(update={"projects": {"pole": other}})
    outside.bad.add(sha(1))
    drain_at(service, clock)
    assert outside.history == [sha(0), sha(1)], "the revisions of one run are not those of another"
    deploy = service.reading.deploy(1)
    assert deploy is not None
    assert deploy.state == ("verified" if asked_for else "failed")
    assert "project pole is of run other by now, not of pole" in deploy.note


def test_what_could_not_be_undone_is_what_a_person_goes_back_from(service: Service, outside: Outside) -> None:
    deployed(service, outside, 1)
    outside.bad.add(sha(2))
    outside.faults["undo"] = [TimedOut("not ready")] * 3
    deployed(service, outside, 2)
    assert service.reading.build(2).state == "failed"
    with pytest.raises(TimedOut):
        service.roll_back("pole", "ana")
    deploy = service.reading.deploy(2)
    assert deploy is not None
    assert deploy.state == "failed"
    service.roll_back("pole", "ana")
    assert outside.history == [sha(0), sha(1), sha(2), sha(1)]
    assert (service.reading.build(2).state, service.reading.build(2).reason) == ("rolled_back", "rolled back by ana")


def test_a_rollback_that_cannot_be_done_holds_no_run_and_may_be_asked_for_again(
    service: Service, outside: Outside
) -> None:
    deployed(service, outside, 1)
    outside.faults["undo"] = [TimedOut("not ready")]
    with pytest.raises(TimedOut):
        service.roll_back("pole", "ana")
    assert not service.one()
    service.roll_back("pole", "ana")
    assert outside.history == [sha(0), sha(1), sha(0)]


def test_a_rollback_that_is_refused_pins_nothing(service: Service, outside: Outside) -> None:
    deployed(service, outside, 1)
    outside.faults["undo"] = [BuildStopped("ended", "run pole is stopped by now, and stays so")]
    with pytest.raises(BuildStopped):
        service.roll_back("pole", "ana")
    assert outside.history[-1] == sha(1)
    assert service.reading.pins() == {}


def test_a_rollback_that_is_refused_leaves_the_pin_of_a_commit_that_had_failed(
    service: Service, outside: Outside
) -> None:
    deployed(service, outside, 1)
    outside.bad.add(sha(2))
    outside.faults["undo"] = [TimedOut("not ready")] * 2
    outside.faults["undo"] += [BuildStopped("ended", "run pole is stopped by now, and stays so")]
    deployed(service, outside, 2)
    assert service.reading.build(2).state == "failed"
    pins = service.reading.pins()
    assert len(pins) == 1
    with pytest.raises(BuildStopped):
        service.roll_back("pole", "ana")
    assert service.reading.pins().keys() == pins.keys()


def test_a_rollback_that_the_end_of_the_service_interrupts_is_gone_on_with(
    service: Service, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed(service, outside, 1)
    drain(service)

    def undo(job: Job, deploy: Deploy) -> int:
        service.end()
        job.stop()
        raise AssertionError("it goes on")

    monkeypatch.setattr(outside, "undo", undo)
    with pytest.raises(Transient, match="the service ends"):
        service.roll_back("pole", "ana")
    assert [one.build for one in service.reading.unfinished_rollbacks()] == [1]
