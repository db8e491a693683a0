"""How a run ends or breaks, as the manager sees it: steps, time in vain, latecomers, lock-step."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlctl_agents.manager.status.report import StatusBuilder
from rlctl_agents.runtime.process import UserFault
from tests.manager.world import Run, kinds, spec

POOL, LEARNER, ACTOR = 1, 2, 3


def everybody(run: Run) -> None:
    run.join("modelpool", POOL)
    run.join("actor", ACTOR)
    run.join("learner", LEARNER)


def problems(run: Run) -> list[str]:
    return [problem["text"] for problem in StatusBuilder(run.manager, cores=8).build()["problems"]]


def test_the_learner_hears_after_how_many_steps_it_makes_no_update_and_nobody_else_does(tmp_path: Path) -> None:
    run = Run(tmp_path, stop={"agent_steps": 5000})
    run.join("actor", ACTOR)
    assert run.join("learner", LEARNER).stop_steps == 5000
    run.manager.reload(spec(stop={"agent_steps": 9000}))
    assert run.learn(LEARNER, steps=100, version=1).stop_steps == 9000
    assert run.report("actor", ACTOR).stop_steps == 0
    run.manager.reload(spec())
    assert run.learn(LEARNER, steps=100, version=1).stop_steps == 0


def test_time_that_is_over_in_vain_ends_the_manager_with_the_users_fault_and_the_next_up_has_it_again(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path, stop={"wall_time": 40})
    everybody(run)
    run.after(39, ("actor", ACTOR), ("learner", LEARNER))
    with pytest.raises(UserFault, match=r"stop\.wall_time of 40 s is over, and nothing was ever learned from$"):
        run.after(1, ("actor", ACTOR), ("learner", LEARNER))
    assert run.manager.state.progress.met is None
    run.start()
    run.after(39)
    assert run.manager.stop.phase == "running"


def test_time_that_is_over_in_vain_says_who_never_joined_and_an_event_of_it_stays(tmp_path: Path) -> None:
    run = Run(tmp_path, stop={"wall_time": 40})
    run.join("modelpool", POOL)
    run.join("actor", ACTOR)
    with pytest.raises(UserFault) as failed:
        run.after(40, ("actor", ACTOR))
    assert str(failed.value).endswith("nothing was ever learned from: no learner had joined")
    assert f'"{failed.value}"' in (run.layout.results / "events.jsonl").read_text()
    assert kinds(run)[-1] == "failed"


def test_time_that_is_over_is_success_once_something_was_learned_from(tmp_path: Path) -> None:
    run = Run(tmp_path, stop={"wall_time": 40})
    everybody(run)
    run.learn(LEARNER, steps=100, version=1)
    run.after(40, ("actor", ACTOR), ("learner", LEARNER))
    assert run.manager.state.progress.met == "40 s >= 40 s"


def test_who_comes_too_late_to_a_run_that_ends_is_no_problem(tmp_path: Path) -> None:
    run = Run(tmp_path)
    everybody(run)
    run.manager.stop.finish("stopped on request")
    run.manager.turn()
    with pytest.raises(ValueError, match="the run is finished"):
        run.join("actor", 33)
    assert problems(run) == []
    assert run.manager.admission.refusal[0] == "the run is finished"


def test_a_process_started_again_breaks_lock_step_and_it_is_said_once(tmp_path: Path) -> None:
    run = Run(tmp_path, sync=True)
    everybody(run)
    run.join("actor", ACTOR)
    run.learn(LEARNER, steps=700, version=7)
    assert not any("lock-step" in text for text in problems(run))
    run.join("actor", 33, prefer=0)
    run.join("actor", 34, prefer=0)
    run.manager.store()
    run.start()
    run.join("learner", 22)
    said = "lock-step was broken: actor 0 was started again; from step 700 on this run cannot be repeated"
    assert said in problems(run)
    assert (run.layout.results / "events.jsonl").read_text().count("lock-step was broken") == 1


def test_a_learner_started_again_breaks_lock_step_where_it_goes_on(tmp_path: Path) -> None:
    run = Run(tmp_path, sync=True)
    everybody(run)
    run.learn(LEARNER, steps=700, version=7)
    run.join("learner", 22)
    assert any("learner 0 was started again; from step 0 on" in text for text in problems(run))


def test_without_lock_step_whoever_starts_again_breaks_nothing(tmp_path: Path) -> None:
    run = Run(tmp_path)
    everybody(run)
    run.join("actor", 33, prefer=0)
    assert run.manager.state.progress.broken is None
