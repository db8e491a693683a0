"""Conformance of the trainer: what an algorithm defines is honoured, and one that defines nothing pays nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rlctl_agents.algorithms.base import AlgorithmError, Batch, Loss, shuffled
from rlctl_agents.algorithms.impala import Impala
from rlctl_agents.experience.batching import BatchMemory
from rlctl_agents.models.moments import AllReduce
from rlctl_agents.training.trainer import Trainer
from tests.support.batches import batch
from tests.training.test_trainer import CONFIG, NETWORK, SPACES, batch_for, fresh

CPU = torch.device("cpu")
EPOCHS, PARTS = 3, 2


class Epochs(Impala):
    """Several steps on a batch, a critic of its own, moments of rewards, a target that is copied, priorities."""

    patience = EPOCHS * PARTS

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.steps_per_batch = EPOCHS * PARTS
        self.net.register_buffer("mean_reward", torch.zeros(()))
        self.target = deepcopy(self.net).requires_grad_(False)
        self.seen: list[tuple[int, ...]] = []
        self.prepared = self.steps = self.copies = 0

    @property
    def modules(self) -> dict[str, nn.Module]:
        return {**super().modules, "target": self.target}

    def prepare(self, batch: Batch | None, all_reduce: AllReduce) -> Batch | None:
        assert batch is not None
        assert not torch.is_grad_enabled()
        self.prepared += 1
        return batch._replace(fields={**batch.fields, "twice": batch.fields["reward"] * 2})

    def minibatches(self, batch: Batch, rng: torch.Generator) -> Iterable[Batch]:
        self.seen.clear()
        self.steps = 0
        for part in shuffled(batch, EPOCHS, PARTS, rng):
            assert part.columns is not None
            self.seen.append(tuple(part.columns.tolist()))
            yield part

    def loss(self, batch: Batch) -> Loss:
        assert torch.equal(batch.fields["twice"], batch.fields["reward"] * 2)
        assert float(self.net.mean_reward) == float(self.target.mean_reward), "moments move after the last step"
        self.steps += 1
        return super().loss(batch)._replace(priorities=batch.fields["reward"].abs().sum(0) + self.steps)

    def ends_early(self, means: Mapping[str, float]) -> bool:
        assert {"total", "entropy", "grad_norm"} <= means.keys()
        return len(self.seen) >= self.patience

    def update_statistics(self, batch: Batch | None, means: Mapping[str, float], all_reduce: AllReduce) -> None:
        assert batch is not None
        assert {"total", "entropy"} <= means.keys()
        self.net.mean_reward.copy_(all_reduce(batch.fields["reward"].mean()))

    def after_update(self, updates: int) -> None:
        self.copies += 1
        self.target.load_state_dict(self.net.state_dict())


def trainer(kind: type[Impala] = Epochs, seed: int = 1) -> Trainer:
    return Trainer(kind(CONFIG, NETWORK, SPACES, seed=seed), policy="main", lineage=3, device=CPU)


def filled() -> BatchMemory:
    return batch_for(fresh())


def test_a_batch_of_many_steps_is_one_version_and_its_rows_count_once() -> None:
    torch.manual_seed(0)  # one of 576 gives the same order three times
    one, memory = trainer(), filled()
    updated = one.update(batch(memory))
    assert (one.version, one.optimizer_steps, updated.steps) == (1, EPOCHS * PARTS, EPOCHS * PARTS)
    assert one.consumed_steps == updated.rows == memory.fields["valid"].sum()
    assert one.taken_rows == memory.version.size
    assert one.learned_steps == updated.learned == EPOCHS * one.consumed_steps
    algorithm: Any = one._algorithm
    assert (algorithm.prepared, algorithm.copies) == (1, 1)
    for epoch in range(EPOCHS):
        columns = sorted(sum(algorithm.seen[epoch * PARTS : (epoch + 1) * PARTS], ()))
        assert columns == [0, 1, 2, 3], "whole columns, each once in every epoch"
    assert len(set(algorithm.seen)) > PARTS, "in another order each time"


def test_a_step_that_ends_early_leaves_out_the_rest_and_still_makes_a_version() -> None:
    one = trainer()
    one._algorithm.patience = 2  # type: ignore[attr-defined]
    updated = one.update(batch(filled()))
    assert (updated.steps, one.version) == (2, 1)


def test_fewer_or_more_minibatches_than_the_algorithm_says_are_its_fault() -> None:
    one = trainer()
    one._algorithm.steps_per_batch, one._algorithm.patience = 4, 99  # type: ignore[attr-defined]
    with pytest.raises(AlgorithmError, match="gave 6 minibatches, its steps_per_batch is 4"):
        one.update(batch(filled()))


def test_priorities_come_back_by_columns_of_the_whole_batch() -> None:
    one, memory = trainer(), filled()
    priorities = one.update(batch(memory)).priorities
    assert priorities is not None
    newest = np.abs(memory.fields["reward"]).sum(0)
    algorithm: Any = one._algorithm
    for step, columns in enumerate(algorithm.seen, 1):
        if step > (EPOCHS - 1) * PARTS:
            newest[list(columns)] += step
    np.testing.assert_allclose(priorities.numpy(), newest, rtol=1e-6)
    assert trainer(Impala).update(batch(filled())).priorities is None


def test_moments_move_after_the_last_step_and_are_published() -> None:
    one, memory = trainer(), filled()
    one.update(batch(memory))
    state = one._algorithm.net.state_dict()
    assert float(state["mean_reward"]) == pytest.approx(float(memory.fields["reward"].mean()))


def test_modules_besides_the_network_are_saved_and_go_on_bit_by_bit() -> None:
    one, memory = trainer(), filled()
    one.update(batch(memory))
    with torch.no_grad():
        next(iter(one._algorithm.modules["target"].parameters())).add_(1)  # they differ from the network
    data = one.capture().pack()
    one.update(batch(memory))
    other = trainer(seed=9)
    assert other.restore(data) == ""
    target = next(iter(other._algorithm.modules["target"].parameters()))
    assert torch.equal(target, next(iter(other._algorithm.net.parameters())) + 1)
    assert other.optimizer_steps == EPOCHS * PARTS
    assert other.learned_steps == EPOCHS * other.consumed_steps
    other.update(batch(memory))
    assert other.weights() == one.weights(), "the order of minibatches goes on, too"
    assert "target" not in " ".join(one._algorithm.net.state_dict()), "what is not published does not travel"


def test_a_state_of_release_0_1_has_a_step_for_each_version() -> None:
    one = trainer(Impala)
    one.update(batch(filled()))
    state = one.capture()
    del state.plain["counters"]["optimizer_steps"]
    other = trainer(Impala)
    other.restore(state.pack())
    assert (other.version, other.optimizer_steps) == (1, 1)


def test_minibatches_without_a_column_make_no_step_of_their_own() -> None:
    class Many(Epochs):
        def minibatches(self, batch: Batch, rng: torch.Generator) -> Iterable[Batch]:
            return shuffled(batch, 1, EPOCHS * PARTS, rng)  # of four columns

        def ends_early(self, means: Mapping[str, float]) -> bool:
            return False

    one = trainer(Many)
    updated = one.update(batch(filled()))
    assert (updated.steps, updated.skipped, one.optimizer_steps, one.version) == (4, 0, 4, 1)
    assert all(bool(value.isfinite().all()) for value in one._algorithm.net.state_dict().values())


def test_hyperparameters_of_impala_change_in_place_and_within_their_limits() -> None:
    one, other = trainer(Impala), trainer(Impala)
    one.update(batch(filled()))
    other.update(batch(filled()))
    tensor: Tensor = one._algorithm.modules["tunable"].entropy_coef  # type: ignore[assignment]
    one.set_hyperparameters({"entropy_coef": 0.5, "lr": 0.25})
    assert tensor == 0.5, "the tensor that a compiled loss reads"
    assert one.update(batch(filled())).scheduled["lr"] == 0.25
    other.update(batch(filled()))
    assert one.weights() != other.weights()
    for wrong, said in (({"gamma": 2.0}, "less than or equal to 1"), ({"hidden": 3.0}, "cannot change hidden")):
        with pytest.raises(AlgorithmError, match=said):
            one.set_hyperparameters(wrong)
    assert one.capture().arrays.keys() == other.capture().arrays.keys(), "they are in no generation"


def test_a_compiled_loss_sees_changed_hyperparameters_without_being_compiled_again() -> None:
    as_written, compiled = trainer(Impala), trainer(Impala)
    compiled.compile(batch(filled()), ["eager"])
    for values in ({"entropy_coef": 0.5}, {"lambda": 0.5}):
        before = torch._dynamo.utils.counters["stats"]["unique_graphs"]  # type: ignore[attr-defined]
        for one in (as_written, compiled):
            one.set_hyperparameters(values)
        assert compiled.update(batch(filled())).stats == pytest.approx(
            as_written.update(batch(filled())).stats, abs=1e-5
        )
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before  # type: ignore[attr-defined]


def test_an_algorithm_that_defines_nothing_of_it_makes_one_step_on_the_batch_as_it_is() -> None:
    algorithm, whole = Impala(CONFIG, NETWORK, SPACES, seed=1), batch(filled())
    assert algorithm.prepare(whole, lambda tensor: tensor) is whole
    assert list(algorithm.minibatches(whole, torch.default_generator)) == [whole]
    assert algorithm.steps_per_batch == 1
    assert not algorithm.ends_early({})
    assert algorithm.source == "on_policy"
