"""The threads of one life, and what they do to each other."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rlctl.errors import BackendUnreachable, TimedOut
from rlctl_ci.config import Config, Project
from rlctl_ci.errors import BuildStopped, CiError
from rlctl_ci.forges.base import Event
from rlctl_ci.git import Git
from rlctl_ci.service import Service
from rlctl_ci.store.records import Push
from tests.ci.test_git import Repository
from tests.ci.world import MAIN, Clock, Outside, hands, hopeless, sha


@pytest.fixture
def outside(tmp_path: Path) -> Outside:
    return Outside(tmp_path / "outside.jsonl")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def service(tmp_path: Path, outside: Outside, clock: Clock) -> Iterator[Service]:
    (tmp_path / "secret").write_text("a secret of sixteen or more\n")
    project = {
        "forge": "github", "repository": "/srv/pole.git", "secret_file": tmp_path / "secret", "run": "pole",
        "paths": ["agents/**"], "branches": ["main", "dev"],
    }  # fmt: skip
    config = Config.model_validate({"state": tmp_path / "state", "projects": {"pole": project}})
    found = Service(config, lambda project, service: hands(outside), clock, clock)
    yield found
    found.close()


def pushed(service: Service, outside: Outside, number: int, *, ref: str = MAIN, path: str = "agents/a.py") -> None:
    """A push of commit `number`, which changes a file, and its hook."""
    lost(outside, number, ref=ref, path=path)
    hooked(service, number, ref=ref)


def lost(outside: Outside, number: int, *, ref: str = MAIN, path: str = "agents/a.py") -> None:
    """A push of which no hook comes."""
    outside.paths[sha(number)] = path
    outside.push(sha(number), ref)


def hooked(service: Service, number: int, *, ref: str = MAIN) -> None:
    delivery = f"d-{len(service.database.connection().execute('SELECT * FROM deliveries').fetchall())}"
    service.take("pole", Event(delivery, "push", Push(ref, sha(number))))


def drain(service: Service) -> None:
    while service.one():
        pass


def test_a_clock_that_is_set_forward_gives_nobody_elses_build_away(
    service: Service, outside: Outside, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    others: list[bool] = []

    def fetch(job: Any) -> Path:
        clock.s += 10_000
        others.append(service.one())  # as another worker does
        outside.say("fetch")
        return Path(job.folder)

    monkeypatch.setattr(outside, "fetch", fetch)
    pushed(service, outside, 1)
    assert service.one()
    assert others == [False]
    assert len(outside.said("fetch")) == 1
    assert service.reading.build(1).state == "succeeded"


def test_a_fault_ends_no_thread(service: Service, outside: Outside, capsys: pytest.CaptureFixture[str]) -> None:
    seen = threading.Event()

    def fault(*_: Any, **__: Any) -> bool:
        seen.set()
        raise sqlite3.OperationalError("unable to open database file")

    service.one = fault  # type: ignore[method-assign]
    service.start()
    assert seen.wait(10)
    assert service.healthy()
    service.close()
    assert "ci: a worker: OperationalError: unable to open database file" in capsys.readouterr().out


def test_a_branch_that_cannot_be_looked_at_hides_no_other(
    service: Service,
    outside: Outside,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def at(ref: str) -> str:
        if ref == MAIN:
            raise PermissionError("the token file")
        return commits.pop()

    commits = [sha(7), sha(6)]
    monkeypatch.setattr(outside, "at", at)
    service.look()
    clock.s += 301
    service.look()
    assert [build.sha for build in service.reading.builds()] == [sha(7)]
    assert "a look at main of pole: PermissionError: the token file" in capsys.readouterr().out


def later(service: Service, clock: Clock, seconds: float = 301.0) -> None:
    """What the looks at the branches lead to."""
    clock.s += seconds
    service.look()
    drain(service)


def test_a_push_that_changes_nothing_that_matters_is_not_built_and_says_why(
    service: Service, outside: Outside, clock: Clock
) -> None:
    deployed(service, outside, 1)
    pushed(service, outside, 2, path="README.md")
    drain(service)
    lost(outside, 3, path="docs/a.md")
    later(service, clock)
    assert outside.history == [sha(0), sha(1)]
    why = f"no file of paths: agents/** changed since {sha(1)[:12]}"
    assert [(one.state, one.reason) for one in service.reading.builds()[:2]] == [("ignored", why)] * 2


def test_the_code_of_a_push_whose_hook_was_lost_comes_with_the_next_push_whatever_that_changes(
    service: Service, outside: Outside
) -> None:
    deployed(service, outside, 1)
    lost(outside, 2)
    pushed(service, outside, 3, path="README.md")
    drain(service)
    assert outside.history == [sha(0), sha(1), sha(3)]


@pytest.mark.processes
def test_code_comes_out_of_a_repository_of_git_though_its_hook_was_lost(
    service: Service, outside: Outside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = Repository(tmp_path)
    about = service.config.projects["pole"].model_copy(update={"repository": str(repository.folder)})
    git = Git(about, tmp_path / "git")
    monkeypatch.setattr(service, "_hands", lambda project, service: hands(outside)._replace(fetcher=git))
    given = []
    for name, content in (("agents/a.py", "1"), ("agents/a.py", "2"), ("README.md", "3"), ("README.md", "4")):
        commit = repository.commit(name, content)
        if content != "2":
            service.take("pole", Event(content, "push", Push(MAIN, commit)))
            drain(service)
            given.append(outside.history[-1] == commit)
    assert given == [True, True, False]
    assert service.reading.build(3).state == "ignored"


def test_code_that_was_built_and_never_given_to_the_run_comes_with_the_next_push(
    service: Service, outside: Outside
) -> None:
    deployed(service, outside, 1)
    outside.faults["make"] = [hopeless("make")]
    deployed(service, outside, 2)
    pushed(service, outside, 3, path="README.md")
    drain(service)
    assert outside.history == [sha(0), sha(1), sha(3)]


def test_a_branch_that_is_set_back_over_code_is_built(service: Service, outside: Outside) -> None:
    outside.paths[sha(3)] = "README.md"
    deployed(service, outside, 1, 5)
    pushed(service, outside, 3, path="README.md")
    drain(service)
    assert outside.history == [sha(0), sha(1), sha(5), sha(3)]


def test_what_cannot_be_compared_is_built(service: Service, outside: Outside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outside, "changed", lambda job, before: None)
    deployed(service, outside, 1)
    pushed(service, outside, 2, path="README.md")
    drain(service)
    assert outside.history == [sha(0), sha(1), sha(2)]


def test_what_could_not_be_taken_back_is_deployed_over_by_the_commit_that_reverts_it(
    service: Service, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        outside, "changed",
        lambda job, before: [] if (before, job.build.sha) == (sha(1), sha(3)) else ["agents/a.py"],
    )  # fmt: skip
    outside.bad.add(sha(2))
    outside.faults["undo"] = [TimedOut("not ready")] * 2
    deployed(service, outside, 1, 2, 3)
    assert outside.history == [sha(0), sha(1), sha(2), sha(3)]


def test_what_another_recipe_has_made_last_is_not_compared_with(service: Service, outside: Outside) -> None:
    def settings(*sets: str) -> None:
        about = service.config.projects["pole"].model_copy(update={"sets": [*sets]})
        service.config = service.config.model_copy(update={"projects": {"pole": about}})

    deployed(service, outside, 1)
    settings("algorithm.lr=0.5")
    pushed(service, outside, 2, path="README.md")
    drain(service)
    settings()
    pushed(service, outside, 3, path="README.md")
    drain(service)
    assert outside.history == [sha(0), sha(1), sha(2), sha(3)]


def test_a_person_builds_what_changes_nothing_that_matters(service: Service, outside: Outside) -> None:
    deployed(service, outside, 1)
    lost(outside, 2, path="README.md")
    service.trigger("pole", Push(MAIN, sha(2)))
    drain(service)
    assert outside.history == [sha(0), sha(1), sha(2)]


def test_nothing_that_matters_on_top_of_a_bad_commit_is_as_bad_until_somebody_resumes(
    service: Service, outside: Outside, clock: Clock
) -> None:
    outside.bad |= {sha(2), sha(3)}
    deployed(service, outside, 1, 2)
    pushed(service, outside, 3, path="README.md")
    drain(service)
    assert outside.history == [sha(0), sha(1), sha(2), sha(1)]
    outside.bad.clear()
    service.people.resume("pole")
    later(service, clock)
    assert outside.history[-1] == sha(3)


def test_the_first_look_at_a_branch_builds_nothing_and_the_next_what_was_pushed_since(
    service: Service, outside: Outside, clock: Clock
) -> None:
    lost(outside, 1)
    later(service, clock, 0)
    assert service.reading.builds() == []
    lost(outside, 2)
    lost(outside, 3, ref="refs/heads/dev")
    later(service, clock)
    assert {(one.ref, one.sha, one.state) for one in service.reading.builds()} == {
        (MAIN, sha(2), "succeeded"), ("refs/heads/dev", sha(3), "succeeded"),
    }  # fmt: skip


def test_a_clock_that_is_set_back_by_a_day_makes_no_look_wait_for_it(
    service: Service, outside: Outside, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    lost(outside, 1)
    later(service, clock, 0)
    lost(outside, 2)
    monkeypatch.setattr(service, "now", lambda: 0.0)
    later(service, clock)
    assert outside.history == [sha(0), sha(2)]


def test_a_branch_that_was_not_configured_for_a_while_is_looked_at_as_if_for_the_first_time(
    service: Service, outside: Outside, clock: Clock
) -> None:
    lost(outside, 1)
    later(service, clock, 0)
    service.queue.forget_others({("pole", "refs/heads/dev")})
    lost(outside, 2)
    later(service, clock)
    assert service.reading.builds() == []
    service.queue.forget_others({("pole", MAIN)})
    lost(outside, 3)
    later(service, clock)
    assert [one.sha for one in service.reading.builds()] == [sha(3)]


def test_an_older_commit_that_a_person_builds_again_stays(service: Service, outside: Outside, clock: Clock) -> None:
    for number in (1, 2):
        pushed(service, outside, number)
        drain(service)
    service.trigger("pole", Push(MAIN, sha(1)))
    drain(service)
    later(service, clock)
    assert outside.history == [sha(0), sha(1), sha(2), sha(1)]


def test_a_branch_that_is_set_back_is_built_again_and_a_recorded_hook_is_not(
    service: Service, outside: Outside, clock: Clock
) -> None:
    for number in (1, 2):
        pushed(service, outside, number)
        drain(service)
    hooked(service, 1)
    later(service, clock, 6)
    assert outside.history == [sha(0), sha(1), sha(2)]
    pushed(service, outside, 1)
    later(service, clock, 6)
    assert outside.history == [sha(0), sha(1), sha(2), sha(1)]


def test_a_build_of_a_project_that_is_gone_cannot_be_tried_again(service: Service) -> None:
    with pytest.raises(CiError, match="no longer configured"):
        service.trigger("gone", Push(MAIN, sha(1)))


def deployed(service: Service, outside: Outside, *numbers: int) -> None:
    for number in numbers:
        pushed(service, outside, number)
        drain(service)


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


def drain_at(service: Service, clock: Clock) -> None:
    """Some minutes later."""
    clock.s += 300.0
    with suppress(BackendUnreachable, CiError):  # a worker says so, and goes on
        drain(service)


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


@pytest.mark.parametrize("paths", [["!docs/**"], ["# code", "!docs/**", " "]])
def test_paths_that_only_leave_out_are_refused(service: Service, paths: list[str]) -> None:
    about = service.config.projects["pole"].model_dump() | {"paths": paths}
    with pytest.raises(ValueError, match="they only leave out"):
        Project.model_validate(about)
    assert Project.model_validate(about | {"paths": ["**", *paths]}).paths == ["**", *paths]
