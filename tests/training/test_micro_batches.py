"""A batch in micro-batches: the update is that of the whole."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlctl.spec.algorithms import Impala as Settings
from rlctl.spec.schema import Network
from rlctl_agents.algorithms.base import Batch, Loss
from rlctl_agents.algorithms.impala import Impala
from rlctl_agents.experience.batching import column_axes, segment_fields
from rlctl_agents.training.micro_batches import (
    MICRO_BATCH_BYTES,
    MICRO_BATCH_ROWS,
    backward,
    cached_rows,
    micro_batches,
)
from rlctl_agents.types.experience import Schema
from rlctl_agents.types.spaces import Box, Discrete, Spaces

SPACES = Spaces(Box((3,), "float32"), Discrete(2))
STEPS, STREAMS = 4, 5


def learned(algorithm: Impala, schema: Schema, batch: Batch, most_rows: int) -> Loss:
    return backward(algorithm.loss, micro_batches(algorithm, batch, most_rows))


def made(core: str, *, advantage_norm: bool = False) -> tuple[Impala, Schema, Batch]:
    """An algorithm, and a batch with some rows that are not valid."""
    config = Settings(unroll_length=STEPS, advantage_norm=advantage_norm)
    network = Network.model_validate({"hidden": [8], "core": core, "width": 6})
    schema = Impala.schema(config, network, SPACES)
    random = np.random.default_rng(0)
    fields = {}
    for field in schema.fields:
        values = random.normal(size=schema.array_shape(field, STREAMS))
        fields[field.name] = torch.from_numpy(values > 1 if field.dtype == "bool" else values.astype(field.dtype))
    fields["valid"] = torch.logical_not(fields["valid"])
    fields["action"] = fields["action"].abs().clamp(max=1)
    return (
        Impala(config, network, SPACES, seed=0),
        schema,
        Batch(fields, torch.zeros(STEPS, STREAMS, dtype=torch.int64), segment_fields(schema)),
    )


@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
def test_micro_batches_give_the_gradient_of_the_whole(core: str) -> None:
    whole, schema, batch = made(core)
    parted, _, _ = made(core)
    one = learned(whole, schema, batch, STEPS * STREAMS)
    several = learned(parted, schema, batch, 2 * STEPS)
    torch.testing.assert_close(several.total, one.total)
    assert several.rows == one.rows
    for name in ("policy_loss", "value_loss", "entropy", "rho", "kl"):
        torch.testing.assert_close(several.metrics[name], one.metrics[name], check_dtype=False)  # a mean is fp64
    for got, expected in zip(parted.net.parameters(), whole.net.parameters(), strict=True):
        torch.testing.assert_close(got.grad, expected.grad)


def test_micro_batches_hold_every_segment_once() -> None:
    algorithm, schema, batch = made("lstm")
    found = micro_batches(algorithm, batch, 2 * STEPS)
    assert [part.version.shape[1] for part in found] == [2, 2, 1]
    for name, axis in column_axes(schema).items():
        assert torch.equal(torch.cat([part.fields[name] for part in found], axis), batch.fields[name])


def test_micro_batches_are_alike_rather_than_full() -> None:
    algorithm, _, batch = made("none")
    assert [part.version.shape[1] for part in micro_batches(algorithm, batch, 4 * STEPS)] == [3, 2]


def test_frames_make_micro_batches_small_and_numbers_do_not() -> None:
    version = torch.zeros(STEPS, STREAMS, dtype=torch.int64)
    assert cached_rows(Batch({"obs": torch.zeros(STEPS, STREAMS, 4)}, version)) == MICRO_BATCH_ROWS
    frames = Batch({"obs": torch.zeros(STEPS, STREAMS, 4, 84, 84, dtype=torch.uint8)}, version)
    assert cached_rows(frames) == MICRO_BATCH_BYTES // (4 * 84 * 84)


def test_a_piece_is_one_segment_at_least() -> None:
    algorithm, _, batch = made("none")
    assert len(micro_batches(algorithm, batch, 1)) == STREAMS


def test_a_loss_that_looks_at_the_whole_batch_is_not_split() -> None:
    whole, schema, batch = made("none", advantage_norm=True)
    parted, _, _ = made("none", advantage_norm=True)
    one = learned(whole, schema, batch, STEPS * STREAMS)
    several = learned(parted, schema, batch, STEPS)
    assert torch.equal(one.total, several.total)


class Ranked(Impala):
    """A loss of the user's own, which looks at the whole batch."""

    def loss(self, batch: Batch) -> Loss:
        loss = super().loss(batch)
        return loss._replace(total=loss.total * batch.fields["reward"].max())


def test_a_loss_of_ones_own_is_taken_to_micro_batches_only_when_it_says_so() -> None:
    _, _, batch = made("none")
    algorithm = Ranked(Settings(unroll_length=STEPS), Network(hidden=[8]), SPACES, seed=0)
    assert len(micro_batches(algorithm, batch, STEPS)) == 1
    algorithm.additive = True
    assert len(micro_batches(algorithm, batch, STEPS)) == STREAMS


def test_a_batch_without_a_valid_row_has_no_gradient() -> None:
    algorithm, schema, batch = made("none")
    batch.fields["valid"].zero_()
    loss = learned(algorithm, schema, batch, STEPS)
    assert loss.rows == 0
    assert all(weight.grad is None or not weight.grad.any() for weight in algorithm.net.parameters())
