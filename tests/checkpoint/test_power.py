"""A power cut: what it leaves of files that were said to be on the disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlctl_agents.checkpoint.parts import read_part, write_part
from rlctl_agents.runtime.storage import create_file, replace_file
from tests.support.power import Disk


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "disk"
    made.mkdir()
    (made / "old").write_bytes(b"before")
    return made


def test_a_part_that_was_written_outlasts_a_power_cut(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(folder, monkeypatch)
    part = write_part(folder, "main-7-learner.safetensors", b"weights")
    assert read_part(disk.lose_power(tmp_path / "after"), part.file, part.sha256) == b"weights"


def test_a_file_that_was_created_outlasts_a_power_cut(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(folder, monkeypatch)
    assert create_file(folder / "generation-7.json", b"{}")
    assert (disk.lose_power(tmp_path / "after") / "generation-7.json").read_bytes() == b"{}"


def test_a_file_created_without_hard_links_outlasts_a_power_cut(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", refuse)
    disk = Disk(folder, monkeypatch)
    assert create_file(folder / "generation-7.json", b"{}")
    assert (disk.lose_power(tmp_path / "after") / "generation-7.json").read_bytes() == b"{}"


def test_a_file_replaced_durably_outlasts_a_power_cut(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(folder, monkeypatch)
    replace_file(folder / "old", b"after", durable=True)
    assert (disk.lose_power(tmp_path / "after") / "old").read_bytes() == b"after"


def test_the_disk_of_these_tests_forgets_what_was_not_synced(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(folder, monkeypatch)
    replace_file(folder / "old", b"after")
    (folder / "new").write_bytes(b"x")
    after = disk.lose_power(tmp_path / "after")
    assert (after / "old").read_bytes() == b"before"
    assert [path.name for path in after.iterdir()] == ["old"]
