"""A disk without room: the process that died of it had none to say so."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlctl.backends.local.process.causes import describe, free_bytes
from rlctl.backends.local.process.restart_policy import Death


def told(logs: Path, free: dict[Path, int | None]) -> str:
    death = Death("learner-0", 1, 5.0)
    return describe(death, logs, started=0.0, error="", out_of_memory=False, free=free.get).text


@pytest.mark.parametrize("left", [0, 2**20 - 1])
def test_a_death_on_a_full_disk_names_the_disk(tmp_path: Path, left: int) -> None:
    logs = tmp_path / "logs"
    assert told(logs, {tmp_path: left, logs: left}) == (
        f"learner 0 exited 1 after 00:00:05; the disk of {tmp_path} is full"
    )
    assert told(logs, {tmp_path: 2**30, logs: left}).endswith(f"; the disk of {logs} is full")


@pytest.mark.parametrize("left", [2**20, None])
def test_a_disk_with_room_or_unknown_room_is_not_blamed(tmp_path: Path, left: int | None) -> None:
    assert told(tmp_path / "logs", {tmp_path: left, tmp_path / "logs": left}) == "learner 0 exited 1 after 00:00:05"


def test_the_room_of_a_folder_is_asked_from_the_system(tmp_path: Path) -> None:
    assert (free_bytes(tmp_path) or 0) > 2**20
    assert free_bytes(tmp_path / "nowhere") is None
