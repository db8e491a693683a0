"""Learners that step together make the updates of one learner with the whole batch."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.roles.ranks import CONFIG, SCHEMA, STEPS, STREAMS, fresh, parts, recorded, weights

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]


def run_ranks(world: int, folder: Path) -> list[dict[str, np.ndarray]]:  # type: ignore[type-arg]
    command = [sys.executable, "-m", "tests.roles.ranks", str(world), str(folder)]
    subprocess.run(command, check=True, timeout=250, cwd=ROOT)
    return [dict(np.load(folder / f"{rank}.npz")) for rank in range(world)]


@pytest.mark.parametrize("world", [2, 4, 5])
def test_learners_on_recorded_segments_are_one_learner_to_1e9_in_fp64_over_ten_steps(
    world: int, tmp_path: Path
) -> None:
    one = fresh()
    losses = [one.update(recorded(step, one)).values["total"] for step in range(STEPS)]
    expected = weights(one)
    ranks = run_ranks(world, tmp_path)
    for found in ranks:
        worst = max(float(np.abs(found[name] - value).max()) for name, value in expected.items())
        assert worst < 1e-9
        assert found["rows"] == one.consumed_rows
        assert abs(found["loss"] - losses[-1]) < 1e-5  # told as fp32
        assert all(np.array_equal(found[name], ranks[0][name]) for name in expected), "equal bit for bit"

    first, count = parts(world)[1]
    one.update(recorded(STEPS, one, first, STREAMS - first))  # without the columns of rank 0
    for name, value in weights(one).items():
        assert np.abs(ranks[0][f"starved/{name}"] - value).max() < 1e-9, "a rank without a batch has no weight"
    assert CONFIG.batch_rows % SCHEMA.segment_steps == 0
    assert count > 0
