"""APPO: the loss is that of docs/algorithms/appo.md, on batches that are learned from as often as the spec says."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from rlctl.spec import algorithms as specs
from rlctl.spec.schema import Network
from rlctl_agents.algorithms.appo import Appo
from rlctl_agents.algorithms.base import AlgorithmError, Batch, below
from rlctl_agents.ops.vtrace import vtrace
from rlctl_agents.training.trainer import Trainer
from rlctl_agents.types.spaces import Discrete, Space, Spaces
from tests.algorithms.test_impala import MIXED, PLAYED, VECTOR
from tests.algorithms.test_impala_learns import Chain, Lights, Recall
from tests.algorithms.world import Actor, Anything, World

SPACES = Spaces(VECTOR, Discrete(3))


def alone(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def made(spaces: Spaces = SPACES, network: dict[str, Any] | None = None, **settings: Any) -> tuple[Appo, Any]:
    config = specs.Appo.model_validate({"unroll_length": 5, "batch_size": 30, "minibatch_size": 10, **settings})
    model = Network.model_validate({"width": 12, "hidden": [16], **(network or {})})
    algorithm = Appo(config, model, spaces, seed=3)
    return algorithm, Appo.schema(config, model, spaces)


def trainer(algorithm: Appo) -> Trainer:
    return Trainer(algorithm, policy="main", lineage=1, device=torch.device("cpu"))


def moved(algorithm: Appo, by: float = 0.3) -> None:
    """A learner that is elsewhere than its actors."""
    with torch.no_grad():
        for weight in algorithm.net.parameters():
            weight += by * torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel()))


@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
@pytest.mark.parametrize(("action", "legal"), PLAYED)
@pytest.mark.parametrize("obs", [VECTOR, MIXED], ids=["vector", "mixed"])
def test_the_ratio_is_1_in_the_first_minibatch_of_what_the_newest_policy_gathered_for_every_action_space(
    obs: Space, action: Space, legal: bool, core: str
) -> None:
    spaces = Spaces(obs, action, legal=legal)
    algorithm, schema = made(spaces, {"core": core}, lr=1e-3, reuse=2, buffer_batches=1, target_every_updates=1)
    actor, learner = Actor(algorithm, schema, Anything(6, 1, spaces), seed=2), trainer(algorithm)
    for _ in range(3):
        batch = actor.segment()
        with torch.no_grad():
            whole = algorithm.prepare(batch, alone)
            assert whole is not None
            first = next(iter(algorithm.minibatches(whole, torch.Generator().manual_seed(0))))
            metrics = {**algorithm.loss(first).metrics, **algorithm.batch_metrics}
        assert abs(float(metrics["kl"])) < 1e-9
        assert abs(float(metrics["kl_actors"])) < 1e-9
        assert float(metrics["rho"]) == pytest.approx(1, abs=1e-5)
        updated = learner.update(batch)
        assert updated.steps == 2 * 3
        assert updated.stats["kl"] > 1e-7, "it moves within a batch"


@pytest.mark.parametrize("advantage", ["vtrace", "gae"])
def test_the_loss_is_the_one_that_is_written_down(advantage: str) -> None:
    algorithm, schema = made(
        network={"normalize": {"returns": False}}, clip=0.1, value_clip=0.05, entropy_coef=0.02, advantage_norm=False,
        target_every_updates=4, target_rho_max=1.1, advantage=advantage,
    )  # fmt: skip
    batch = Actor(algorithm, schema, Anything(6, 1, SPACES), seed=2).segment()
    moved(algorithm)
    algorithm.after_update(4)  # copies the target network
    moved(algorithm)
    with torch.no_grad():
        whole = algorithm.prepare(batch, alone)
        assert whole is not None
        fields, valid = whole.fields, whole.fields["valid"]
        inputs = below(fields, "obs"), fields["first"], {}
        old, old_value = algorithm.net.unroll(*inputs)
        mean, _ = algorithm.target.unroll(*inputs)
        score = algorithm.net.distribution.score
        target_log_prob = score(mean[:-1], below(fields, "action"), None).log_prob
        log_rho = torch.where(valid, target_log_prob - fields["log_prob"], 0.0)
        made_of = vtrace(
            log_rho, fields["reward"], 0.99 * ~fields["terminated"], old_value, valid, lambda_=0.95,
            gae=advantage == "gae",
        )  # fmt: skip
        moved(algorithm, -0.5)  # within the steps of the version, back to what the target network has given up
        found = algorithm.loss(whole)
        params, value = algorithm.net.unroll(*inputs)
        log_prob, entropy = score(params[:-1], below(fields, "action"), None)
    total, gained, bounded = 0.0, 0.0, 0
    for t, b in valid.nonzero().tolist():
        actors, targets, pi = (float(one[t, b].exp()) for one in (fields["log_prob"], target_log_prob, log_prob))
        ratio = min(actors / targets, 1.1) * pi / actors
        bounded += actors / targets > 1.1
        gain, goal, before = (float(one[t, b]) for one in (made_of.advantage, made_of.target, old_value))
        near = before + min(max(float(value[t, b]) - before, -0.05), 0.05)
        gained += min(ratio * gain, min(max(ratio, 0.9), 1.1) * gain)
        total += 0.5 * 0.5 * max((goal - float(value[t, b])) ** 2, (goal - near) ** 2)
        total -= 0.02 * float(entropy[t, b])
    assert found.total.item() == pytest.approx(total - gained, rel=1e-4)
    assert float(found.metrics["policy_loss"]) == pytest.approx(-gained / int(valid.sum()), rel=1e-3)
    assert bounded > 3
    assert algorithm.batch_metrics["rho"] == pytest.approx(float(log_rho[valid].exp().mean()), rel=1e-4)
    assert old.shape == params.shape


@pytest.mark.parametrize(
    ("plain", "buffer_batches", "reuse", "minibatch"),
    [(True, 4, 8, 64), (True, 3, 6, 64), (True, 16, 8, 64), (True, 1, 8, 64), (False, 4, 2, 256), (False, 1, 2, 256)],
)
def test_reuse_fits_the_buffer_and_the_network_where_it_is_not_stated(
    plain: bool, buffer_batches: int, reuse: int, minibatch: int
) -> None:
    found = specs.Appo(buffer_batches=buffer_batches).sized(plain=plain)
    assert (found.reuse, found.minibatch_size, found.passes * len(found.ages)) == (reuse, minibatch, reuse)
    assert specs.Appo(reuse=3, buffer_batches=3).sized(plain=plain).reuse == 3


@pytest.mark.parametrize(
    ("reuse", "buffer_batches", "ages", "passes"),
    [(1, 1, (0,), 1), (4, 1, (0,), 4), (2, 5, (0, 4), 1), (3, 5, (0, 2, 4), 1), (6, 3, (0, 1, 2), 2), (1, 4, (0,), 1)],
)
def test_every_batch_is_learned_from_as_often_as_reuse_says_the_last_time_as_the_oldest_of_the_buffer(
    reuse: int, buffer_batches: int, ages: tuple[int, ...], passes: int
) -> None:
    algorithm, schema = made(
        network={"core": "lstm"}, reuse=reuse, buffer_batches=buffer_batches, minibatch_size=15, advantage_norm=False
    )
    assert (algorithm.config.ages, algorithm.config.passes) == (ages, passes)
    assert algorithm.steps_per_batch == 2 * reuse
    actor, seen = Actor(algorithm, schema, Anything(6, 1, SPACES), seed=2), Counter[tuple[int, int]]()
    for number in range(12):
        batch = actor.segment()
        batch.fields["reward"].fill_(number)
        whole = algorithm.prepare(batch, alone)
        assert whole is not None
        minibatches = list(algorithm.minibatches(whole, torch.Generator().manual_seed(number)))
        assert len(minibatches) == algorithm.steps_per_batch, "also as long as the buffer is not full"
        for minibatch in minibatches:
            for one in minibatch.fields["reward"][0].tolist():
                seen[int(one), number - int(one)] += 1
        algorithm.after_update(number + 1)
        batch.fields["reward"].fill_(-99)  # its memory is filled again
    for number in range(12 - buffer_batches):
        assert {age: seen[number, age] for age in range(12) if seen[number, age]} == dict.fromkeys(ages, 6 * passes)


def test_a_batch_that_was_not_learned_from_is_not_kept() -> None:
    algorithm, schema = made(reuse=2, buffer_batches=2)
    actor = Actor(algorithm, schema, Anything(6, 1, SPACES), seed=2)
    batch = actor.segment()
    algorithm.prepare(batch, alone)  # the group broke up: the same batch once more
    whole = algorithm.prepare(batch, alone)
    assert whole is not None
    assert whole.version.shape[1] == 6
    algorithm.after_update(1)
    assert algorithm.prepare(None, alone) is None
    algorithm.after_update(2)  # of others, while this learner had no batch
    again = algorithm.prepare(actor.segment(), alone)
    assert again is not None
    assert again.version.shape[1] == 12


def test_reused_steps_are_learned_again_and_consumed_once_and_so_are_the_moments_of_observations() -> None:
    algorithm, schema = made(reuse=4, buffer_batches=2)
    actor, learner = Actor(algorithm, schema, Anything(6, 1, SPACES), seed=2), trainer(algorithm)
    for _ in range(3):
        learner.update(actor.segment())
    steps = learner.consumed_steps
    assert algorithm.net.observed is not None
    (moments,) = algorithm.net.observed.moments
    assert float(moments.count) == steps  # type: ignore[arg-type]
    last = learner.update(actor.segment())
    assert 3 * last.rows < last.learned < 5 * last.rows


def test_the_target_network_is_copied_when_due_and_survives_a_restart() -> None:
    def equal(algorithm: Appo) -> bool:
        pairs = zip(algorithm.target.parameters(), algorithm.net.parameters(), strict=True)
        return all(torch.equal(one, other) for one, other in pairs)

    algorithm, schema = made(target_every_updates=3)
    actor, learner = Actor(algorithm, schema, Anything(6, 1, SPACES), seed=2), trainer(algorithm)
    copied = []
    for _ in range(7):
        learner.update(actor.segment())
        copied.append(equal(algorithm))
    assert copied == [False, False, True, False, False, True, False]
    assert not any(one.requires_grad for one in algorithm.target.parameters())
    other, _ = made(target_every_updates=3)
    again = trainer(other)
    assert again.restore(learner.capture().pack()) == ""
    assert all(
        torch.equal(value, other.target.state_dict()[name]) for name, value in algorithm.target.state_dict().items()
    )
    assert not equal(other)


def test_by_default_one_target_network_bounds_what_several_versions_do_together() -> None:
    algorithm, schema = made(lr=1e-3)
    actor, learner = Actor(algorithm, schema, Anything(6, 1, SPACES), seed=2), trainer(algorithm)
    before = {name: value.clone() for name, value in algorithm.target.state_dict().items()}
    far = [learner.update(actor.segment()).stats["kl"] for _ in range(3)]
    assert all(torch.equal(value, before[name]) for name, value in algorithm.target.state_dict().items())
    assert far[0] < far[1] < far[2], "measured from where the first of them began"


def test_clips_outside_of_the_papers_assumption_are_refused() -> None:
    with pytest.raises(AlgorithmError, match=r"algorithm\.c_max must not exceed rho_max"):
        made(c_max=2.0)


@pytest.mark.learning
@pytest.mark.parametrize(
    ("world", "network", "least"),
    [(Lights, {}, 0.9), (Chain, {}, 0.5), (Recall, {"core": "lstm", "width": 16}, 0.8)],
)
def test_it_learns_what_can_be_computed_by_hand_from_actors_that_lag(
    world: type[World], network: dict[str, Any], least: float
) -> None:
    algorithm, schema = made(
        world.spaces, network, unroll_length=16, batch_size=512, minibatch_size=64, reuse=4, lr=3e-3, entropy_coef=0.01,
    )  # fmt: skip
    played, _ = made(world.spaces, network, unroll_length=16, batch_size=512)
    actor, learner = Actor(played, schema, world(32, 1), seed=2), trainer(algorithm)
    torch.manual_seed(0)
    waiting: list[Batch] = [actor.segment(), actor.segment()]
    for _ in range(60):
        learner.update(waiting.pop(0))
        played.net.load_state_dict(algorithm.net.state_dict())
        waiting.append(actor.segment())
    assert sum(actor.returns) / len(actor.returns) > least
