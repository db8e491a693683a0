"""Films of episodes: which evaluations have one, which of them are kept, and that none does harm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlctl_agents.manager.evaluation.films import NEWEST
from rlctl_agents.types.control import EvalResult, Film, Match
from tests.manager.world import (
    ACTOR,
    JUDGE,
    LEARNER,
    POOL,
    Run,
    commit,
    everybody,
    keep,
    kinds,
    order_evaluation,
    ref,
    status,
)

GIF = b"GIF89a and so on"
ALL = (("modelpool", POOL), ("learner", LEARNER), ("actor", ACTOR), ("evaluator", JUDGE))


def started(folder: Path, every: int | None = 3, **stop: Any) -> Run:
    run = Run(folder, stop=stop or {"eval_return": 100}, evaluation={"episodes": 2, "every": 10, "video_every": every})
    everybody(run)
    return run


def played(run: Run, match: Match | None, mean: float, film: Film | None = None) -> bool:
    """Plays a match, and films it when told to; whether it was."""
    assert match is not None
    assert match.quota is not None
    kept = keep(run.layout.models, match.seats[0]) if mean > match.quota.keep_above else ""
    film = (film or Film(GIF, mean + 1, 7, 2.5)) if match.quota.record else None
    result = EvalResult(match.id, match.seats[0], match.quota.mode, [mean] * 2, [7] * 2, 1.0, kept=kept, recording=film)
    assert run.manager.result(result).ok
    return match.quota.record


def evaluated(run: Run, version: int, mean: float, film: Film | None = None) -> bool:
    run.time.now += 20
    run.learn(LEARNER, steps=100 * version, version=version)
    return played(run, order_evaluation(run, version), mean, film)


def files(run: Run) -> list[str]:
    return sorted(path.name for path in (run.layout.results / "episodes").iterdir())


def test_the_first_of_every_few_evaluations_is_recorded(tmp_path: Path) -> None:
    run = started(tmp_path)
    assert [evaluated(run, version, 1.0) for version in range(1, 5)] == [True, False, False, True]
    assert kinds(run).count("recorded") == 2


def test_nothing_is_recorded_unless_it_is_asked_for(tmp_path: Path) -> None:
    run = started(tmp_path, None)
    assert not any(evaluated(run, version, 1.0) for version in range(1, 5))
    assert status(run)["recordings"] == []
    assert not (run.layout.results / "episodes").exists()


def test_the_newest_few_and_the_best_are_kept_and_another_manager_knows_them(tmp_path: Path) -> None:
    run = started(tmp_path, 1)
    for version, mean in enumerate((1.0, 9.0, 2.0, 3.0, 4.0, 5.0), 1):
        assert evaluated(run, version, mean)
    told = status(run)["recordings"]
    assert [(one["version"], one["mean"], one["returned"], one["best"]) for one in told] == [
        (6, 5.0, 6.0, False), (5, 4.0, 5.0, False), (4, 3.0, 4.0, False), (2, 9.0, 10.0, True)
    ]  # fmt: skip
    assert files(run) == sorted([*(one["file"] for one in told), "index.json"])
    assert len(told) == NEWEST + 1
    run.start()
    assert status(run)["recordings"] == told


def test_what_confirms_a_goal_and_the_last_model_are_recorded(tmp_path: Path) -> None:
    run = started(tmp_path, 1000, eval_return=5)
    assert evaluated(run, 1, 1.0)
    assert not evaluated(run, 2, 6.0)
    confirming = run.report("evaluator", JUDGE).match
    assert confirming is not None
    assert confirming.quota is not None
    assert confirming.quota.record
    assert played(run, confirming, 5.5)
    assert [one["version"] for one in status(run)["recordings"]] == [2, 1]

    run = started(tmp_path / "other", 1000, agent_steps=300)
    assert evaluated(run, 1, 1.0)
    run.learn(LEARNER, steps=300, version=3, gauges={"rests": 1.0})
    run.report("modelpool", POOL, model=ref(3))
    run.manager.turn()
    assert commit(run, 1, steps=300, version=3).ok
    run.manager.turn()
    last = run.report("evaluator", JUDGE).match
    assert last is not None
    assert last.quota is not None
    assert last.quota.record


def ended_by_steps(folder: Path) -> Run:
    """A run with a last model that was measured, without a film, before it was known to be the last."""
    run = started(folder, 1000, agent_steps=300)
    assert evaluated(run, 1, 1.0)
    assert not evaluated(run, 3, 2.0)
    run.learn(LEARNER, steps=300, version=3, gauges={"rests": 1.0})
    run.report("modelpool", POOL, model=ref(3))
    run.manager.turn()
    assert commit(run, 1, steps=300, version=3).ok
    run.manager.turn()
    return run


def test_a_last_model_that_was_measured_before_is_played_again_for_its_film(tmp_path: Path) -> None:
    run = ended_by_steps(tmp_path)
    other = run.report("evaluator", JUDGE).match
    assert other is not None
    assert other.quota is not None
    assert other.quota.mode == "sample"
    assert not played(run, other, 1.5)
    measured = (run.layout.results / "evaluations.jsonl").read_bytes()
    assert played(run, run.report("evaluator", JUDGE).match, 2.0)
    assert (run.layout.results / "evaluations.jsonl").read_bytes() == measured
    assert [one["version"] for one in status(run)["recordings"]] == [3, 1]
    run.manager.turn()
    assert run.report("evaluator", JUDGE).match is None
    assert status(run)["evaluation"]["mean"] == 2.0


def test_a_goal_that_was_filmed_before_another_model_is_not_played_again(tmp_path: Path) -> None:
    run = started(tmp_path, 1, eval_return=5)
    assert evaluated(run, 1, 6.0)
    assert played(run, run.report("evaluator", JUDGE).match, 5.5), "confirmed, and filmed"
    assert evaluated(run, 2, 4.0)
    run.manager.turn()
    other = run.report("evaluator", JUDGE).match
    assert other is not None
    assert other.seats[0] == ref(1)
    assert not played(run, other, 4.5)
    assert run.report("evaluator", JUDGE).match is None
    assert [one["version"] for one in status(run)["recordings"]] == [2, 1, 1]


def test_a_last_model_that_lacks_its_film_only_is_not_called_unevaluated(tmp_path: Path) -> None:
    run = ended_by_steps(tmp_path)
    assert not played(run, run.report("evaluator", JUDGE).match, 1.5)
    run.time.now += 700
    run.manager.turn()
    assert run.manager.evaluations.awaits is False
    assert "not_evaluated" not in kinds(run)


@pytest.mark.parametrize(
    ("recording", "why"),
    [
        (Film(fault="EnvRefused: it draws no frames"), "it draws no frames"),
        (Film(b"<svg onload=alert(1)>", 1.0, 1, 1.0), "it is no GIF"),
    ],
)
def test_an_episode_that_is_none_is_told_and_the_evaluation_counts(tmp_path: Path, recording: Any, why: str) -> None:
    run = started(tmp_path)
    assert evaluated(run, 1, 1.0, recording)
    (text,) = [one["text"] for one in run.manager.events.since(0)[0] if one["kind"] == "not_recorded"]
    assert text == f"no episode of version 1 is recorded: {recording.fault or why}"
    assert status(run)["evaluation"]["mean"] == 1.0
    assert not (run.layout.results / "episodes").exists()


@pytest.mark.parametrize("text", ["{", "[]", '[{"file": "../../best.json"}]', "null"])
def test_an_index_that_is_damaged_or_names_other_files_is_not_used(tmp_path: Path, text: str) -> None:
    run = started(tmp_path, 1)
    evaluated(run, 1, 1.0)
    index = run.layout.results / "episodes" / "index.json"
    entry = json.loads(index.read_bytes())[0]
    index.write_text(text if text != "[]" else json.dumps([entry | {"file": "../status.json"}]))
    run.start()
    assert status(run)["recordings"] == []


def test_a_volume_that_takes_no_film_costs_the_film_and_not_the_run(tmp_path: Path) -> None:
    run, place = started(tmp_path, 1), tmp_path / "results" / "episodes"
    place.write_text("a file in its place")
    assert evaluated(run, 1, 1.0)
    assert "not_recorded" in kinds(run)
    assert not run.manager.state.failure, "nothing waits for a film that is lost"
    place.unlink()
    assert evaluated(run, 2, 2.0)
    assert [one["version"] for one in status(run)["recordings"]] == [2]
