"""Updates: what moves weights, what does not, and what is said about it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlctl.spec.algorithms import Ppo as PpoConfig
from rlctl.spec.schema import Network
from rlctl_agents.algorithms.impala import Impala
from rlctl_agents.algorithms.ppo import Ppo
from rlctl_agents.experience.batching import BatchMemory
from rlctl_agents.roles.learner import streams_of
from rlctl_agents.runtime.process import UserFault
from rlctl_agents.training.collective import GroupBroken
from rlctl_agents.training.trainer import NONFINITE_IN_A_ROW, Diverged, Trainer, _mean, _Step, _Steps
from rlctl_agents.types.experience import ModelRef
from rlctl_agents.types.spaces import Box, Discrete, Spaces
from tests.support.batches import batch, memory
from tests.support.chain import schema_of, settings

SPACES, NETWORK, CONFIG = Spaces(Box((2,), "float32"), Discrete(3)), Network(hidden=[8]), settings(max_grad_norm=0.5)
SCHEMA = schema_of(CONFIG, NETWORK, SPACES)


def fresh(*, lock_step: bool = False, seed: int = 1) -> Trainer:
    algorithm = Impala(CONFIG, NETWORK, SPACES, seed=seed)
    return Trainer(algorithm, policy="main", lineage=3, device=torch.device("cpu"), lock_step=lock_step)


def batch_for(learning: Trainer, version: int = 0) -> BatchMemory:
    columns, rng = memory(SCHEMA, 4), np.random.default_rng(0)
    columns.fields["obs"][:] = rng.normal(size=(6, 4, 2))
    columns.fields["action"][:] = rng.integers(0, 3, (5, 4))
    columns.fields["reward"][:] = rng.normal(size=(5, 4))
    columns.fields["log_prob"][:] = np.log(1 / 3)
    columns.fields["valid"][:] = True
    columns.fields["valid"][2, 1] = False
    columns.version[:] = version
    columns.used = 4
    return columns


def numbers(learning: Trainer) -> dict[str, bytes]:
    """Weights without what they were learned from."""
    return {name: values.tobytes() for name, values in learning.capture().arrays.items() if name.startswith("weights/")}


def test_an_update_moves_the_weights_and_counts_versions_and_rows() -> None:
    learning = fresh()
    before = learning.weights()
    columns = batch_for(learning)
    updated = learning.update(batch(columns))
    assert updated.finite
    assert learning.weights() != before
    assert learning.ref == ModelRef("main", 3, 1)
    assert 0 < learning.consumed_steps < columns.version.size
    assert learning.consumed_steps == columns.fields["valid"].sum(), "a row after an episode's end is no agent step"
    assert learning.taken_rows == columns.version.size, "and is a row of the ledger"
    assert {"total", "grad_norm", "entropy"} <= updated.stats.keys()


def test_a_batch_that_a_death_breaks_off_counts_when_it_is_learned_from_anew() -> None:
    algorithm = Ppo(PpoConfig(unroll_length=5, batch_size=20, epochs=3, minibatch_size=20), NETWORK, SPACES, seed=1)
    learning = Trainer(algorithm, policy="main", lineage=3, device=torch.device("cpu"))
    whole, steps = learning._gradient, 0

    def breaking(parts: Any, rows: int, taken: int) -> Any:
        nonlocal steps
        steps += 1
        if steps == 2:
            raise GroupBroken("reset by peer")
        return whole(parts, rows, taken)

    learning._gradient = breaking
    with pytest.raises(GroupBroken):
        learning.update(batch(batch_for(learning)))
    assert (learning.optimizer_steps, learning.consumed_steps, learning.taken_rows, learning.version) == (1, 0, 0, 0)
    learning.update(batch(batch_for(learning)))
    assert (learning.optimizer_steps, learning.consumed_steps, learning.taken_rows, learning.version) == (4, 19, 20, 1)


def test_what_was_copied_for_publishing_is_not_changed_by_the_next_update() -> None:
    learning = fresh()
    copied, before = learning.copied(), learning.weights()
    learning.update(batch(batch_for(learning)))
    assert copied() == before != learning.weights()


def test_lag_is_told_per_valid_row_against_the_weights_before_the_update() -> None:
    learning = fresh()
    columns = batch_for(learning)
    learning.update(batch(columns))
    learning.update(batch(columns))
    assert learning.update(batch(columns)).lag_versions.tolist() == [2] * 19


@pytest.mark.parametrize("lock_step", [False, True])
def test_a_batch_without_a_finite_gradient_changes_no_weight(lock_step: bool) -> None:
    learning = fresh(lock_step=lock_step)
    columns, before = batch_for(learning), numbers(learning)
    columns.fields["reward"][0, 0] = np.inf
    assert not learning.update(batch(columns)).finite
    assert numbers(learning) == before
    assert learning.version == int(lock_step), "in lock-step everybody waits for a version"
    assert learning.nonfinite == 1


def test_metrics_of_minibatches_that_overflow_both_ways_are_no_error() -> None:
    assert math.isnan(_mean([math.inf, 1.0, -math.inf]))
    assert _mean([math.inf, 1.0]) == math.inf
    assert _mean([0.1] * 10) == 0.1


def test_the_learner_gives_up_after_ten_such_batches_in_a_row_and_not_before() -> None:
    learning = fresh()
    good, bad = batch_for(learning), batch_for(learning)
    bad.fields["reward"][0, 0] = np.nan
    for _ in range(NONFINITE_IN_A_ROW - 1):
        learning.update(batch(bad))
    learning.update(batch(good))
    for _ in range(NONFINITE_IN_A_ROW - 1):
        learning.update(batch(bad))
    with pytest.raises(Diverged, match="10 optimizer steps in a row had no finite gradient"):
        learning.update(batch(bad))


def test_a_batch_without_a_valid_row_moves_nothing_though_the_optimizer_has_momentum() -> None:
    learning = fresh()
    columns = batch_for(learning)
    learning.update(batch(columns))
    before, steps = numbers(learning), learning.optimizer_steps
    columns.fields["valid"][:] = False
    assert learning.update(batch(columns)).finite
    assert (numbers(learning), learning.optimizer_steps) == (before, steps)


def test_figures_are_means_over_the_minibatches_that_have_a_row() -> None:
    def of(learned: bool, loss: float) -> _Step:
        return _Step({"total": loss}, True, None, 0, 0, learned)

    steps = _Steps()
    for step in (of(True, 2.0), of(True, 4.0), of(False, 0.0)):
        steps.add(step, None)
    assert steps.means() == {"total": 3.0}


def test_a_learner_restored_from_its_state_goes_on_bit_by_bit_in_the_next_lineage(tmp_path: Path) -> None:
    one = fresh()
    columns = batch_for(one)
    one.update(batch(columns))
    data = one.capture().pack()
    one.update(batch(columns))

    other = fresh(seed=77)
    again = batch_for(other)
    assert other.restore(data) == ""
    assert other.ref == ModelRef("main", 3, 1)
    assert other.consumed_steps == columns.fields["valid"].sum()
    assert other.taken_rows == columns.version.size
    other.update(batch(again))
    assert other.weights() == one.weights()


def test_a_batch_that_is_no_whole_number_of_segments_is_the_users_fault() -> None:
    assert streams_of(640, 20) == 32
    with pytest.raises(UserFault, match="batch_size 650 is not a multiple"):
        streams_of(650, 20)
