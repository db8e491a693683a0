"""State that outlives a manager, and the effects of a full or damaged disk on it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rlctl_agents.manager.checkpoints.fencing_term import next_term, read_term, standing_term
from rlctl_agents.manager.events import Events, JsonLines
from rlctl_agents.manager.membership.registry import load_members
from rlctl_agents.manager.state_store import APART, HISTORY, LINEAGES, Damaged, Evaluation, Progress, StateStore
from rlctl_agents.runtime.logs import Lines
from rlctl_agents.runtime.storage import create_file, replace_file
from tests.checkpoint.test_parts import files_of_at_most
from tests.manager.world import ref


def test_each_start_of_a_manager_has_a_higher_term(tmp_path: Path) -> None:
    assert [next_term(tmp_path, 0) for _ in range(3)] == [1, 2, 3]
    assert next_term(tmp_path, 41) == 42, "generations know of later managers than the counter"
    (tmp_path / "term-43").touch()
    assert next_term(tmp_path, 0) == 44, "another manager has begun at this moment"
    assert read_term(tmp_path) == 44


def test_a_torn_term_is_counted_on_from_what_else_is_known(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "term").write_text("")
    assert next_term(tmp_path, 7) == 7 + APART + 1
    assert "holds no number" in caplog.text
    assert read_term(tmp_path) == 7 + APART + 1


def test_a_term_torn_while_its_manager_lives_is_written_anew(tmp_path: Path) -> None:
    (tmp_path / "term").write_bytes(b"\0\0")
    assert standing_term(tmp_path, 5) == 5
    assert read_term(tmp_path) == 5


@pytest.mark.parametrize("left", [None, "3\n"])
def test_a_term_that_is_gone_or_of_an_older_copy_is_no_newer_manager(tmp_path: Path, left: str | None) -> None:
    if left is not None:
        (tmp_path / "term").write_text(left)
    assert standing_term(tmp_path, 5) == 5
    assert read_term(tmp_path) == 5
    assert standing_term(tmp_path, 4) == 5, "a newer one has taken over"


def test_every_learner_boot_opens_one_lineage() -> None:
    progress = Progress()
    assert [progress.open_lineage("main", boot) for boot in ("a", "a", "b", "a")] == [1, 1, 2, 1]
    assert progress.open_lineage("exploiter", "c") == 1
    for number in range(LINEAGES):
        progress.open_lineage("main", f"x{number}")
    assert len(progress.lineage_of) == LINEAGES
    assert progress.open_lineage("main", "late") == LINEAGES + 3


def test_the_lineage_of_a_boot_that_holds_a_lease_is_not_forgotten() -> None:
    progress, live = Progress(), [f"live{number}" for number in range(600)]
    lineages = [progress.open_lineage("main", boot, live.__contains__) for boot in live]
    for number in range(LINEAGES):
        progress.open_lineage("main", f"x{number}", live.__contains__)
    assert len(progress.lineage_of) == LINEAGES
    assert [progress.open_lineage("main", boot, live.__contains__) for boot in live] == lineages


def measured(steps: int) -> Evaluation:
    return Evaluation(steps / 10, 0.0, 0.0, 0.0, 5, "greedy", ref(steps), steps, steps / 100, 1.0, 0.0)


def test_a_long_curve_is_thinned_and_keeps_its_ends() -> None:
    progress = Progress()
    for steps in range(HISTORY + 500):
        progress.measured(measured(steps))
    assert len(progress.history) <= HISTORY
    assert progress.history[0][0] == 0
    assert progress.history[-1][0] == HISTORY + 499
    assert [point[0] for point in progress.history] == sorted(point[0] for point in progress.history)


def test_progress_is_found_again(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    store.progress.term = 12
    store.progress.measured(measured(640))
    store.progress.open_lineage("main", "a")
    assert store.save_progress()
    assert StateStore(tmp_path).progress == store.progress


def test_torn_progress_falls_back_to_the_one_before(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    for term in (5, 10, 15):
        store.progress.term = term
        assert store.save_progress()
    (tmp_path / "progress.json").write_text('{"format": 1, "wall')
    again = StateStore(tmp_path)
    assert again.progress.term == 10
    assert "progress.json: " in again.lost
    assert again.save_progress()
    assert (tmp_path / "progress.json.1").read_bytes() != b'{"format": 1, "wall', "a torn one is not kept"
    assert StateStore(tmp_path).lost == ""


def test_progress_torn_twice_is_not_overwritten_and_the_remedy_is_said(tmp_path: Path) -> None:
    for name in ("progress.json", "progress.json.1"):
        (tmp_path / name).write_bytes(b"\0" * 20)
        with pytest.raises(Damaged, match=r"progress\.json.* away: steps and lineage then come from the newest gener"):
            StateStore(tmp_path)


def test_progress_of_another_release_is_no_damage(tmp_path: Path) -> None:
    StateStore(tmp_path).save_progress()
    (tmp_path / "progress.json").rename(tmp_path / "progress.json.1")
    (tmp_path / "progress.json").write_text('{"format": 1, "wall_s": "of another kind"}')
    with pytest.raises(Damaged, match="use the release that wrote it"):
        StateStore(tmp_path)


def test_damaged_books_begin_anew(tmp_path: Path) -> None:
    (tmp_path / "ledger.json").write_bytes(b"\x00" * 50)
    assert load_members(tmp_path).leases.holders == []


def test_books_that_the_volume_does_not_give_are_not_begun_anew(tmp_path: Path) -> None:
    (tmp_path / "ledger.json").mkdir()
    with pytest.raises(OSError, match="directory"):
        load_members(tmp_path)


def test_what_cannot_be_stored_is_said_and_does_no_harm(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    assert store.save_progress()
    before = (tmp_path / "progress.json").read_bytes()
    (tmp_path / "progress.json").unlink()
    (tmp_path / "progress.json").mkdir()
    store.progress.term = 99
    assert not store.save_progress()
    assert "progress.json" in store.failure
    (tmp_path / "progress.json").rmdir()
    assert store.save_progress()
    assert store.failure == ""
    assert before != (tmp_path / "progress.json").read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"progress.json", "progress.json.1"}, (
        "nothing half-written stays"
    )


def test_a_file_is_created_once(tmp_path: Path) -> None:
    assert create_file(tmp_path / "x", b"one")
    assert not create_file(tmp_path / "x", b"two")
    assert (tmp_path / "x").read_bytes() == b"one"
    replace_file(tmp_path / "x", b"three")
    assert (tmp_path / "x").read_bytes() == b"three"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_file_that_was_put_in_place_is_ours_though_the_server_has_forgotten_that_it_did_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def repeated(source: Path, target: Path) -> None:
        """LINK sent again over NFS, after the server has done it and was started again."""
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", repeated)
    assert create_file(tmp_path / "x", b"one")
    assert (tmp_path / "x").read_bytes() == b"one"
    assert not create_file(tmp_path / "x", b"two")


def test_events_are_numbered_over_all_managers(tmp_path: Path) -> None:
    first = Events(tmp_path / "events.jsonl", lambda: 1.7e9)
    first.add("lease", "actor 3 joined", index=3)
    first.add("gone", "actor 3 ended")
    second = Events(tmp_path / "events.jsonl", lambda: 1.7e9)
    second.add("start", "manager started")
    assert [event["n"] for event in second.since(0)[0]] == [3]
    assert second.since(3) == ([], 3)
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [line["n"] for line in lines] == [1, 2, 3]
    assert lines[0] == {"n": 1, "time": 1.7e9, "kind": "lease", "text": "actor 3 joined", "index": 3}


def test_a_line_that_a_power_cut_left_open_does_not_swallow_the_next(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_bytes(b'{"n": 4}\n{"n": 5, "te')
    events = Events(tmp_path / "events.jsonl", lambda: 0.0)
    events.add("start", "again")
    last = JsonLines(tmp_path / "events.jsonl").last()
    assert last is not None
    assert last["n"] == 5


def test_a_line_that_the_disk_takes_half_of_does_not_swallow_the_next(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    file = JsonLines(path)
    file.append({"n": 1})
    with files_of_at_most(path.stat().st_size + 5):
        file.append({"n": 2})
    assert "events.jsonl" in file.failure
    file.append({"n": 3})
    assert file.failure == ""
    assert path.read_text() == '{"n": 1}\n{"n": 3}\n'


def test_events_go_on_when_the_file_cannot_be_written(tmp_path: Path) -> None:
    events = Events(tmp_path / "absent" / "events.jsonl", lambda: 0.0)
    events.add("start", "here")
    assert len(events.since(0)[0]) == 1
    assert "events.jsonl" in events.failure


def test_lines_of_other_processes_are_bounded_and_numbered() -> None:
    lines = Lines(remembered=3)
    lines.add(["a", "b"])
    lines.add(["c", "d"])
    assert lines.since(0) == (["b", "c", "d"], 4)
    assert lines.since(3) == (["d"], 4)
