"""Another user of the machine beside learners that step together: docs/learners.md says the same in words."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]


def meet(when: str, folder: Path) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Results of the two ranks, and of the stranger."""
    subprocess.run(
        [sys.executable, "-m", "tests.training.strangers", when, str(folder)], check=True, timeout=250, cwd=ROOT
    )
    said = [json.loads((folder / f"{name}.json").read_text()) for name in ("0", "1", "stranger")]
    return said[:2], said[2]


def test_a_stranger_that_is_there_before_the_group_meets_hears_no_gradient_and_is_named(tmp_path: Path) -> None:
    ranks, stranger = meet("before", tmp_path)
    assert stranger["came"] == 6, "gloo takes its connections"
    assert all("broken" in rank for rank in ranks), "nobody learns with it"
    assert any("is a stranger" in rank["broken"] for rank in ranks)
    assert stranger["heard"] == 0


def test_a_stranger_that_comes_to_a_group_that_works_changes_and_hears_nothing(tmp_path: Path) -> None:
    ranks, stranger = meet("after", tmp_path)
    assert stranger["came"] == 100
    assert ranks == [{"right": True}] * 2
    assert stranger["heard"] == 0


def test_a_stranger_that_uses_up_a_learners_files_ends_it_and_hears_nothing(tmp_path: Path) -> None:
    """What is left to another user: gloo keeps what nobody waits for, and ends the process when it can take no more."""
    ranks, stranger = meet("flood", tmp_path)
    assert all("died" in rank or "broken" in rank for rank in ranks)
    assert stranger["heard"] == 0
