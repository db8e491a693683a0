"""Which pushes are built: what matters, lost hooks, looks at branches."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlctl.errors import TimedOut
from rlctl_ci.config.settings import Project
from rlctl_ci.core.service import Service
from rlctl_ci.forges.base import Event
from rlctl_ci.git.repository import Git
from rlctl_ci.store.records import Push
from tests.ci.git.test_repository import Repository
from tests.ci.lives.pushes import deployed, drain, hooked, later, lost, pushed
from tests.ci.world import MAIN, Clock, Outside, hands, hopeless, sha


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
    monkeypatch.setattr(service, "_adapters", lambda project, service: hands(outside)._replace(fetcher=git))
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


@pytest.mark.parametrize("paths", [["!docs/**"], ["# code", "!docs/**", " "]])
def test_paths_that_only_leave_out_are_refused(service: Service, paths: list[str]) -> None:
    about = service.config.projects["pole"].model_dump() | {"paths": paths}
    with pytest.raises(ValueError, match="they only leave out"):
        Project.model_validate(about)
    assert Project.model_validate(about | {"paths": ["**", *paths]}).paths == ["**", *paths]
