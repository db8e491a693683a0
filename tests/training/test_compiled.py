"""The loss compiled, by a backend of torch that needs no compiler: the path that a GPU takes, up to the kernels."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch

from rlctl.spec.algorithms import KINDS
from rlctl.spec.schema import Network
from rlctl_agents import algorithms
from rlctl_agents.algorithms.base import Batch
from rlctl_agents.algorithms.impala import Impala as OurImpala
from rlctl_agents.experience.staging import Staging
from rlctl_agents.roles.learner import Learner
from rlctl_agents.training.trainer import Trainer
from tests.support.chain import schema_of
from tests.training.test_trainer import CONFIG, NETWORK, SPACES, batch_for

pytestmark = pytest.mark.slow
CPU = torch.device("cpu")
LSTM, GRU = (Network.model_validate({"hidden": [8], "core": core, "width": 6}) for core in ("lstm", "gru"))


def learning(network: Network = NETWORK) -> Trainer:
    algorithm = OurImpala(CONFIG, network, SPACES, seed=1)
    return Trainer(algorithm, policy="main", lineage=1, device=CPU)


def batch_of(learning: Trainer, network: Network) -> Batch:
    """With a memory of zeros, where the network has one."""
    staging = Staging(CPU, copies=True)
    columns, filled = staging.allocate(schema_of(CONFIG, network, SPACES), 4), batch_for(learning).fields
    for name, values in filled.items():
        columns.fields[name][:] = values
    return staging.batch(columns)


@pytest.mark.parametrize("network", [NETWORK, LSTM, GRU], ids=["mlp", "lstm", "gru"])
def test_a_compiled_update_is_the_update(network: Network) -> None:
    as_written, compiled = learning(network), learning(network)
    compiled.compile(batch_of(compiled, network), ["aot_eager"])
    for _ in range(3):
        expected = as_written.update(batch_of(as_written, network))
        got = compiled.update(batch_of(compiled, network))
        assert got.stats == pytest.approx(expected.stats, abs=1e-6)
    for name, value in as_written._algorithm.net.state_dict().items():
        torch.testing.assert_close(compiled._algorithm.net.state_dict()[name], value)


def test_compiling_changes_no_weight_and_no_version() -> None:
    one = learning()
    before = one.weights()
    one.compile(batch_of(one, NETWORK), ["aot_eager"])
    assert (one.weights(), one.version, one.consumed_steps) == (before, 0, 0)


def test_a_learner_that_cannot_compile_learns_all_the_same_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    as_written, fallen_back = learning(), learning()
    fallen_back.compile(batch_of(fallen_back, NETWORK), ["no such backend"])
    assert "no such backend cannot compile the loss" in caplog.text
    as_written.update(batch_of(as_written, NETWORK))
    fallen_back.update(batch_of(fallen_back, NETWORK))
    assert fallen_back.weights() == as_written.weights()


def test_the_next_backend_takes_over_from_one_that_cannot(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    one = learning()
    one.compile(batch_of(one, NETWORK), ["no such backend", "eager"])
    assert "the loss is compiled by eager" in caplog.text


@pytest.mark.parametrize(
    ("name", "core", "compiled"),
    [("impala", "none", True), ("ppo", "none", False), ("ppo", "gru", True), ("appo", "none", False)],
)
def test_a_loss_is_compiled_where_minibatches_have_one_shape(
    name: str, core: str, compiled: bool, caplog: pytest.LogCaptureFixture
) -> None:
    kind = algorithms.find(name)
    network = Network.model_validate({"hidden": [8], "core": core, "width": 6})
    config = KINDS[name]()
    algorithm = kind(config, network, SPACES, seed=1)
    given: list[Batch] = []
    example = Batch({}, torch.zeros(1, 1))
    learner = SimpleNamespace(
        _source=SimpleNamespace(example=lambda: example), _trainer=SimpleNamespace(compile=given.append)
    )
    with caplog.at_level(logging.INFO):
        Learner._compile(learner, algorithm, config)  # type: ignore[arg-type]
    assert given == ([example] if compiled else [])
    assert ("not compiled: minibatches have as many rows as are valid" in caplog.text) != compiled


def test_a_learner_whose_source_has_no_example_says_that_it_does_not_compile(caplog: pytest.LogCaptureFixture) -> None:
    learner = SimpleNamespace(_source=SimpleNamespace(example=lambda: None))
    with caplog.at_level(logging.INFO):
        Learner._compile(learner, learning()._algorithm, CONFIG)  # type: ignore[arg-type]
    assert "not compiled: batches are drawn from a replay" in caplog.text
