"""The log of a build on a disk that takes nothing for a while."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from rlctl_ci.core.logs import Log, Masker


def test_a_full_disk_costs_lines_which_are_counted_and_no_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "1.log"
    log = Log(path, 1 << 20, Masker([]))
    log("before")

    def full(*arguments: Any, **named: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", full)
        for _ in range(3):
            log("lost")
    log("after")
    log("again")
    assert path.read_text() == "before\n... 3 lines could not be stored\nafter\nagain\n"
