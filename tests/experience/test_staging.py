"""Batches on their way to a device: on a CPU with copies, the path that a GPU takes."""

import numpy as np
import torch

from rlctl_agents.experience.staging import Staging
from rlctl_agents.training.trainer import Trainer
from tests.support.batches import batch
from tests.training.test_trainer import CONFIG, NETWORK, SCHEMA, SPACES, Impala, batch_for

CPU = torch.device("cpu")


def learning() -> Trainer:
    algorithm = Impala(CONFIG, NETWORK, SPACES, seed=1)
    return Trainer(algorithm, policy="main", lineage=1, device=CPU)


def test_a_batch_that_is_copied_is_learned_from_as_one_in_place() -> None:
    here, there = learning(), learning()
    for _ in range(3):
        here.update(batch(batch_for(here)))
        staging = Staging(CPU, copies=True)
        copied = staging.allocate(SCHEMA, 4)
        for name, values in batch_for(there).fields.items():
            copied.fields[name][:] = values
        there.update(staging.batch(copied))
    assert here.weights() == there.weights()


def test_what_was_copied_when_the_batch_was_full_is_what_is_learned_from() -> None:
    staging = Staging(CPU, copies=True)
    columns = staging.allocate(SCHEMA, 4)
    columns.fields["reward"][:] = 1.0
    staging.begin(columns)
    first = staging.batch(columns)
    assert float(first.fields["reward"].min()) == 1.0
    columns.fields["reward"][:] = 2.0  # it is filled again
    assert float(first.fields["reward"].max()) == 1.0
    second = staging.batch(columns)  # nobody has begun: it is copied now
    assert float(second.fields["reward"].min()) == 2.0
    assert second.fields["reward"].data_ptr() == first.fields["reward"].data_ptr(), "static addresses"


def test_without_copies_the_network_learns_from_the_memory_that_segments_are_written_to() -> None:
    staging = Staging(CPU)
    columns = staging.allocate(SCHEMA, 4)
    staging.begin(columns)
    assert columns.there is None
    assert np.shares_memory(staging.batch(columns).fields["obs"].numpy(), columns.fields["obs"])
