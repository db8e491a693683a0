"""History of a run: bounded, whatever the run; and there after a manager was killed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlctl_agents.manager.state_store import StateStore
from rlctl_agents.manager.status.history import FINEST_S, NAMES, POINTS, ROWS, RunHistory, in_order

BEGAN = 1.7e9


def measured(folder: Path, steps: int, mean: float = 1.0, mode: str = "greedy", **more: Any) -> None:
    line = {"mean": mean, "std": 0.5, "min": 0.0, "max": 2.0, "episodes": 10, "mode": mode, "steps": steps,
            "time": BEGAN + steps / 100, "returns": [mean] * 10, **more}  # fmt: skip
    with (folder / "evaluations.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


def told(folder: Path, unix: float, kind: str, **more: Any) -> None:
    with (folder / "events.jsonl").open("a") as file:
        file.write(json.dumps({"n": 1, "time": unix, "kind": kind, "text": f"about {kind}", **more}) + "\n")


def sampled(history: RunHistory, seconds: int, *, since: int = 0, life_s: float = 0.0, **values: float) -> None:
    """A second apart, with 100 steps a second."""
    for second in range(since + 1, since + seconds + 1):
        history.sample(BEGAN + second, second - since + life_s, 100 * second, {"x": float(second), **values})


def test_a_row_is_the_mean_of_its_seconds(tmp_path: Path) -> None:
    history = RunHistory(tmp_path)
    sampled(history, 12)
    rows = history.view().rows
    assert rows.values == {"x": [3.0, 8.0]}, "of 1 to 5, and of 6 to 10"
    assert (rows.steps, rows.running_s, rows.unix) == ([500, 1000], [5.0, 10.0], [BEGAN + 5, BEGAN + 10])


def test_a_run_of_weeks_has_no_more_rows_than_one_of_an_hour_and_the_same_mean(tmp_path: Path) -> None:
    history = RunHistory(tmp_path)
    for row in range(10_000):
        history.sample(BEGAN + 5 * (row + 1), 5.0 * (row + 1), row, {"x": float(row % 2), f"own {row}": 1.0})
    rows = history.view().rows
    assert ROWS / 2 <= len(rows.unix) < ROWS
    assert len(rows.values) == NAMES, "however many names a process makes up"
    assert rows.every_s == FINEST_S * 16
    assert sum(one or 0.0 for one in rows.values["x"]) / len(rows.unix) == pytest.approx(0.5, abs=0.01)
    state = StateStore(tmp_path)
    history.store(state)
    assert not state.failure
    assert (tmp_path / "history.json").stat().st_size < 700_000


def test_another_manager_goes_on_where_the_stored_samples_end_and_a_pause_takes_no_place(tmp_path: Path) -> None:
    history = RunHistory(tmp_path)
    sampled(history, 12)
    history.store(StateStore(tmp_path))
    sampled(history, 2, since=12, life_s=12.0)  # not stored when it was killed
    after = RunHistory(tmp_path)
    assert after.view().rows.values == history.view().rows.values
    sampled(after, 3, since=1000)
    rows = after.view().rows
    assert rows.running_s == [5.0, 10.0, 15.0]
    assert rows.values == {"x": [3.0, 8.0, pytest.approx((11 + 12 + 1001 + 1002 + 1003) / 5, abs=0.1)]}
    assert rows.unix[-1] == BEGAN + 1003


def test_managers_that_live_for_less_than_a_row_make_rows_together(tmp_path: Path) -> None:
    for life in range(4):
        history = RunHistory(tmp_path)
        sampled(history, 3, since=100 * life)
        history.store(StateStore(tmp_path))
    assert history.view().rows.running_s == [5.0, 10.0]


@pytest.mark.parametrize("text", ["", "{", '{"format": 2}', '{"unix": [1.0]}', '{"values": {"x": ["<b>"]}}'])
def test_a_history_that_cannot_be_read_begins_anew(tmp_path: Path, text: str) -> None:
    (tmp_path / "history.json").write_text(text)
    measured(tmp_path, 100)
    view = RunHistory(tmp_path).view()
    assert view.rows.unix == []
    assert len(view.evaluations["greedy"]) == 1, "of a file of its own"


def test_evaluations_are_read_as_they_come_by_mode_and_lines_that_are_none_are_left_out(tmp_path: Path) -> None:
    measured(tmp_path, 100)
    history = RunHistory(tmp_path)
    before = history.view()
    assert history.view() is before, "nothing is new"
    measured(tmp_path, 200, mode="sample")
    with (tmp_path / "evaluations.jsonl").open("a") as file:
        file.write('not json\n{"mean": "high"}\n{"mean": 3')
    history.look()
    assert {mode: [one.steps for one in of] for mode, of in history.view().evaluations.items()} == {
        "greedy": [100], "sample": [200]
    }  # fmt: skip
    assert [*before.evaluations] == ["greedy"], "what a page has is not changed under it"


def test_evaluations_of_several_evaluators_stand_in_the_order_of_what_was_learned(tmp_path: Path) -> None:
    for lineage, steps in ((1, 12), (1, 10), (2, 5)):
        measured(tmp_path, steps, ref={"policy": "main", "lineage": lineage, "version": steps})
    found = in_order(RunHistory(tmp_path).view().evaluations["greedy"])
    assert [one.steps for one in found] == [10, 12, 5], "the learner went back to 5"


def test_of_many_evaluations_every_second_goes_and_the_newest_stays(tmp_path: Path) -> None:
    for steps in range(3 * POINTS):
        measured(tmp_path, steps)
    kept = [one.steps for one in RunHistory(tmp_path).view().evaluations["greedy"]]
    assert POINTS / 2 <= len(kept) <= POINTS
    assert (kept[0], kept[-1]) == (0, 3 * POINTS - 1)


def test_of_a_file_that_has_grown_for_months_the_end_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        told(tmp_path, BEGAN + number, "checkpoint", steps=number)
    line = len((tmp_path / "events.jsonl").read_bytes().splitlines()[-1]) + 1
    monkeypatch.setattr("rlctl_agents.manager.status.history.MOST_READ", int(2.5 * line))
    history = RunHistory(tmp_path)
    assert [mark.steps for mark in history.view().marks] == [18, 19], "whole lines"
    told(tmp_path, BEGAN + 20, "checkpoint", steps=20)
    history.look()
    assert [mark.steps for mark in history.view().marks] == [18, 19, 20]


def test_marks_say_where_generations_restarts_and_failures_were(tmp_path: Path) -> None:
    told(tmp_path, BEGAN + 1, "start", term=1)
    told(tmp_path, BEGAN + 2, "lease")
    told(tmp_path, BEGAN + 5, "checkpoint", steps=480)
    told(tmp_path, BEGAN + 12, "gone", role="actor", lost=False)
    told(tmp_path, BEGAN + 12, "gone", role="learner", lost=True)
    told(tmp_path, BEGAN + 17, "resumed", steps=480)
    told(tmp_path, BEGAN + 18, "start", term=2)
    measured(tmp_path, 300, time=BEGAN + 11)  # of weights that had been learned eight seconds before
    history = RunHistory(tmp_path)
    sampled(history, 20)
    assert [(mark.kind, mark.steps, mark.running_s) for mark in history.view().marks] == [
        ("generation", 480, 5.0), ("failure", 1000, 12.0), ("restart", 480, 17.0), ("restart", 1500, 18.0)
    ]  # fmt: skip
