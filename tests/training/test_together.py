"""Learners that step together make the updates of one learner with the whole batch."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.samples import sample
from tests.training.ranks import CLIPPED, CONFIG, SCHEMA, STEPS, STREAMS, fresh, parts, recorded, weights

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]


def run_ranks(world: int, folder: Path, *what: str) -> list[dict[str, np.ndarray]]:  # type: ignore[type-arg]
    command = [sys.executable, "-m", "tests.training.ranks", str(world), str(folder), *what]
    subprocess.run(command, check=True, timeout=250, cwd=ROOT)
    return [dict(np.load(folder / f"{rank}.npz")) for rank in range(world)]


@pytest.mark.parametrize("world", sample("learners", [4, 5, 2], 1))  # five: in pieces, below
def test_learners_on_recorded_segments_are_one_learner_to_1e9_in_fp64_over_ten_steps(
    world: int, tmp_path: Path
) -> None:
    compare(world, run_ranks(world, tmp_path))


def test_the_same_when_each_learns_in_pieces_and_not_in_equally_many(tmp_path: Path) -> None:
    micro_batch_rows = 2 * SCHEMA.unroll_length
    assert {-(-count // 2) for _, count in parts(5)} == {1, 2}, "pieces of a rank"
    compare(5, run_ranks(5, tmp_path, "impala", str(micro_batch_rows)))


@pytest.mark.parametrize("name", ["ppo", "appo", "ppo_mlp", "appo_mlp"])
def test_several_epochs_with_moments_and_normalised_advantages_are_those_of_one_learner_and_end_together(
    name: str, tmp_path: Path
) -> None:
    ranks = run_ranks(2, tmp_path, name)
    compare(2, ranks, name)
    if name == "ppo_mlp":  # though moments move from batch to batch
        assert all(len(found["ratios"]) == STEPS and found["ratios"].max() < 1e-5 for found in ranks)


def test_the_pass_that_moves_the_value_alone_is_that_of_one_learner(tmp_path: Path) -> None:
    compare(2, run_ranks(2, tmp_path, "value"), "value")


def test_one_learner_learns_in_pieces_what_it_learns_from_the_whole() -> None:
    whole, pieces = fresh(), fresh(micro_batch_rows=SCHEMA.unroll_length)
    for step in range(STEPS):
        whole.update(recorded(step, whole))
        pieces.update(recorded(step, pieces))
    found = weights(pieces)
    assert max(float(np.abs(found[key] - value).max()) for key, value in weights(whole).items()) < 1e-9


def compare(world: int, ranks: list[dict[str, np.ndarray]], name: str = "impala") -> None:  # type: ignore[type-arg]
    """With one learner that has the whole batch."""
    clipped, most = name in CLIPPED, 1e-6 if name.endswith("_mlp") else 1e-9  # in fp32
    one, first = fresh(name=name), parts(world)[1][0]
    starved = recorded(0, one, first, STREAMS - first)  # without the columns of rank 0
    updates = [one.update(starved if clipped and step == 0 else recorded(step, one)) for step in range(STEPS)]
    losses, steps = [made.stats["total"] for made in updates], [made.steps for made in updates]
    assert (min(steps) < max(steps)) == clipped, "a limit of the KL that ends some batches early"
    expected = weights(one)
    for found in ranks:
        worst = max(float(np.abs(found[key] - value).max()) for key, value in expected.items())
        assert worst < most
        assert found["rows"] == one.consumed_steps
        assert found["taken"] == one.taken_rows
        assert found["learned"] == one.learned_steps, "of all learners"
        assert clipped or name == "value" or one.learned_steps == one.consumed_steps, "each once"
        assert found["steps"].tolist() == steps
        assert abs(found["loss"] - losses[-1]) < 1e-5  # told as fp32
        assert all(np.array_equal(found[name], ranks[0][name]) for name in expected), "equal bit for bit"

    if name in ("appo", "appo_mlp", "value"):  # which leave out the older batches of a rank without one, too
        return
    first, count = parts(world)[1]
    one.update(recorded(STEPS, one, first, STREAMS - first))  # without the columns of rank 0
    for name, value in weights(one).items():
        assert np.abs(ranks[0][f"starved/{name}"] - value).max() < most, "a rank without a batch has no weight"
    assert CONFIG.batch_size % SCHEMA.unroll_length == 0
    assert count > 0
