"""Conformance of sources of batches: the on-policy one, and a ring that an algorithm brings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from rlctl.spec.algorithms import External
from rlctl.spec.schema import Network
from rlctl_agents.algorithms.base import Algorithm, AlgorithmError, Batch
from rlctl_agents.algorithms.impala import Impala
from rlctl_agents.experience.batching import Outcome
from rlctl_agents.experience.on_policy import OnPolicySource
from rlctl_agents.experience.sources import BatchSource, Needs, make_source
from rlctl_agents.training.trainer import Trainer
from rlctl_agents.types.experience import Arrays, Ledger, ModelRef, Schema, SegmentBlock, SegmentHeader
from rlctl_agents.types.spaces import Box, Discrete, Spaces
from tests.support.chain import settings
from tests.training.outside.double_dqn import DoubleDqn

SPACES = Spaces(Box((2,), "float32"), Discrete(3))
STREAMS, BLOCKS = 4, 300


@dataclass
class Wire:
    """Gives blocks one at a time, as long as it is polled, and counts what became of them."""

    schema: Schema
    left: int = BLOCKS
    settled: Counter[str] = field(default_factory=Counter)
    closed: bool = False
    least_version: int = 0

    def poll(self, timeout_s: float) -> list[SegmentBlock]:
        if self.left == 0:
            return []
        self.left -= 1
        return [block(self.schema, BLOCKS - self.left)]

    def wake(self) -> None:
        pass

    def settle(self, block: SegmentBlock, outcome: Outcome, rows: int | None = None) -> None:
        self.settled[outcome] += block.rows if rows is None else rows

    def resize(self, budget_rows: int, batch_size: int, queue_rows: int) -> None:
        pass

    def close(self) -> None:
        self.closed = True


def block(schema: Schema, number: int, streams: int = 2) -> SegmentBlock:
    rng = np.random.default_rng(number)
    fields: Arrays = {
        one.name: np.zeros(schema.array_shape(one, streams), np.dtype(one.dtype)) for one in schema.fields
    }
    fields["obs"] = rng.normal(size=fields["obs"].shape).astype(np.float32)
    fields["reward"] = np.full(fields["reward"].shape, number, np.float32)
    fields["valid"] = rng.random(fields["valid"].shape) < 0.9
    header = SegmentHeader("r", 1, "a", number, "l", ModelRef("main", 0, 0), [0, 1], [number, number], Ledger())
    return SegmentBlock(header, np.zeros((schema.unroll_length, streams), np.int64), fields)


def on_policy() -> Algorithm:
    return Impala(settings(), Network(hidden=[8]), SPACES, seed=1)


def ring() -> Algorithm:
    config = External(name="m:C", unroll_length=5, batch_size=20)
    return DoubleDqn(config, Network(hidden=[8]), SPACES, seed=1)


@pytest.fixture(params=[on_policy, ring])
def algorithm(request: pytest.FixtureRequest) -> Algorithm:
    make: Callable[[], Algorithm] = request.param
    return make()


@pytest.fixture
def made(algorithm: Algorithm) -> Iterator[tuple[BatchSource, Wire]]:
    config: Any = algorithm.config  # type: ignore[attr-defined]
    schema = type(algorithm).schema(config, Network(hidden=[8]), SPACES)
    wire = Wire(schema)
    weights = ModelRef("main", 0, 0)
    source = make_source(Needs(wire, schema, config, algorithm, lambda: weights, torch.device("cpu"), STREAMS))
    yield source, wire
    source.close()


def taken(source: BatchSource) -> Batch:
    """The next batch, however often one has to ask."""
    for _ in range(BLOCKS * 2):
        if (batch := source.take(0.05)) is not None:
            return batch
    raise AssertionError("no batch")


def test_batches_hold_the_learners_share_of_rows_and_say_which_are_new(made: tuple[BatchSource, Wire]) -> None:
    source, _ = made
    source.start()
    rows = 0
    for _ in range(20):
        batch = taken(source)
        assert batch.version.numel() == STREAMS * 5
        assert batch.delivery is not None
        assert batch.delivery.versions.size == int(batch.fields["valid"].sum())
        assert 0 <= batch.delivery.rows <= batch.delivery.taken
        for name, values in batch.fields.items():
            assert values.shape[0 if name in batch.segment_fields else 1] == batch.version.shape[1], name
        rows += batch.delivery.rows
        source.give_back(batch)
    assert rows > 0


def test_every_row_that_was_received_is_settled_once(made: tuple[BatchSource, Wire]) -> None:
    source, wire = made
    source.start()
    told = 0
    for _ in range(15):
        batch = taken(source)
        assert batch.delivery is not None
        told += batch.delivery.taken
        source.give_back(batch)
    source.close()
    assert wire.closed
    consumed = wire.settled["consumed"]
    assert 0 < consumed <= (BLOCKS - wire.left) * 10
    assert set(wire.settled) == {"consumed"}
    assert consumed <= told + STREAMS * 5 or consumed == told, "what was consumed is in a batch, or in the next"


def test_a_step_is_consumed_once_and_learned_from_as_often_as_it_is_in_a_batch(
    algorithm: Algorithm, made: tuple[BatchSource, Wire]
) -> None:
    source, _ = made
    source.start()
    trainer = Trainer(algorithm, policy="main", lineage=1, device=torch.device("cpu"))
    new = drawn = 0
    for _ in range(40):
        batch = taken(source)
        assert batch.delivery is not None
        new, drawn = new + batch.delivery.rows, drawn + batch.delivery.versions.size
        trainer.update(batch)
        source.give_back(batch)
    assert (trainer.consumed_steps, trainer.learned_steps) == (new, drawn)
    assert (drawn == new) == algorithm.on_policy, "on-policy experience is learned from once"


def test_a_batch_stays_as_it_is_until_it_is_given_back(made: tuple[BatchSource, Wire]) -> None:
    source, _ = made
    source.start()
    batch = taken(source)
    before = {name: values.clone() for name, values in batch.fields.items()}
    source.take(0.05)  # another one is on its way meanwhile
    for name, values in before.items():
        assert torch.equal(values, batch.fields[name]), name


def test_the_optional_calls_are_all_answered(made: tuple[BatchSource, Wire]) -> None:
    source, _ = made
    example = source.example()
    assert example is None or example.version.numel() == STREAMS * 5
    source.start()
    batch = taken(source)
    source.update_priorities(batch, torch.ones(batch.version.shape[1]))
    source.give_back(batch)
    source.passed_by()
    source.resize(STREAMS // 2)
    assert source.waiting_rows >= 0
    assert source.waits_for()


@pytest.mark.parametrize(("lock_step", "least"), [(False, [6, 8]), (True, [0, 0])])
def test_the_receiver_knows_the_oldest_version_that_can_still_be_learned_from(
    lock_step: bool, least: list[int]
) -> None:
    algorithm, config = on_policy(), settings(max_lag_versions=3)
    schema = Impala.schema(config, Network(hidden=[8]), SPACES)
    wire, version = Wire(schema, left=0), 9
    source = make_source(
        Needs(
            wire,
            schema,
            config,
            algorithm,
            lambda: ModelRef("main", 0, version),
            torch.device("cpu"),
            STREAMS,
            lock_step,
        )
    )
    assert isinstance(source, OnPolicySource)
    found = [wire.least_version]
    version = 11
    source.passed_by()
    source.step(0.0)
    assert [*found, wire.least_version] == least


class Odd(Impala):
    pass


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("prioritised", r"Odd\.source: prioritised is not built in, which on_policy is"),
        ("no_such_module:Ring", "there is no module no_such_module"),
        ("builtins:repr", "made no source: no take"),
    ],
)
def test_a_source_that_cannot_be_had_is_told_in_words(source: str, said: str) -> None:
    odd = Odd(settings(), Network(hidden=[8]), SPACES, seed=1)
    odd.source = source  # type: ignore[misc]
    schema = Impala.schema(settings(), Network(hidden=[8]), SPACES)
    needs = Needs(Wire(schema), schema, settings(), odd, lambda: ModelRef("main", 0, 0), torch.device("cpu"), 1)
    with pytest.raises(AlgorithmError, match=said):
        make_source(needs._replace(weights=lambda: ModelRef("main", 0, 0)))
