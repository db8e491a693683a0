"""The log of a build on a disk that takes nothing for a while."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from rlctl_ci.core.build_attempt import Job
from rlctl_ci.core.logs import Log, Masker
from tests.ci.world import Service, sha


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


def test_the_end_of_a_build_is_in_its_log_though_its_programs_have_filled_it(service: Service, tmp_path: Path) -> None:
    log = Log(tmp_path / "1.log", 100, Masker([]))
    push = service.outside.push_

    def flood(job: Job, made: Any) -> Any:
        for _ in range(10):
            (job.output or job.say)("x" * 50)
        return push(job, made)

    service.outside.push_ = flood  # type: ignore[method-assign]
    service.outside.bad.add(sha(1))
    service.hook(1)
    build = service.claim()
    assert build is not None
    service.work().run(build, service.project, tmp_path, log, log.output)
    text = log.path.read_text()
    assert text.count("x" * 50) < 3
    assert "rolling back to revision 1" in text
