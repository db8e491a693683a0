"""PPO: the first minibatch sees the probabilities of the actors, and the loss is that of docs/algorithms/ppo.md."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rlctl.spec import algorithms as specs
from rlctl.spec.schema import Network
from rlctl_agents.algorithms.actor_critic import rows_apart
from rlctl_agents.algorithms.base import Batch, below
from rlctl_agents.algorithms.ppo import Ppo
from rlctl_agents.ops.gae import gae
from rlctl_agents.training.trainer import Trainer
from rlctl_agents.types.spaces import Box, Discrete, Space, Spaces
from tests.algorithms.test_impala import ACTIONS, CHOICES, CHOSEN, MIXED, PLAYED, VECTOR
from tests.algorithms.test_impala_learns import Chain, Lights, Recall
from tests.algorithms.world import Actor, Anything, World


def alone(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def made(spaces: Spaces, network: dict[str, Any] | None = None, **settings: Any) -> tuple[Ppo, Any]:
    config = specs.Ppo.model_validate({"unroll_length": 5, "batch_size": 30, "minibatch_size": 10, **settings})
    model = Network.model_validate({"width": 12, "hidden": [16], **(network or {})})
    algorithm = Ppo(config, model, spaces, seed=3)
    return algorithm, Ppo.schema(config, model, spaces)


@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
@pytest.mark.parametrize(("action", "legal"), PLAYED)
@pytest.mark.parametrize("obs", [VECTOR, MIXED], ids=["vector", "mixed"])
def test_the_ratio_is_1_in_the_first_minibatch_though_moments_move_from_batch_to_batch(
    obs: Space, action: Space, legal: bool, core: str
) -> None:
    spaces = Spaces(obs, action, legal=legal)
    algorithm, schema = made(spaces, {"core": core}, lr=1e-3, epochs=2)
    actor = Actor(algorithm, schema, Anything(6, 1, spaces), seed=2)
    learner = Trainer(algorithm, policy="main", lineage=1, device=torch.device("cpu"))
    for _ in range(3):
        batch = actor.segment()
        whole = algorithm.prepare(batch, alone)
        assert whole is not None
        first = next(iter(algorithm.minibatches(whole, torch.Generator().manual_seed(0))))
        metrics = algorithm.loss(first).metrics
        assert abs(float(metrics["kl"])) < 1e-9
        assert float(metrics["clipped"]) == 0
        updated = learner.update(batch)
        assert updated.steps == 2 * 3
        assert updated.stats["kl"] > 1e-7, "it moves within a batch"
    assert float(algorithm.net.observed.moments[0].count) > 60  # type: ignore[union-attr, arg-type, index]


@pytest.mark.parametrize("network", CHOICES, ids=str)
def test_the_ratio_is_1_in_the_first_minibatch_whatever_the_network(network: dict[str, Any]) -> None:
    algorithm, schema = made(CHOSEN, network, lr=1e-3, epochs=2)
    actor = Actor(algorithm, schema, Anything(6, 1, CHOSEN), seed=2)
    learner = Trainer(algorithm, policy="main", lineage=1, device=torch.device("cpu"))
    for _ in range(2):
        batch = actor.segment()
        whole = algorithm.prepare(batch, alone)
        assert whole is not None
        first = next(iter(algorithm.minibatches(whole, torch.Generator().manual_seed(0))))
        fields, valid = first.fields, first.fields["valid"]
        steps = len(valid)
        with torch.no_grad():
            obs = {name: leaf[:steps] for name, leaf in below(fields, "obs").items()}
            params, _ = algorithm.net.unroll(obs, fields["first"][:steps], below(fields, "core"))
            log_prob = algorithm.net.distribution.score(params, below(fields, "action"), None).log_prob
        ratio = (log_prob - fields["log_prob"]).exp()[valid]
        torch.testing.assert_close(ratio, torch.ones_like(ratio), rtol=0, atol=1e-5)
        assert learner.update(batch).stats["kl"] > 1e-7, "it moves within a batch"


@pytest.mark.parametrize(("acting", "least", "most"), [("bf16", 0.0, 2e-3), ("fp32", 1e-4, 2e-2)])
def test_a_learner_in_bf16_sees_ratio_1_of_actors_in_bf16_and_about_1_of_those_in_fp32(
    acting: str, least: float, most: float
) -> None:
    spaces = Spaces(Box((1, 36, 40), "uint8", 0.0, 255.0), Discrete(6))
    network = {"torso": "nature_cnn", "width": 64, "gains": {"policy": 1.0}}  # logits of a policy that has learned
    played, schema = made(spaces, {**network, "precision": acting})
    algorithm, _ = made(spaces, {**network, "precision": "bf16"})
    batch = Actor(played, schema, Anything(6, 1, spaces), seed=2).segment()
    fields, valid = batch.fields, batch.fields["valid"]
    params, _ = algorithm.net.unroll(below(fields, "obs"), fields["first"], {})
    log_prob = algorithm.net.distribution.score(params[:-1].detach(), below(fields, "action"), None).log_prob
    assert least <= float(((log_prob - fields["log_prob"]).exp() - 1)[valid].abs().max()) < most


@pytest.mark.parametrize(
    ("network", "obs", "epochs", "minibatch"),
    [({}, VECTOR, 10, 64), ({"core": "gru"}, VECTOR, 4, 256), ({}, Box((6, 7, 3), "uint8", 0, 255), 4, 256)],
    ids=["mlp", "gru", "image"],
)
def test_a_network_whose_steps_are_dear_makes_fewer_of_them(
    network: dict[str, Any], obs: Space, epochs: int, minibatch: int
) -> None:
    def steps(**given: Any) -> int:
        model = Network.model_validate(network)
        return Ppo(specs.Ppo.model_validate(given), model, Spaces(obs, Discrete(3)), seed=0).steps_per_batch

    assert steps() == epochs * 2048 // minibatch
    assert steps(epochs=3) == 3 * 2048 // minibatch
    assert steps(minibatch_size=512) == epochs * 4
    assert steps(batch_size=32) == epochs, "never more than a batch"


def test_moments_move_after_the_last_step_of_a_batch() -> None:
    spaces = Spaces(VECTOR, ACTIONS["discrete"])
    algorithm, schema = made(spaces, lr=1e-2, epochs=1, minibatch_size=30)
    actor = Actor(algorithm, schema, Anything(6, 1, spaces), seed=2)
    learner = Trainer(algorithm, policy="main", lineage=1, device=torch.device("cpu"))
    assert algorithm.net.observed is not None
    (moments,) = algorithm.net.observed.moments
    for _ in range(3):
        before = moments.mean.clone()
        updated = learner.update(actor.segment())
        assert updated.steps == 1
        assert abs(updated.stats["kl"]) < 1e-9, "the only step sees what the actors saw"
        assert not torch.equal(moments.mean, before)


def test_the_loss_is_the_one_that_is_written_down() -> None:
    spaces = Spaces(VECTOR, ACTIONS["discrete"])
    algorithm, schema = made(
        spaces, {"normalize": {"returns": False}}, clip=0.1, value_clip=0.05, entropy_coef=0.02, advantage_norm=False
    )
    with torch.no_grad():
        whole = algorithm.prepare(Actor(algorithm, schema, Anything(6, 1, spaces), seed=2).segment(), alone)
        assert whole is not None  # and then a learner that has moved on
        for weight in algorithm.net.parameters():
            weight += 0.3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel()))
    fields, valid = whole.fields, whole.fields["valid"]
    with torch.no_grad():
        found, together = algorithm.loss(whole), algorithm.loss(rows_apart(whole))
        params, value = algorithm.net.unroll(below(fields, "obs"), fields["first"], {})
        log_prob, entropy = algorithm.net.distribution.score(params[:-1], below(fields, "action"), None)
    total, clipped = 0.0, 0
    for t, b in valid.nonzero().tolist():
        ratio = float((log_prob[t, b] - fields["log_prob"][t, b]).exp())
        advantage, target, old = (float(fields[name][t, b]) for name in ("advantage", "target", "old_value"))
        near = old + min(max(float(value[t, b]) - old, -0.05), 0.05)
        total -= min(ratio * advantage, min(max(ratio, 0.9), 1.1) * advantage)
        total += 0.5 * 0.5 * max((target - float(value[t, b])) ** 2, (target - near) ** 2)
        total -= 0.02 * float(entropy[t, b])
        clipped += abs(ratio - 1) > 0.1
    assert found.total.item() == pytest.approx(total, rel=1e-4)
    assert float(found.metrics["clipped"]) == pytest.approx(clipped / int(valid.sum()))
    assert clipped > 3
    assert together.total.item() == pytest.approx(total, rel=1e-4), "rows side by side are the same rows"


def test_advantages_are_those_of_gae_and_normalised_over_the_valid_rows_of_all_learners() -> None:
    spaces = Spaces(VECTOR, ACTIONS["discrete"])
    algorithm, schema = made(spaces)
    actor = Actor(algorithm, schema, Anything(6, 1, spaces), seed=2)
    batches: list[Batch] = [actor.segment(), actor.segment()]
    told: list[torch.Tensor] = []

    def tell(sums: torch.Tensor) -> torch.Tensor:
        told.append(sums)
        return sums

    for batch in batches:
        algorithm.prepare(batch, tell)
    algorithm.prepare(None, tell)
    assert len(told) == 3, "a learner without a batch takes part in the sums"
    assert not told[2].any()
    summed = torch.stack(told).sum(0)
    prepared = [algorithm.prepare(batch, lambda _: summed) for batch in batches]
    found = torch.cat([one.fields["advantage"][one.fields["valid"]] for one in prepared if one is not None])
    raw = []
    for batch in batches:
        fields = batch.fields
        value = algorithm.net.unroll(below(fields, "obs"), fields["first"], {})[1].detach()
        discount = 0.99 * ~fields["terminated"]
        raw.append(gae(fields["reward"], discount, value, fields["valid"], lambda_=0.95).advantage[fields["valid"]])
    expected = torch.cat(raw)
    torch.testing.assert_close(found, (expected - expected.mean()) / expected.std(unbiased=False), rtol=1e-3, atol=1e-4)


def test_epochs_end_when_the_policy_has_moved_far_enough() -> None:
    spaces = Spaces(VECTOR, ACTIONS["discrete"])
    steps = {}
    for target_kl in (None, 1e-6):
        algorithm, schema = made(spaces, lr=1e-2, epochs=4, target_kl=target_kl)
        learner = Trainer(algorithm, policy="main", lineage=1, device=torch.device("cpu"))
        steps[target_kl] = learner.update(Actor(algorithm, schema, Anything(6, 1, spaces), seed=2).segment()).steps
    assert steps[None] == 12
    assert 1 < steps[1e-6] < 12


@pytest.mark.learning
@pytest.mark.parametrize(
    ("world", "network", "least"),
    [
        (Lights, {}, 0.9),
        (Chain, {}, 0.5),
        (Recall, {"core": "lstm", "width": 16}, 0.8),
        (Recall, {"core": "gru", "width": 16}, 0.8),
    ],
)
def test_it_learns_what_can_be_computed_by_hand(world: type[World], network: dict[str, Any], least: float) -> None:
    algorithm, schema = made(
        world.spaces, network, unroll_length=16, batch_size=512, minibatch_size=64, epochs=4, lr=3e-3, entropy_coef=0.01
    )
    actor = Actor(algorithm, schema, world(32, 1), seed=2)
    learner = Trainer(algorithm, policy="main", lineage=1, device=torch.device("cpu"))
    torch.manual_seed(0)
    for _ in range(60):
        learner.update(actor.segment())
    assert sum(actor.returns) / len(actor.returns) > least
