"""A run that begins from another one's policy says from which."""

from __future__ import annotations

import json
from pathlib import Path

from tests.manager.world import Run, status

DESCRIBED = {"ref": {"policy": "main", "lineage": 1, "version": 17}, "steps": 1234, "sha256": "ab" * 32}


def told(run: Run) -> list[str]:
    return [one["text"] for one in run.manager.events.since(0)[0] if one["kind"] == "init"]


def brought(run: Run) -> None:
    run.layout.init.mkdir()
    (run.layout.init / "run.json").write_text('{"run": "pole", "model": "best"}')
    (run.layout.init / "policy.json").write_text(json.dumps(DESCRIBED))


def test_what_a_run_began_from_is_an_event_once_and_stays_in_its_status(tmp_path: Path) -> None:
    run = Run(tmp_path, init={"run": "pole@best", "parts": ["torso"]})
    run.manager.turn()
    assert (told(run), status(run)["init"]) == ([], None)
    brought(run)
    run.manager.turn()
    run.manager.turn()
    text = "pole@best, version 17, learned from 1,234 agent steps: torso"
    assert told(run) == [f"the run begins from {text}"]
    shown = {"model": "pole@best", "version": 17, "steps": 1234, "sha256": "ab" * 32, "parts": ["torso"], "text": text}
    assert status(run)["init"] == shown


def test_a_run_without_init_looks_for_nothing(tmp_path: Path) -> None:
    run = Run(tmp_path)
    brought(run)
    run.manager.turn()
    assert (told(run), status(run)["init"]) == ([], None)


def test_a_policy_that_cannot_be_read_ends_no_manager(tmp_path: Path) -> None:
    run = Run(tmp_path, init={"run": "pole@best"})
    brought(run)
    (run.layout.init / "policy.json").write_text("[")
    run.manager.turn()
    assert (told(run), status(run)["init"]) == ([], None)
