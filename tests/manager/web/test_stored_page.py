"""The page of a run that is over: what its manager left, and nothing that says it still runs."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from rlctl.spec.layout import Layout
from rlctl_agents.manager.lifecycle.finished import RunEnd, record_end
from rlctl_agents.manager.web.status_page import pages
from rlctl_agents.manager.web.stored_page import newest_lines, stored
from tests.manager.web.test_status_page import words
from tests.manager.world import LEARNER, Run, commit, evaluate, everybody, status


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = Run(tmp_path, stop={"eval_return": 100}, evaluation={"episodes": 2, "every": 10})
    everybody(run)
    run.learn(LEARNER, steps=1000, version=10)
    assert commit(run, 1, steps=1000, version=10).ok
    evaluate(run, 10, 1.0, 3.0)
    (run.layout.results / "status.json").write_bytes(
        msgspec.json.encode(status(run) | {"problems": [{"text": "x", "next": "y"}]})
    )
    return run


def test_it_shows_the_last_figures_curves_and_generations_and_looks_at_none_of_them_again(run: Run) -> None:
    text = pages(lambda: stored(run.layout))["/"]("").body.decode()
    said = words(text)
    assert "■ r: over" in said
    assert "Mean return 2 ± 1 over 2 episodes" in said
    assert "<strong>Return</strong>" in text
    assert "1main101,000" in said
    assert "renews itself" not in said
    assert "Problems" not in said, "they were those of a run that ran"


def test_one_that_has_done_what_was_asked_says_so(run: Run) -> None:
    record_end(run.layout, RunEnd("2026-11-25T05:00:00+00:00", "return 101 >= 100", 1))
    assert "✓ r: finished" in words(pages(lambda: stored(run.layout))["/"]("").body.decode())


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_without_a_status_there_is_no_page(tmp_path: Path, text: str) -> None:
    layout = Layout(tmp_path)
    layout.make()
    (layout.results / "status.json").write_text(text)
    with pytest.raises(ValueError, match=r"JSON|object|truncated"):
        stored(layout)


def test_the_newest_lines_are_those_of_all_files_by_time(tmp_path: Path) -> None:
    for name, seconds in (("actor-0.log", (1, 3)), ("learner.log", (2, 4))):
        lines = [json.dumps({"ts": f"T0{at}Z", "level": "INFO", "id": name, "msg": f"at {at}"}) for at in seconds]
        (tmp_path / name).write_text("cut off\n" + "\n".join([*lines, '{"ts"']))
    assert [json.loads(line)["msg"] for line in newest_lines(tmp_path)] == ["at 1", "at 2", "at 3", "at 4"]
    assert newest_lines(tmp_path / "none") == []
