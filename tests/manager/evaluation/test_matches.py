"""Pairing of seats and models in matches, and which results of an evaluation are believed."""

from __future__ import annotations

import pytest

from rlctl_agents.manager.accounting.counters import Cpu
from rlctl_agents.manager.evaluation.cadence import Cadence
from rlctl_agents.manager.evaluation.matches import (
    LOAD_S,
    NEWEST,
    PLAY_S,
    PULL_S,
    STUCK_S,
    TRAINING,
    Evaluation,
    Quotas,
    RequestedEvaluation,
    Standstill,
    training,
)
from rlctl_agents.types.control import EvalResult, Match, Quota
from rlctl_agents.types.experience import ModelRef
from tests.manager.world import Time, ref

ROLES = ("modelpool", "learner", "actor")


@pytest.fixture
def time() -> Time:
    return Time()


def of_run(seed: int, time: Time, *, match: int = TRAINING) -> Quotas:
    return Quotas(seed, time, Cadence(time, lambda: Cpu(0.0, 0.0)), match=match)


@pytest.fixture
def evaluations(time: Time) -> Quotas:
    return of_run(7, time)


def order(evaluations: Quotas, boot: str, model: ModelRef | None, **changes: object) -> Match | None:
    """Match that it was given before, or a new one."""
    values = {"seats": 1, "every_s": 10.0, "quota": Quota(3, "greedy")} | changes
    return evaluations.playing(boot) or evaluations.order(boot, model, **values)  # type: ignore[arg-type]


def result(match: Match, returns: tuple[float, ...] = (10.0, 20.0, 30.0), mode: str = "greedy") -> EvalResult:
    return EvalResult(match.id, match.seats[0], mode, list(returns), [1] * len(returns), 2.5)


def finish(evaluations: Quotas, done: EvalResult) -> Evaluation:
    return evaluations.finish(done, steps=5000, wall_s=60.0, unix=1.7e9)


def test_training_learns_from_every_seat_with_the_newest_weights() -> None:
    match = training("main", 2, 11)
    assert match.seats == {0: ModelRef("main", NEWEST, NEWEST), 1: ModelRef("main", NEWEST, NEWEST)}
    assert match.learn == (0, 1)
    assert match.quota is None
    assert match == training("main", 2, 11), "a match stays the same as long as nothing changes"


def test_an_evaluation_pins_one_model_on_every_seat_and_learns_nothing(evaluations: Quotas) -> None:
    match = order(evaluations, "E", ref(5), seats=2)
    assert match is not None
    assert match.seats == {0: ref(5), 1: ref(5)}
    assert match.learn == ()
    assert match.quota is not None
    assert (match.quota.episodes, match.quota.mode) == (3, "greedy")


def test_an_evaluator_is_told_the_same_until_it_is_done(evaluations: Quotas, time: Time) -> None:
    match = order(evaluations, "E", ref(5))
    time.now += 100
    assert order(evaluations, "E", ref(9)) is match


def test_each_quota_goes_to_one_evaluator_and_starts_are_apart(evaluations: Quotas, time: Time) -> None:
    first = order(evaluations, "E", ref(5))
    assert order(evaluations, "F", ref(9)) is None
    time.now += 10
    second = order(evaluations, "F", ref(9))
    assert first is not None
    assert second is not None
    assert first.id != second.id
    assert first.seed != second.seed


def test_which_games_are_played_depends_on_model_and_run_alone(evaluations: Quotas, time: Time) -> None:
    one = order(evaluations, "E", ref(5))
    later, other_run = of_run(7, time, match=900), of_run(8, time)
    same, other = order(later, "F", ref(5)), order(other_run, "F", ref(5))
    assert one is not None
    assert same is not None
    assert other is not None
    assert (same.id, same.seed) == (901, one.seed)
    assert other.seed != one.seed


def test_once_only_one_model_counts_no_other_is_played(evaluations: Quotas, time: Time) -> None:
    old = order(evaluations, "E", ref(5))
    time.now += 10
    last = order(evaluations, "F", ref(9))
    wanted = RequestedEvaluation(ref(9), "greedy")
    evaluations.only([wanted])
    assert evaluations.open("E", wanted, seats=1, quota=Quota(3, "greedy")) is None, "another plays it"
    assert order(evaluations, "F", ref(9)) is last
    assert old is not None
    with pytest.raises(ValueError, match="was given to another evaluator"):
        finish(evaluations, result(old))


def test_no_model_is_measured_twice(evaluations: Quotas, time: Time) -> None:
    match = order(evaluations, "E", ref(5))
    assert match is not None
    finish(evaluations, result(match))
    time.now += 60
    assert order(evaluations, "E", ref(5)) is None
    assert order(evaluations, "E", ref(4)) is None
    assert order(evaluations, "E", ref(1, lineage=2)) is not None


def test_nothing_is_measured_before_there_is_a_model(evaluations: Quotas) -> None:
    assert order(evaluations, "E", None) is None


def test_what_a_dead_evaluator_was_playing_is_measured_by_another(evaluations: Quotas) -> None:
    order(evaluations, "E", ref(5))
    evaluations.drop("E")
    match = order(evaluations, "F", ref(5))
    assert match is not None
    assert match.seats[0] == ref(5)


def test_a_model_that_the_pool_no_longer_has_is_replaced_by_a_newer_one(evaluations: Quotas, time: Time) -> None:
    order(evaluations, "E", ref(5))
    time.now += LOAD_S
    evaluations.hear("E", None, 0, 0)
    match = order(evaluations, "E", ref(500))
    assert match is not None
    assert match.seats[0] == ref(500)


def test_an_evaluator_that_plays_on_is_left_alone_and_one_that_stands_still_is_not(
    evaluations: Quotas, time: Time
) -> None:
    match = order(evaluations, "E", ref(5))
    for steps in range(1, 100):
        time.now += STUCK_S - 1
        evaluations.hear("E", ref(5), steps, 0)
    assert order(evaluations, "E", ref(9)) is match
    time.now += STUCK_S
    evaluations.hear("E", ref(5), 99, 0)
    assert order(evaluations, "E", ref(9)) is not match


def test_an_evaluator_that_plays_its_match_may_take_minutes_to_reset_its_environments(
    evaluations: Quotas, time: Time
) -> None:
    match = order(evaluations, "E", ref(5))
    assert match is not None
    evaluations.hear("E", ref(5), 0, match.id)
    time.now += PLAY_S - 1
    evaluations.hear("E", ref(5), 0, match.id)
    assert order(evaluations, "E", ref(9)) is match
    evaluations.hear("E", ref(5), 0, match.id - 1)
    assert order(evaluations, "E", ref(9)) is not match, "it plays something else"


def test_a_match_is_given_up_later_the_more_environments_are_reset_one_after_the_other(
    evaluations: Quotas, time: Time
) -> None:
    match = order(evaluations, "E", ref(5))
    assert match is not None
    evaluations.hear("E", ref(5), 0, match.id, envs=25)
    time.now += 25 * 60
    evaluations.hear("E", ref(5), 0, match.id, envs=25)
    assert order(evaluations, "E", ref(9)) is match, "a minute for each"
    assert evaluations.standstill == Standstill(25, given_up=0, still_s=1500)
    evaluations.hear("E", ref(5), 25, match.id, envs=25)
    assert evaluations.standstill is None
    finish(evaluations, result(match))
    assert evaluations.standstill is None


def test_matches_that_are_given_up_are_counted_until_an_evaluation_is_done(evaluations: Quotas, time: Time) -> None:
    for count in (1, 2):
        match = order(evaluations, "E", ref(5))
        assert match is not None
        evaluations.hear("E", ref(5), 0, match.id, envs=25)
        time.now += Standstill(25).limit_s
        evaluations.hear("E", ref(5), 0, match.id, envs=25)
        assert evaluations.playing("E") is None
        assert evaluations.standstill == Standstill(25, given_up=count)
    match = order(evaluations, "E", ref(5))
    assert match is not None
    finish(evaluations, result(match))
    assert evaluations.standstill is None


def test_an_evaluator_that_says_that_it_is_at_its_match_may_take_minutes_to_load_the_model(
    evaluations: Quotas, time: Time
) -> None:
    match = order(evaluations, "E", ref(5))
    assert match is not None
    time.now += PULL_S - 1
    evaluations.hear("E", None, 0, match.id)
    assert order(evaluations, "E", ref(9)) is match
    evaluations.hear("E", None, 0, 0)
    assert order(evaluations, "E", ref(9)) is not match, "it has given up"


def test_an_evaluator_that_hangs_in_its_match_gets_another_one_at_last(evaluations: Quotas, time: Time) -> None:
    match = order(evaluations, "E", ref(5))
    assert match is not None
    evaluations.hear("E", ref(5), 7, match.id)
    time.now += PLAY_S
    evaluations.hear("E", ref(5), 7, match.id)
    assert order(evaluations, "E", ref(9)) is not match


def test_a_result_is_summed_up(evaluations: Quotas) -> None:
    match = order(evaluations, "E", ref(5))
    assert match is not None
    done = finish(evaluations, result(match))
    assert (done.mean, done.min, done.max, done.episodes) == (20, 10, 30, 3)
    assert done.std == pytest.approx(8.16496580927726)
    assert (done.ref, done.steps, done.wall_s, done.mode) == (ref(5), 5000, 60, "greedy")


@pytest.mark.parametrize(
    ("returns", "mode", "words"),
    [
        ((10.0, 20.0), "greedy", "asks for 3 episodes"),
        ((10.0, 20.0, 30.0), "sample", "in mode sample"),
        ((10.0, float("nan"), 30.0), "greedy", "not finite"),
        ((10.0, -1e200, 30.0), "greedy", "beyond 1e\\+150"),
    ],
)
def test_a_result_that_is_not_the_whole_quota_does_not_count(
    evaluations: Quotas, returns: tuple[float, ...], mode: str, words: str
) -> None:
    match = order(evaluations, "E", ref(5))
    assert match is not None
    with pytest.raises(ValueError, match=words):
        finish(evaluations, result(match, returns, mode))


def test_a_result_counts_once_and_only_for_its_own_model(evaluations: Quotas) -> None:
    match = order(evaluations, "E", ref(5))
    assert match is not None
    other = EvalResult(match.id, ref(6), "greedy", [1.0] * 3, [1] * 3, 1.0)
    with pytest.raises(ValueError, match="is not about"):
        finish(evaluations, other)
    finish(evaluations, result(match))
    with pytest.raises(ValueError, match="is done"):
        finish(evaluations, result(match))
