"""Learners that draw from a replay and step together stay equal, one of them without rows now and then."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.training.replayed_ranks import STEPS, WORLD

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]


@pytest.mark.parametrize("name", ["apex_dqn", "sac", "sac of options", "td3"])
def test_learners_with_a_draw_each_are_equal_bit_for_bit(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.training.replayed_ranks", name, str(tmp_path)]
    subprocess.run(command, check=True, timeout=250, cwd=ROOT)
    one, other = (dict(np.load(tmp_path / f"{rank}.npz")) for rank in range(WORLD))
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[key], other[key]) for key in one)
    assert one["learned"] == 16 * (WORLD * STEPS - 1)
