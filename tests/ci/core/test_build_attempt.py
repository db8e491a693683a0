"""Steps of a build: where each leads when it works, and when it does not."""

from __future__ import annotations

import errno
from contextlib import suppress

import pytest

from rlctl.errors import BackendUnreachable, PartlyApplied
from rlctl_ci.core.errors import ShuttingDown, Transient
from rlctl_ci.store.records import Push
from tests.ci.world import MAIN, Service, away, hopeless, sha


def states(service: Service, build: int) -> list[str]:
    return [state for _, state, _ in service.reading.events(build)]


def test_a_good_commit_goes_through_every_state_and_runs(service: Service) -> None:
    number = service.hook(1)
    assert number is not None
    service.drain()
    assert states(service, number) == [
        "received", "queued", "fetching", "building", "pushing", "deploying", "verifying", "succeeded",
    ]  # fmt: skip
    assert service.outside.history == [sha(0), sha(1)]


def test_a_bad_commit_is_rolled_back_by_itself_and_its_branch_pinned(service: Service) -> None:
    service.hook(1)
    service.drain()
    service.outside.bad.add(sha(2))
    bad = service.hook(2)
    assert bad is not None
    service.drain()
    assert service.reading.build(bad).state == "rolled_back"
    assert service.outside.history == [sha(0), sha(1), sha(2), sha(1)]
    assert service.reading.pins()["pole", MAIN][0] == sha(2)


def test_a_pinned_branch_ignores_older_commits_and_takes_a_newer_one(service: Service) -> None:
    service.outside.bad.add(sha(5))
    service.hook(5)
    service.drain()
    old = service.hook(4)
    assert old is not None
    service.drain()
    assert service.reading.build(old).state == "ignored"
    assert "pinned" in service.reading.build(old).reason
    new = service.hook(6)
    assert new is not None
    service.drain()
    assert service.reading.build(new).state == "succeeded"
    assert service.outside.history[-1] == sha(6)


def test_resume_lifts_the_pin(service: Service) -> None:
    service.outside.bad.add(sha(5))
    service.hook(5)
    service.drain()
    assert service.people.resume("pole") == 1
    service.outside.bad.clear()
    again = service.queue.again("pole", Push(MAIN, sha(5)), recipe="r")
    service.drain()
    assert service.reading.build(again).state == "succeeded"


def test_after_resume_the_next_look_builds_the_head_of_a_branch_that_was_pinned(service: Service) -> None:
    service.outside.bad.add(sha(5))
    service.hook(5)
    service.drain()
    assert service.queue.looked("pole", MAIN, sha(5), recipe="r") is None
    service.people.resume("pole")
    again = service.queue.looked("pole", MAIN, sha(5), recipe="r")
    assert again is not None
    service.outside.bad.clear()
    service.drain()
    assert service.reading.build(again).state == "succeeded"
    service.people.resume("pole")
    assert service.queue.looked("pole", MAIN, sha(5), recipe="r") is None, "it was not pinned any more"


def test_what_is_away_before_a_deployment_is_waited_for_with_growing_pauses_for_an_hour(service: Service) -> None:
    number = service.hook(1)
    assert number is not None
    service.outside.faults["fetch"] = [away("fetch"), away("fetch")]
    service.drain()
    assert service.reading.build(number).state == "succeeded"
    assert service.reading.build(number).attempts == 3
    failing = service.hook(2)
    assert failing is not None
    service.outside.faults["push"] = [away("push")] * 10
    began = service.clock()
    while (build := service.claim()) is not None:
        ended = service.run(build)
        service.clock.s = max(service.clock.s, ended.not_before)
    assert (ended.state, ended.attempts, ended.phase, ended.code) == ("failed", 10, "pushing", "push")
    assert 3000 < service.clock() - began < 4000
    notes = [note for _, state, note in service.reading.events(failing) if state == "queued"]
    assert notes[1] == "again in 5 s: push does not answer"


def test_a_newer_commit_supersedes_one_that_waits_for_what_is_away(service: Service) -> None:
    older = service.hook(1)
    service.outside.faults["fetch"] = [away("fetch")]
    service.run(service.claim() or pytest.fail("nothing to do"))
    newer = service.hook(2)
    service.drain()
    assert service.states() == {older: "superseded", newer: "succeeded"}


@pytest.mark.parametrize("kills", [2, 3])
def test_what_was_away_is_no_kill_and_three_kills_are(service: Service, kills: int) -> None:
    number = service.hook(1)
    assert number is not None
    service.outside.faults["push"] = [away("push")] * 5
    while service.outside.faults["push"]:
        service.clock.s += 1000
        service.run(service.claim() or pytest.fail("nothing to do"))
    for _ in range(kills):
        service.clock.s += 1000
        assert service.claim() is not None
        service.queue.recover(at_start=True)
    service.drain()
    assert service.reading.build(number).state == ("succeeded" if kills < 3 else "failed")


@pytest.mark.parametrize("step", ["push", "verify"])
@pytest.mark.parametrize("error", [ShuttingDown("the service ends"), Transient("ended", "git was ended")])
def test_an_orderly_end_of_the_service_costs_no_attempt(service: Service, step: str, error: Exception) -> None:
    number = service.hook(1)
    assert number is not None
    for _ in range(5):
        service.clock.s += 1000
        service.outside.faults[step] = [error]
        with suppress(ShuttingDown):
            service.run(service.claim() or pytest.fail("nothing to do"))
        build = service.reading.build(number)
        assert (build.state, build.attempts) == ("queued", 0)
        assert (build.not_before == service.clock()) == isinstance(error, ShuttingDown)
    service.drain()
    assert service.reading.build(number).state == "succeeded"
    assert service.outside.history == [sha(0), sha(1)]
    assert service.reading.pins() == {}


@pytest.mark.parametrize("error", [hopeless("source"), away("fetch"), BackendUnreachable("away"), RuntimeError("x")])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_behind_any_error_ends_no_build(service: Service, error: Exception, number: int) -> None:
    build = service.hook(1)
    assert build is not None
    error.__cause__ = OSError(number, "full")
    service.outside.faults["push"] = [error]
    with pytest.raises(OSError, match="full"):
        service.run(service.claim() or pytest.fail("nothing to do"))
    assert service.queue.retry_later(build, service.owner, "the disk: full", spent=False)
    service.drain()
    assert (service.reading.build(build).state, service.reading.build(build).attempts) == ("succeeded", 1)


def test_what_cannot_work_is_not_tried_again(service: Service) -> None:
    number = service.hook(1)
    assert number is not None
    service.outside.faults["make"] = [hopeless("make")]
    service.drain()
    build = service.reading.build(number)
    assert (build.state, build.attempts, build.phase) == ("failed", 1, "building")
    assert service.outside.history == [sha(0)]


def test_a_spec_that_the_run_cannot_become_changes_nothing_and_pins_nothing(service: Service) -> None:
    number = service.hook(1)
    assert number is not None
    service.outside.faults["apply"] = [hopeless("spec")]
    service.drain()
    assert service.reading.build(number).state == "failed"
    assert service.outside.said("revision") == []
    assert service.reading.pins() == {}


def test_half_a_deployment_is_rolled_back(service: Service) -> None:
    number = service.hook(1)
    assert number is not None
    service.outside.faults["apply"] = [PartlyApplied("half of it")]
    service.drain()
    assert service.reading.build(number).state == "rolled_back"


def test_a_target_that_is_away_while_it_is_verified_is_waited_for(service: Service) -> None:
    number = service.hook(1)
    assert number is not None
    service.outside.faults["verify"] = [BackendUnreachable("away")]
    service.drain()
    assert service.reading.build(number).state == "succeeded"
    assert service.outside.history == [sha(0), sha(1)], "the second attempt changed nothing"


@pytest.mark.parametrize(("code", "pinned"), [("ended", False), ("changed", True)])
def test_what_somebody_else_has_made_of_the_run_is_not_undone(service: Service, code: str, pinned: bool) -> None:
    service.outside.bad.add(sha(1))
    service.outside.faults["undo"] = [hopeless(code)]
    number = service.hook(1)
    assert number is not None
    service.drain()
    build, deploy = service.reading.build(number), service.reading.deploy(number)
    assert (build.state, deploy and deploy.state) == ("failed", "failed")
    assert build.reason == f"learner 0 exited 1; not rolled back: {code} cannot be"
    assert (("pole", MAIN) in service.reading.pins()) == pinned
    assert service.outside.history == [sha(0), sha(1)]


def test_a_target_that_stays_away_leaves_a_failed_build_and_a_pinned_branch(service: Service) -> None:
    number = service.hook(1)
    assert number is not None
    service.outside.faults["verify"] = [BackendUnreachable("away")] * 3
    service.outside.faults["undo"] = [BackendUnreachable("away")]
    service.drain()
    build = service.reading.build(number)
    assert build.state == "failed"
    assert build.reason == "away; rolled back as soon as the target answers (away)"
    assert [deploy.build for deploy in service.reading.unfinished_rollbacks()] == [number]
    assert ("pole", MAIN) in service.reading.pins()


def test_a_run_that_does_not_run_is_not_started(service: Service) -> None:
    number = service.hook(1)
    assert number is not None
    service.outside.live = False
    service.drain()
    ended = service.reading.build(number)
    assert (ended.state, ended.reason) == ("ignored", "run pole does not run: built, and nothing redeployed")
    assert service.reading.deploy(number) is None
    assert service.outside.said("revision") == []


def test_a_build_for_a_run_that_is_not_there_fails(service: Service) -> None:
    number = service.hook(1)
    assert number is not None
    service.outside.faults["look"] = [hopeless("run")]
    service.drain()
    build = service.reading.build(number)
    assert (build.state, build.phase, build.code) == ("failed", "deploying", "run")
    assert service.reading.deploy(number) is None


def test_a_replayed_hook_of_an_old_commit_deploys_nothing(service: Service) -> None:
    service.hook(1)
    service.drain()
    service.hook(2)
    service.drain()
    service.told(1, delivery="captured and sent again")
    service.drain()
    assert service.outside.history == [sha(0), sha(1), sha(2)]


def test_hooks_that_come_in_the_wrong_order_end_at_the_head_of_the_branch(service: Service) -> None:
    service.outside.push(sha(1))
    service.outside.push(sha(2))
    service.told(2)
    service.drain()
    late = service.told(1)
    assert late is not None
    service.drain()
    assert service.reading.build(late).state == "superseded"
    assert service.outside.history == [sha(0), sha(2)]


def test_a_branch_whose_head_is_newer_than_its_hook_builds_the_head(service: Service) -> None:
    service.outside.push(sha(1))
    service.outside.push(sha(2))
    service.told(1)
    service.drain()
    assert service.outside.history == [sha(0), sha(2)]
    assert service.reading.builds()[0].source == "poll"


def forget_build(service: Service, number: int) -> None:
    """As `rlctl ci clean` does."""
    with service.database.write() as db:
        for table in ("deliveries", "events", "deploys", "artifacts"):
            db.execute(f"DELETE FROM {table} WHERE build = ?", (number,))
        db.execute("DELETE FROM builds WHERE id = ?", (number,))


def test_a_recorded_hook_of_a_commit_of_which_no_build_is_known_any_more_builds_nothing(service: Service) -> None:
    for number in (1, 2):
        service.hook(number)
        service.drain()
    forget_build(service, 1)
    service.told(1, delivery="captured and sent again")
    service.drain()
    assert service.states() == {2: "succeeded", 3: "superseded"}


def test_a_recorded_hook_of_a_forgotten_commit_supersedes_the_head_that_waits_for_a_moment_alone(
    service: Service,
) -> None:
    service.hook(1)
    service.drain()
    forget_build(service, 1)
    service.hook(2)
    service.told(1, delivery="captured and sent again")
    service.drain()
    assert service.states() == {2: "superseded", 3: "superseded", 4: "succeeded"}
    assert service.outside.history == [sha(0), sha(1), sha(2)]


def test_a_person_builds_commits_of_the_branch_alone(service: Service) -> None:
    service.hook(5)
    service.drain()
    stranger, older = (service.queue.again("pole", Push(MAIN, sha(number)), recipe="r") for number in (9, 4))
    service.drain()
    ended = service.reading.build(stranger)
    assert (ended.state, ended.code) == ("failed", "commit")
    assert ended.reason.startswith(f"{sha(9)[:12]} is no commit of branch main, which is at {sha(5)[:12]}")
    assert service.reading.build(older).state == "succeeded"


def pinned(service: Service) -> None:
    """At commit 5."""
    service.outside.bad.add(sha(5))
    service.hook(5)
    service.drain()
    assert service.reading.pins()["pole", MAIN][0] == sha(5)


def test_a_newer_commit_that_is_verified_ends_the_pin(service: Service) -> None:
    pinned(service)
    service.hook(6)
    service.drain()
    assert service.reading.pins() == {}


def test_a_newer_commit_that_is_as_bad_moves_the_pin(service: Service) -> None:
    pinned(service)
    service.outside.bad.add(sha(6))
    service.hook(6)
    service.drain()
    assert service.reading.pins()["pole", MAIN][0] == sha(6)


def test_an_older_commit_that_a_person_builds_leaves_the_pin_and_the_head_ends_it(service: Service) -> None:
    pinned(service)
    service.queue.again("pole", Push(MAIN, sha(4)), recipe="r")
    service.drain()
    assert service.outside.history[-1] == sha(4)
    assert service.reading.pins()["pole", MAIN][0] == sha(5)
    service.outside.bad.clear()
    service.queue.again("pole", Push(MAIN, sha(5)), recipe="r")
    service.drain()
    assert service.outside.history[-1] == sha(5)
    assert service.reading.pins() == {}


def test_a_branch_that_is_gone_is_ignored(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    number = service.hook(1)
    assert number is not None
    monkeypatch.setattr(service.outside, "head", lambda job: None)
    service.drain()
    assert service.reading.build(number).state == "ignored"


def test_cancelled_before_its_deployment_it_deploys_nothing(service: Service) -> None:
    service.hook(1)
    build = service.claim()
    assert build is not None
    service.queue.cancel(build.id, "ana: no")
    ended = service.run(build)
    assert (ended.state, ended.reason) == ("cancelled", "ana: no")
    assert service.outside.said("revision") == []


def test_cancelled_after_a_kill_in_the_middle_of_its_deployment_it_is_undone(service: Service) -> None:
    service.hook(1)
    build = service.claim()
    assert build is not None
    for state in ("building", "pushing", "deploying"):
        service.queue.step(build.id, service.owner, state)
    service.queue.plan_deploy(build.id, service.owner, "pole", 1, {})
    service.outside.say("revision", sha=sha(1), build=build.id, by="apply")
    service.queue.recover(at_start=True)
    service.queue.cancel(build.id, "ana: no")
    service.drain()
    assert service.reading.build(build.id).state == "cancelled"
    assert service.outside.history[-1] == sha(0)


def test_a_fault_of_ours_ends_the_build_and_leaves_the_queue_going(service: Service) -> None:
    number = service.hook(1)
    assert number is not None
    service.outside.faults["make"] = [ZeroDivisionError("x")]
    service.drain()
    assert service.reading.build(number).code == "bug"
    service.hook(2)
    service.drain()
    assert service.outside.history[-1] == sha(2)
