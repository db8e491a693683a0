"""Steps that a version was learned from, as far as they were said."""

from __future__ import annotations

from rlctl_agents.manager.membership.learner_progress import PAIRS
from tests.manager.world import LEARNER, Run, commit, everybody, order_evaluation, play, ref, spec, status

BATCH_ROWS = spec().policy().algorithm.batch_size


def test_an_evaluation_of_a_version_that_the_modelpool_told_of_before_the_learner_has_its_steps(run: Run) -> None:
    everybody(run)
    match = order_evaluation(run, 7)
    run.learn(LEARNER, steps=700, version=7)
    assert play(run, match, 1.0, 1.0).ok
    assert status(run)["evaluation"]["steps"] == 700


def test_steps_of_a_version_are_those_that_the_learner_said_however_uneven_its_updates(run: Run) -> None:
    everybody(run)
    learners = run.manager.learners
    for version, steps in ((1, 100), (2, 130), (4, 330), (9, 900)):
        run.learn(LEARNER, steps=steps, version=version)
    assert [learners.steps_at(ref(version)) for version in (0, 1, 2, 3, 4, 9)] == [0, 100, 130, 230, 330, 900]
    assert commit(run, 1, steps=977).ok
    assert learners.steps_at(ref(10)) == 977, "a generation says it too"
    assert learners.steps_at(ref(12)) == 977 + round(2 * 97.7), "it has not been said yet: as in the mean so far"
    for version in range(11, 3 * PAIRS):
        learners.know(ref(version), 100 * version)
    assert learners.steps_at(ref(777)) == 77_700
    assert learners.steps_at(ref(0)) == 0


def test_steps_of_an_update_are_those_that_learners_tell_of(run: Run) -> None:
    everybody(run)
    learners = run.manager.learners
    assert learners.steps_of_update("main") == BATCH_ROWS
    run.learn(LEARNER, steps=20_480, version=10)
    assert learners.steps_of_update("main") == 2048
    assert learners.steps_at(ref(11)) == 20_480 + 2048


def test_steps_of_a_version_that_was_measured_before_its_learner_told_of_any_update(run: Run) -> None:
    everybody(run)
    assert run.manager.learners.steps_at(ref(21)) == 21 * BATCH_ROWS
    run.learn(LEARNER, steps=0, version=0)
    assert run.manager.learners.steps_at(ref(21)) == 21 * BATCH_ROWS


def test_steps_of_a_model_of_the_life_before_stay_known_when_its_learner_starts_again(run: Run) -> None:
    everybody(run)
    run.learn(LEARNER, steps=1000, version=15)
    match = order_evaluation(run, 15)
    assert commit(run, 1, steps=800).ok
    run.join("learner", 22)
    run.learn(22, steps=100, version=11, lineage=2, gauges={"resumed_generation": 1.0, "steps": 900.0})
    assert play(run, match, 1.0, 1.0).ok
    assert status(run)["evaluation"]["steps"] == 1000
    assert run.manager.learners.steps_at(ref(10, 2)) == 800
