"""The lock of the service's folder: one process at a time, and a killed one's last child is waited for."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from rlctl_ci.config.settings import Config
from rlctl_ci.core import service
from rlctl_ci.core.errors import CiError


def project(folder: Path) -> dict[str, object]:
    (folder / "secret").write_text("x" * 32)
    return {"forge": "github", "repository": str(folder), "secret_file": folder / "secret", "run": "pole", "poll_s": 0}


def begun(folder: Path) -> service.Service:
    config = Config.model_validate({"state": folder, "projects": {"pole": project(folder)}})
    return service.Service(config, adapters=lambda *_: pytest.fail("no work"))


def test_a_folder_that_is_in_use_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "LOCK_WITHIN_S", 0.02)
    with (tmp_path / "lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(CiError, match="another `rlctl ci serve` uses"):
            begun(tmp_path)


def test_a_lock_that_is_let_go_in_time_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        waits: list[float] = []

        def sleep(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 3:
                fcntl.flock(other, fcntl.LOCK_UN)

        monkeypatch.setattr("rlctl.waiting.time.sleep", sleep)
        begun(tmp_path).close()
        assert len(waits) == 3
