"""Later attempts at a build: what each goes on from, and which build waits for which."""

from __future__ import annotations

from typing import Any

import pytest

from rlctl.errors import BackendUnreachable
from rlctl_ci.core.errors import Busy
from rlctl_ci.store.records import Build, Push
from tests.ci.world import MAIN, Service, away, hopeless, sha

DEV = "refs/heads/dev"


def under_way(service: Service, number: int, **push: str) -> Build:
    """A build of that commit, claimed while another one is."""
    service.hook(number, **push)
    build = service.claim(most=2)
    assert build is not None
    return build


def deploying(service: Service, build: Build) -> None:
    for state in ("building", "pushing", "deploying"):
        service.queue.step(build.id, service.owner, state)
    assert service.queue.plan_deploy(build.id, service.owner, "pole", 1, {}) is not None


def unfinished(service: Service) -> Build:
    """A build with a deployment that waits for its next attempt."""
    service.outside.faults["verify"] = [BackendUnreachable("away")]
    build = service.run(under_way(service, 1))
    assert build.state == "queued"
    return build


@pytest.mark.parametrize("push", [{}, {"ref": DEV}, {"name": "twin"}])
def test_a_run_waits_for_the_deployment_that_has_begun_and_for_nobody_else(
    service: Service, push: dict[str, str]
) -> None:
    first = unfinished(service)
    service.hook(2, **push)
    assert service.claim(most=2) is None, "its run is that of the first build"
    service.clock.s += 10
    again = service.claim(most=2)
    assert again is not None
    assert again.id == first.id
    assert service.run(again).state == "succeeded"
    service.drain()
    assert service.outside.history == [sha(0), sha(1), sha(2)]


def test_whoever_holds_a_run_goes_on_though_as_many_as_allowed_are_under_way(service: Service) -> None:
    first = under_way(service, 1)
    under_way(service, 1, ref=DEV)
    service.outside.faults["verify"] = [BackendUnreachable("away")]
    service.run(first)
    under_way(service, 1, name="lab")
    service.clock.s += 10
    again = service.claim(most=2)
    assert again is not None
    assert again.id == first.id


def test_who_waits_too_long_for_a_run_comes_later_and_has_not_spent_an_attempt(service: Service) -> None:
    holder, waiter = under_way(service, 1), under_way(service, 2, ref=DEV)
    deploying(service, holder)
    ended = service.run(waiter)
    assert (ended.state, ended.attempts) == ("queued", 0)
    service.queue.decide(holder.id, service.owner, "verified", "succeeded", "")
    service.drain()
    ended = service.reading.build(waiter.id)
    assert (ended.state, ended.attempts) == ("succeeded", 1)


def test_who_has_waited_goes_back_to_what_the_build_before_has_made(service: Service) -> None:
    holder, waiter = under_way(service, 1), under_way(service, 2, ref=DEV)
    deploying(service, holder)

    def finish(seconds: float) -> None:
        service.outside.say("revision", sha=sha(1), build=holder.id, by="apply")
        service.queue.decide(holder.id, service.owner, "verified", "succeeded", "")

    work = service.work()
    work.sleep = finish
    service.outside.bad.add(sha(2))
    work.run(waiter, service.project, service.folder, service.lines.append)
    assert service.outside.history == [sha(0), sha(1), sha(2), sha(1)]


def test_what_is_deployed_is_judged_without_repository_and_registry(service: Service) -> None:
    first = unfinished(service)
    service.outside.faults |= {step: [away(step)] * 9 for step in ("head", "fetch", "push")}
    service.drain()
    assert service.reading.build(first.id).state == "succeeded"
    assert service.outside.history == [sha(0), sha(1)]


def test_what_an_earlier_attempt_may_have_changed_is_undone_when_it_cannot_be_finished(service: Service) -> None:
    number = service.hook(1)
    assert number is not None
    service.outside.faults["apply"] = [BackendUnreachable("away"), hopeless("preflight")]
    service.drain()
    assert service.reading.build(number).state == "rolled_back"
    assert ("pole", MAIN) in service.reading.pins()


def test_a_build_that_was_cancelled_pins_nothing_also_when_its_target_stays_away(service: Service) -> None:
    first = unfinished(service)
    service.queue.cancel(first.id, "cancelled by ana")
    service.outside.faults["undo"] = [BackendUnreachable("away")] * 3
    service.drain()
    assert service.reading.build(first.id).state == "failed"
    assert [deploy.build for deploy in service.reading.unfinished_rollbacks()] == [first.id]
    assert service.reading.pins() == {}


def test_a_database_that_is_busy_does_not_end_a_deployment(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(*_: Any, **__: Any) -> None:
        monkeypatch.undo()  # a moment later it is free again
        raise Busy("locked")

    build = under_way(service, 1)
    monkeypatch.setattr(service.queue, "deployed", busy)
    with pytest.raises(Busy):
        service.run(build)
    service.clock.s += 61
    service.queue.recover(at_start=False)
    service.drain()
    assert service.reading.build(build.id).state == "succeeded"
    assert service.outside.history == [sha(0), sha(1)]


def test_a_clock_that_is_set_back_by_a_day_makes_no_attempt_wait_for_it(service: Service) -> None:
    number = service.hook(1)
    assert number is not None
    service.outside.faults["fetch"] = [away("fetch")]
    waiting = service.run(service.claim() or pytest.fail("nothing to do"))
    assert waiting.state == "queued"
    assert service.claim() is None
    service.clock.s -= 86_400
    again = service.claim()
    assert again is not None
    service.clock.s -= 86_400
    assert service.queue.recover({service.owner}, at_start=False) == []
    assert service.queue.recover(at_start=False) == [number], "whoever held it is gone"


@pytest.mark.parametrize("times", [4, 10])
def test_a_target_that_is_away_before_anything_is_written_is_waited_for_and_pins_nothing(
    service: Service, times: int
) -> None:
    number = service.hook(1)
    assert number is not None
    service.outside.faults["apply"] = [away("away")] * times
    service.drain()
    assert service.reading.build(number).state == ("succeeded" if times < 10 else "failed")
    assert service.outside.history == [sha(0), sha(1)][: 2 - (times == 10)]
    assert service.reading.pins() == {}


def test_an_older_commit_that_a_person_builds_meanwhile_does_not_take_the_place_of_one_that_waits(
    service: Service,
) -> None:
    service.hook(1)
    service.drain()
    service.outside.faults["push"] = [away("push")]
    waiting = service.run(under_way(service, 2))
    again = service.queue.again("pole", Push(MAIN, sha(1)), recipe="r")
    assert service.run(service.claim() or pytest.fail("nothing to do")).state == "succeeded"
    service.drain()
    assert [service.reading.build(number).state for number in (waiting.id, again)] == ["succeeded"] * 2
    assert service.outside.history[-1] == sha(2)


def test_a_run_that_a_person_is_changing_is_tried_again_and_pins_nothing(service: Service) -> None:
    number = service.hook(1)
    assert number is not None
    service.outside.faults["apply"] = [away("locked")] * 10
    service.drain()
    assert service.reading.build(number).state == "failed"
    assert service.reading.deploy(number) is None
    assert service.reading.pins() == {}


def test_a_target_that_goes_away_in_the_middle_is_gone_on_with_before_anything_is_undone(service: Service) -> None:
    number = service.hook(1)
    assert number is not None
    service.outside.faults["apply"] = [away("partial")]
    service.drain()
    assert service.reading.build(number).state == "succeeded"
    assert service.outside.history == [sha(0), sha(1)]
