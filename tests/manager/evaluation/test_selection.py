"""The best model and the one that reached the goal: confirmed on fresh seeds, kept with their evaluations."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from rlctl_agents.manager.evaluation.evaluations import LOADS, OTHER_EVERY
from rlctl_agents.manager.evaluation.matches import LOAD_S, RequestedEvaluation
from rlctl_agents.manager.evaluation.selection import read_selected
from rlctl_agents.types.control import EvalResult, Match
from tests.manager.world import (
    ACTOR,
    JUDGE,
    LEARNER,
    POOL,
    Run,
    evaluate,
    everybody,
    experience,
    keep,
    kinds,
    measure,
    order_evaluation,
    play,
    ref,
    spec,
    status,
)
from tests.support.power import Disk

ALL = (("modelpool", POOL), ("learner", LEARNER), ("actor", ACTOR), ("evaluator", JUDGE))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = Run(tmp_path, stop={"eval_return": 5}, evaluation={"episodes": 2, "every": 10})
    everybody(run)
    run.learn(LEARNER, steps=1000, version=10)
    return run


def told(run: Run) -> Match:
    match = run.report("evaluator", JUDGE).match
    assert match is not None
    return match


def said(run: Run, kind: str) -> list[str]:
    return [event["text"] for event in run.manager.events.since(0)[0] if event["kind"] == kind]


def stored(run: Run, name: Any) -> tuple[int, float] | None:
    """Version and figure of a selected model, as the volume has them."""
    found = read_selected(run.layout.models, name)
    return None if found is None else (found.evaluation.ref.version, found.evaluation.mean)


def kept(run: Run) -> set[int]:
    """Versions of which the volume has the weights and their description."""
    stems = {kind: {path.stem for path in run.layout.models.glob(f"*-v*.{kind}")} for kind in ("json", "safetensors")}
    assert stems["json"] == stems["safetensors"]
    return {int(stem.split("-v")[1][:12]) for stem in stems["json"]}


def measured_beside(run: Run, version: int, mean: float) -> None:
    """A second evaluator measures a version meanwhile."""
    run.join("evaluator", JUDGE + 10, 1)
    run.time.now += 10
    assert play(run, order_evaluation(run, version, judge=JUDGE + 10), mean, mean).ok


def test_a_model_that_reaches_the_goal_is_evaluated_again_on_fresh_seeds_and_that_figure_is_quoted(run: Run) -> None:
    first = order_evaluation(run, 10)
    assert first is not None
    assert play(run, first, 9.0, 9.0).ok
    run.manager.turn()
    assert run.manager.state.progress.met is None, "it may have been luck"
    run.report("modelpool", POOL, model=ref(11))
    again = told(run)
    assert again.seats == {0: ref(10)}
    assert again.seed != first.seed
    assert again.quota is not None
    assert (again.quota.episodes, again.quota.mode) == (2, "greedy")
    assert run.learn(LEARNER, steps=1100, version=11).stop_steps == 0, "it learns on meanwhile"
    assert play(run, again, 6.0, 8.0).ok
    run.manager.turn()
    why = "evaluation mean 7 >= 5 over 2 episodes on fresh seeds (greedy, version 10)"
    assert run.manager.state.progress.met == why
    assert said(run, "stop") == [f"the run is finished: {why}"]
    assert said(run, "confirmed") == [
        "the goal 5 is confirmed: mean 7 over 2 episodes (greedy on fresh seeds, version 10)"
    ]
    shown = status(run)
    assert (shown["evaluation"]["mean"], shown["evaluation"]["confirms"]) == (7, True)
    assert {name: (one["version"], one["evaluation"]["mean"]) for name, one in shown["models"].items()} == {
        "best": (10, 7), "goal": (10, 7),
    }  # fmt: skip
    assert (run.layout.root / shown["models"]["goal"]["tensors"]).is_file()
    assert shown["evaluation"]["seed"] == again.seed


def test_a_model_that_is_not_confirmed_ends_no_run_and_its_fresh_figure_replaces_the_lucky_one(run: Run) -> None:
    evaluate(run, 10, 9.0, 9.0)
    assert play(run, told(run), 3.0, 4.0).ok
    run.manager.turn()
    assert run.manager.state.progress.met is None
    assert run.manager.stop.phase == "running"
    assert said(run, "not_confirmed") == [
        "version 10 is not confirmed: mean 3.5 < 5 on fresh seeds, after 9; the run goes on"
    ]
    assert stored(run, "best") == (10, 3.5)
    assert stored(run, "goal") is None
    run.time.now += 10
    evaluate(run, 20, 4.0, 4.0)
    assert stored(run, "best") == (20, 4), "what was lucky does not stand in the way"


@pytest.mark.parametrize("first", ["the other model", "the confirmation"])
def test_of_two_evaluators_the_one_beside_a_lucky_model_loses_no_better_one(run: Run, first: str) -> None:
    evaluate(run, 10, 9.0, 9.0)
    confirmation = told(run)
    run.join("evaluator", JUDGE + 10, 1)
    run.time.now += 10
    other = order_evaluation(run, 20, judge=JUDGE + 10)
    if first == "the other model":
        assert play(run, other, 6.0, 6.0).ok
        run.manager.turn()
        assert kept(run) == {10, 20}
    assert play(run, confirmation, 3.0, 4.0).ok
    if first == "the confirmation":
        assert play(run, other, 6.0, 6.0).ok
    run.manager.turn()
    assert stored(run, "best") == (20, 6)
    again = told(run)
    assert again.seats == {0: ref(20)}
    assert play(run, again, 5.0, 7.0).ok
    run.manager.turn()
    assert stored(run, "goal") == (20, 6)
    assert kept(run) == {20}


@pytest.mark.parametrize("lucky", [8.0, 9.5])
def test_a_model_that_is_confirmed_is_not_given_up_for_one_that_was_lucky_beside_it(run: Run, lucky: float) -> None:
    evaluate(run, 10, 9.0, 9.0)
    confirmation = told(run)
    measured_beside(run, 20, lucky)
    assert play(run, confirmation, 6.0, 6.0).ok
    run.manager.turn()
    assert stored(run, "goal") == (10, 6)
    assert stored(run, "best") == ((20, lucky) if lucky > 9 else (10, 6))
    assert kept(run) == ({10, 20} if lucky > 9 else {10})
    assert run.manager.state.progress.met is not None


def test_a_model_that_was_replaced_while_it_was_confirmed_is_told_of_if_it_is_not(run: Run) -> None:
    evaluate(run, 10, 9.0, 9.0)
    confirmation = told(run)
    measured_beside(run, 20, 9.5)
    assert play(run, confirmation, 3.0, 3.0).ok
    assert said(run, "not_confirmed") == [
        "version 10 is not confirmed: mean 3 < 5 on fresh seeds, after 9; the run goes on"
    ]
    again = told(run)
    assert again.seats == {0: ref(20)}
    assert play(run, again, 6.0, 6.0).ok
    assert stored(run, "goal") == stored(run, "best") == (20, 6)
    assert kept(run) == {20}


def test_a_goal_that_was_raised_loses_no_model_beside_one_that_was_lucky(run: Run) -> None:
    evaluate(run, 10, 6.0, 6.0)
    assert play(run, told(run), 6.0, 6.0).ok
    assert stored(run, "goal") == (10, 6)
    run.manager.reload(spec(stop={"eval_return": 8}, evaluation={"episodes": 2, "every": 10}))
    run.time.now += 10
    evaluate(run, 20, 9.0, 9.0)
    confirmation = told(run)
    measured_beside(run, 30, 8.5)
    assert play(run, confirmation, 6.0, 7.0).ok
    assert stored(run, "best") == (30, 8.5)
    assert kept(run) == {10, 30}


def test_a_model_that_the_volume_does_not_give_for_a_while_is_chosen_once_it_does(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> bytes:
        raise OSError(errno.ESTALE, "Stale file handle")

    with monkeypatch.context() as volume:
        volume.setattr(Path, "read_bytes", refuse)
        evaluate(run, 10, 9.0, 9.0)
        run.manager.store()
        assert run.manager.disk == "cannot read version 10, which may be the best model: Stale file handle"
    run.time.now += 10
    evaluate(run, 20, 4.0, 4.0)
    assert kept(run) == {10, 20}
    run.manager.store()
    assert stored(run, "best") == (10, 9)
    assert kept(run) == {10}
    assert run.manager.disk == ""
    assert play(run, told(run), 5.0, 5.0).ok
    assert stored(run, "goal") == (10, 5)


def test_best_is_the_highest_mean_in_the_mode_that_counts_and_of_equal_ones_the_first(run: Run) -> None:
    for version, returns in ((10, (1.0, 1.0)), (20, (3.0, 3.0)), (30, (2.0, 4.0)), (40, (0.0, 0.0))):
        evaluate(run, version, *returns)
        run.time.now += 10
    assert stored(run, "best") == (20, 3)
    assert kept(run) == {20}
    assert kinds(run).count("best") == 2


def test_the_other_mode_is_not_asked_of_an_evaluator_that_lacks_the_weights(run: Run) -> None:
    for version in range(10, 10 * OTHER_EVERY + 10, 10):
        evaluate(run, version, 1.0, 1.0)
        run.time.now += 10
    run.join("evaluator", 44, prefer=1)
    run.report("modelpool", POOL, model=ref(999))
    match = run.report("evaluator", 44).match
    assert match is not None
    assert match.seats == {0: ref(999)}


def test_the_other_mode_holds_up_nothing_and_is_curve_and_status_of_its_own(run: Run) -> None:
    for version in range(10, 10 * OTHER_EVERY + 10, 10):
        evaluate(run, version, 1.0, 1.0)
        run.time.now += 10
    version = 10 * OTHER_EVERY
    run.report("modelpool", POOL, model=ref(version + 10))
    match = run.report("evaluator", JUDGE, model=ref(version)).match
    assert match is not None
    assert match.quota is not None
    assert (match.seats, match.quota.mode) == ({0: ref(version)}, "sample")
    run.manager.evaluations.undrawn.clear()
    assert play(run, match, 8.0, 8.0).ok
    assert run.manager.evaluations.undrawn == [
        (run.manager.learners.steps_at(ref(version)), {"return/evaluation_sample": 8})
    ]
    assert kinds(run).count("confirmed") == 0, "8 >= 5, in a mode that does not count"
    shown = status(run)
    assert (shown["evaluation"]["mean"], shown["evaluations"]["sample"]["mean"]) == (1, 8)
    assert len(shown["history"]) == OTHER_EVERY
    after = run.report("evaluator", JUDGE, model=ref(version)).match
    assert after is not None
    assert after.seats == {0: ref(version + 10)}


def test_selected_models_outlive_manager_and_power_at_any_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path / "run", stop={"eval_return": 5}, evaluation={"episodes": 2, "every": 10})
    everybody(run)
    run.learn(LEARNER, steps=1000, version=10)
    evaluate(run, 10, 1.0, 1.0)
    disk, before = Disk(tmp_path / "run", monkeypatch), (10, 1.0)
    looks: list[tuple[int, float] | None] = []

    def look(*_: object) -> None:
        """Check what a reboot would find: a whole model, the one of before or the one of after."""
        root = disk.lose_power(tmp_path / "lost")
        found = read_selected(root / "models", "best")
        assert found is not None
        assert (root / "models" / found.tensors).read_bytes() == f"weights of {found.evaluation.ref}".encode()
        described = json.loads((root / "models" / found.policy).read_bytes())
        assert described["tensors"] == found.tensors
        looks.append((found.evaluation.ref.version, found.evaluation.mean))

    unlink = Path.unlink
    monkeypatch.setattr(Path, "unlink", lambda path, **more: (look(), unlink(path, **more), look()))
    run.time.now += 10
    evaluate(run, 20, 9.0, 9.0)
    look()
    assert looks[0] == before
    assert looks[-1] == (20, 9)
    assert set(looks) == {before, (20, 9.0)}
    run.start()
    assert run.manager.evaluations.selection.best is not None
    assert run.manager.evaluations.selection.best.evaluation.mean == 9


def test_a_candidate_outlives_its_learner_and_the_manager_before_it_is_confirmed(run: Run) -> None:
    evaluate(run, 10, 9.0, 9.0)
    assert told(run).seats == {0: ref(10)}
    run.start()
    run.join("modelpool", POOL)
    run.join("evaluator", JUDGE)
    run.join("learner", 22)
    run.report("modelpool", POOL, model=ref(3, 2))
    again = told(run)
    assert again.seats == {0: ref(10)}
    assert play(run, again, 5.0, 5.0).ok
    run.manager.turn()
    assert run.manager.state.progress.met is not None
    assert stored(run, "goal") == (10, 5)


def test_a_model_that_cannot_be_kept_is_not_the_best_and_the_reason_is_said(run: Run) -> None:
    match = order_evaluation(run, 10)
    assert match is not None
    result = EvalResult(match.id, ref(10), "greedy", [9.0, 9.0], [1, 1], 1.0, fault="the volume is full")
    assert run.manager.result(result).ok
    assert stored(run, "best") is None
    assert said(run, "not_kept") == ["version 10 is the best so far with 9, and is not kept: the volume is full"]
    run.manager.turn()
    assert run.manager.state.progress.met is None


@pytest.mark.parametrize("file", ["nothing.json", "../run/state.json"])
def test_a_file_that_is_not_of_the_model_is_not_believed(run: Run, file: str) -> None:
    match = order_evaluation(run, 10)
    assert match is not None
    assert run.manager.result(EvalResult(match.id, ref(10), "greedy", [9.0, 9.0], [1, 1], 1.0, kept=file)).ok
    assert kinds(run).count("not_kept") == 1


def test_what_an_evaluator_brings_just_now_is_not_removed_and_what_is_left_over_is(run: Run) -> None:
    keep(run.layout.models, ref(5))  # of a match that a manager before had given away
    (run.layout.models / ".main-l0001-v000000000005-ab.safetensors.7.tmp").write_bytes(b"torn")
    first = order_evaluation(run, 10)
    run.join("evaluator", 44, prefer=1)
    run.time.now += 10
    run.report("modelpool", POOL, model=ref(20))
    second = run.report("evaluator", 44).match
    assert second is not None
    keep(run.layout.models, ref(20))
    assert play(run, first, 1.0, 1.0).ok
    assert kept(run) == {10, 20}
    assert not list(run.layout.models.glob(".*"))


def test_old_models_that_could_not_be_removed_are_no_failure_once_they_are_gone(run: Run) -> None:
    (run.layout.models / "folder").mkdir()  # unlink refuses it
    evaluate(run, 10, 1.0, 1.0)
    run.manager.store()
    assert run.manager.disk == "cannot remove old models: Is a directory"
    (run.layout.models / "folder").rmdir()
    run.manager.store()
    assert run.manager.disk == ""


def test_a_manager_that_another_one_has_replaced_selects_and_removes_nothing(run: Run) -> None:
    evaluate(run, 10, 1.0, 1.0)
    old = run.manager
    run.start()
    run.manager = old
    run.time.now += 10
    evaluate(run, 20, 4.0, 4.0)
    assert stored(run, "best") == (10, 1)
    assert kept(run) == {10, 20}


def test_a_model_that_no_evaluator_can_load_does_not_hold_up_the_others(run: Run) -> None:
    evaluate(run, 10, 9.0, 9.0)
    run.report("modelpool", POOL, model=ref(20))
    for _ in range(LOADS):
        assert told(run).seats == {0: ref(10)}
        run.time.now += LOAD_S
    assert play(run, told(run), 3.0, 3.0).ok
    assert kept(run) == {10}, "no model that is not better is kept then"
    run.time.now += 10
    assert play(run, order_evaluation(run, 30), 9.0, 9.0).ok
    assert told(run).seats == {0: ref(30)}, "one that has reached the goal takes its place, also with the same mean"
    assert said(run, "not_confirmed") == ["version 10 is not confirmed: no evaluator could load it; the run goes on"]


def test_a_model_that_no_evaluator_can_load_is_told_once_and_not_by_those_who_ask_how_far_it_is(run: Run) -> None:
    evaluate(run, 10, 9.0, 9.0)
    evaluations = run.manager.evaluations
    evaluations._quotas.not_loaded[RequestedEvaluation(ref(10), "greedy", confirms=True)] = LOADS
    evaluations.finish(ref(10))
    assert evaluations.text == "measuring version 10, sample"
    assert said(run, "not_confirmed") == []
    for _ in range(2):
        run.report("evaluator", JUDGE)
    assert said(run, "not_confirmed") == ["version 10 is not confirmed: no evaluator could load it; the run goes on"]


def test_models_of_a_game_of_several_seats_are_not_selected(tmp_path: Path) -> None:
    run = Run(tmp_path, evaluation={"episodes": 2})
    run.join("modelpool", POOL)
    run.join("learner", LEARNER)
    run.join("evaluator", JUDGE, experience=experience(seats=2))
    evaluate(run, 10, 9.0, 9.0)
    assert status(run)["models"] == {"best": None, "goal": None}
    measure(run, 1.0, 1.0)
