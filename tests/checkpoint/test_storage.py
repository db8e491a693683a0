"""Files put in place by rename: what writers leave beside them."""

from __future__ import annotations

import os
from pathlib import Path

from rlctl.backends.files import remove_asides
from rlctl_agents.runtime.storage import LEFT_S, _temporary, replace_file


def test_two_lives_with_the_same_process_number_do_not_write_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    with _temporary(path, b"old life", durable=False) as old, _temporary(path, b"new life", durable=False) as new:
        assert (old.read_bytes(), new.read_bytes()) == (b"old life", b"new life")
        new.replace(path)
        old.replace(path)
    assert [one.name for one in tmp_path.iterdir()] == ["state.json"]


def test_what_a_process_is_writing_is_not_taken_for_that_of_a_dead_one(tmp_path: Path) -> None:
    with _temporary(tmp_path / "state.json", b"{}", durable=False) as temporary:
        remove_asides(tmp_path)  # of `rlctl up`, in the same folder
        assert temporary.read_bytes() == b"{}"


def test_what_killed_processes_left_is_removed_by_the_first_write_of_the_next(tmp_path: Path) -> None:
    left, fresh, other = (tmp_path / name for name in (".state.json.0a1b.1.tmp", ".state.json.2c3d.1.tmp", ".mine"))
    for path in (left, fresh, other):
        path.write_bytes(b"{")
    for path in (left, other):
        os.utime(path, (fresh.stat().st_atime, fresh.stat().st_mtime - LEFT_S - 60.0))
    replace_file(tmp_path / "status.json", b"{}")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".mine", ".state.json.2c3d.1.tmp", "status.json"]
