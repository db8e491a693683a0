"""Optimizers and schedules that IMPALA, PPO and APPO share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from rlctl.spec import algorithms as specs
from rlctl.spec.schema import Network
from rlctl_agents import algorithms
from rlctl_agents.algorithms.actor_critic import ActorCriticAlgorithm, explained_variance
from rlctl_agents.algorithms.impala import Impala
from rlctl_agents.algorithms.ppo import Ppo
from rlctl_agents.training.trainer import Trainer
from rlctl_agents.types.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Spaces
from tests.algorithms.test_impala import VECTOR
from tests.algorithms.world import Actor, Anything

SPACES = Spaces(VECTOR, Box((2,), "float32", -1.0, 1.0))
NETWORK = Network(hidden=[8])


def trainer(algorithm: ActorCriticAlgorithm) -> Trainer:
    return Trainer(algorithm, policy="main", lineage=1, device=torch.device("cpu"))


def test_what_has_a_schedule_goes_in_a_line_to_its_final_value_and_wins_over_what_is_set() -> None:
    config = specs.Ppo(
        lr=0.1, entropy_coef=0.02, clip=0.3,
        lr_schedule=specs.Schedule(agent_steps=1000),
        entropy_schedule=specs.Schedule(agent_steps=500, final=0.01),
        clip_schedule=specs.Schedule(agent_steps=1000, final=0.1),
    )  # fmt: skip
    algorithm = Ppo(config, NETWORK, SPACES, seed=0)
    optimizer = algorithm.make_optimizer()
    tensors = dict(algorithm.tunable.named_buffers())

    def after(steps: int) -> list[float]:
        algorithm.set_progress(steps, optimizer)
        tunable = algorithm.tunable
        return [optimizer.param_groups[0]["lr"], float(tunable.entropy_coef), float(tunable.clip)]

    assert after(0) == pytest.approx([0.1, 0.02, 0.3])
    assert after(250) == pytest.approx([0.075, 0.015, 0.25])
    assert after(2000) == pytest.approx([0, 0.01, 0.1])
    algorithm.set_hyperparameters({"lr": 0.2, "clip": 0.5})
    assert after(500) == pytest.approx([0.1, 0.01, 0.3]), "the line begins with what is set"
    assert all(tensors[name] is one for name, one in algorithm.tunable.named_buffers()), "a compiled loss stays"


@pytest.mark.parametrize("name", ["impala", "ppo", "appo"])
def test_all_that_may_have_a_schedule_is_told_with_every_batch_as_it_was_learned_from_with_it(name: str) -> None:
    kind = specs.KINDS[name]
    sections = [one for one in kind.model_fields if one.endswith("_schedule")]
    falling = {one: {"agent_steps": 60, "final": 0.0} for one in sections}

    def told(**changes: Any) -> list[Mapping[str, float]]:
        config = kind.model_validate(
            {"unroll_length": 5, "batch_size": 30, "lr": 0.01, "entropy_coef": 0.02, **changes}
        )
        algorithm = algorithms.find(name)(config, NETWORK, SPACES, seed=0)
        actor = Actor(algorithm, algorithm.schema(config, NETWORK, SPACES), Anything(6, 1, SPACES), seed=2)
        learning = Trainer(algorithm, policy="main", lineage=1, device=torch.device("cpu"))
        return [learning.update(actor.segment()).scheduled for _ in range(2)]

    first, second = told(**falling)
    assert [f"{one.removesuffix('_coef')}_schedule" for one in sorted(first)] == sorted(sections)
    assert all(0 < second[one] < first[one] for one in first)
    assert told() == [first, first], "a constant is a curve too"


@pytest.mark.parametrize("name", ["impala", "ppo", "appo"])
def test_after_a_restart_schedules_go_on_by_the_steps_consumed_however_often_each_was_learned_from(name: str) -> None:
    falling = {"agent_steps": 1000}
    algorithm, actor = made(name, lr=0.01, lr_schedule=falling, entropy_coef=0.02, entropy_schedule=falling)
    learner, batches = trainer(algorithm), [actor.segment() for _ in range(4)]
    for batch in batches[:3]:
        learner.update(batch)
    consumed = learner.consumed_steps
    assert learner.learned_steps > 2 * consumed
    again = trainer(made(name, lr=0.01, lr_schedule=falling, entropy_coef=0.02, entropy_schedule=falling)[0])
    assert again.restore(learner.capture().pack()) == ""
    for one in (learner, again):
        scheduled = one.update(batches[3]).scheduled
        assert scheduled["lr"] == pytest.approx(0.01 * (1 - consumed / 1000))
        assert scheduled["entropy_coef"] == pytest.approx(0.02 * (1 - consumed / 1000))


@pytest.mark.parametrize(("name", "weight"), [("impala", 0.001), ("ppo", 0.01), ("appo", 0.01)])
@pytest.mark.parametrize(
    ("action", "continuous"),
    [
        (Discrete(3), False),
        (MultiDiscrete((2, 3)), False),
        (Dict({"a": Discrete(3), "b": MultiBinary(2)}), False),
        (Box((2,), "float32"), True),
        (Dict({"a": Discrete(3), "b": Box((2,), "float32")}), True),
    ],
)
def test_by_default_the_entropy_has_no_weight_where_an_action_holds_real_numbers(
    action: Space, continuous: bool, name: str, weight: float
) -> None:
    algorithm = algorithms.find(name)(specs.KINDS[name](), NETWORK, Spaces(VECTOR, action), seed=0)
    assert isinstance(algorithm, ActorCriticAlgorithm)
    assert float(algorithm.tunable.entropy_coef) == pytest.approx(0.0 if continuous else weight)


def test_adamw_lets_matrices_decay_and_nothing_else() -> None:
    algorithm = Impala(specs.Impala(optimizer="adamw", lr=0.1, weight_decay=0.5), NETWORK, SPACES, seed=0)
    optimizer = algorithm.make_optimizer()
    with torch.no_grad():
        for one in algorithm.net.parameters():
            one.fill_(1.0)
            one.grad = torch.zeros_like(one)
    optimizer.step()
    shapes = {one.ndim for one in algorithm.net.parameters()}
    assert shapes == {1, 2}, "biases and deviations, and matrices"
    for one in algorithm.net.parameters():
        assert float(one.detach().mean()) == pytest.approx(0.95 if one.ndim == 2 else 1.0)


@pytest.mark.parametrize(("name", "kind"), [("adam", "Adam"), ("adamw", "AdamW"), ("rmsprop", "RMSprop")])
def test_an_optimizer_is_what_the_spec_says_and_another_one_after_a_restart_begins_anew(name: Any, kind: str) -> None:
    def made(optimizer: Any) -> Impala:
        config = specs.Impala(optimizer=optimizer, adam_beta1=0.8, adam_beta2=0.95, unroll_length=5)
        return Impala(config, NETWORK, SPACES, seed=0)

    algorithm = made(name)
    optimizer = algorithm.make_optimizer()
    assert type(optimizer).__name__ == kind
    if name != "rmsprop":
        assert optimizer.param_groups[0]["betas"] == (0.8, 0.95)
    learner = trainer(algorithm)
    schema = Impala.schema(algorithm.config, NETWORK, SPACES)
    learner.update(Actor(algorithm, schema, Anything(6, 1, SPACES), seed=2).segment())
    state = learner.capture().pack()
    assert trainer(made(name)).restore(state) == ""
    other = "adam" if name != "adam" else "adamw"
    assert trainer(made(other)).restore(state).startswith(f"the optimizer was {kind} and is Adam")


def made(name: str, **settings: Any) -> tuple[ActorCriticAlgorithm, Actor]:
    """An algorithm with normalised returns and observations, and an actor in an environment of random rewards."""
    config = specs.KINDS[name].model_validate({"unroll_length": 5, "batch_size": 60, **settings})
    kind = algorithms.find(name)
    algorithm = kind(config, Network.model_validate({"hidden": [8]}), SPACES, seed=0)
    assert isinstance(algorithm, ActorCriticAlgorithm)
    schema = kind.schema(config, Network.model_validate({"hidden": [8]}), SPACES)
    return algorithm, Actor(algorithm, schema, Anything(12, 1, SPACES), seed=2)


@pytest.mark.parametrize("name", ["impala", "ppo", "appo"])
def test_rewards_are_scaled_then_clipped_and_learned_from_as_such(name: str) -> None:
    """Returns, whose moments follow the rewards that are learned from, tell what these were."""
    means = []
    for settings in ({}, {"reward_scale": 100.0}, {"reward_scale": 100.0, "reward_clip": 0.5}):
        algorithm, actor = made(name, gamma=0.0, **settings)
        batch = actor.segment()
        reward, valid = batch.fields["reward"], batch.fields["valid"]
        learned = reward * settings.get("reward_scale", 1.0)
        learned = learned.clamp(-0.5, 0.5) if "reward_clip" in settings else learned
        torch.testing.assert_close(algorithm.rewards(batch), learned)
        means.append(float(learned[valid].mean()))
        if "reward_clip" not in settings:  # which gives rewards a scale of its own
            trainer(algorithm).update(batch)
            assert algorithm.net.returns is not None
            assert float(algorithm.net.returns.mean) == pytest.approx(means[-1], rel=1e-3)
    assert means[1] == pytest.approx(100 * means[0])
    assert len(set(means)) == 3


@pytest.mark.parametrize("name", ["impala", "ppo", "appo"])
def test_moments_stand_still_while_it_acts(name: str) -> None:
    algorithm, actor = made(name)
    trainer(algorithm).update(actor.segment())
    before = {name: one.clone() for name, one in algorithm.net.state_dict().items()}
    assert float(before["observed.moments.0.count"]) > 0
    actor.segment()
    assert all(torch.equal(one, before[name]) for name, one in algorithm.net.state_dict().items())


@pytest.mark.parametrize("scale", [1e-7, 1.0, 1e6])
def test_a_constant_explains_nothing_however_small_the_rewards(scale: float) -> None:
    target = scale * torch.randn(20, 6, generator=torch.Generator().manual_seed(0))
    valid, rows = torch.ones(20, 6, dtype=torch.bool), torch.tensor(120.0)
    nothing = explained_variance(torch.full_like(target, scale), target, valid, rows)
    assert float(nothing) == pytest.approx(0, abs=1e-3)
    assert float(explained_variance(0.5 * target, target, valid, rows)) == pytest.approx(0.75, abs=1e-3)
    equal = torch.full_like(target, scale)
    assert float(explained_variance(target, equal, valid, rows)) == 0


@pytest.mark.parametrize("returns", [True, False])
@pytest.mark.parametrize("name", ["ppo", "appo"])
def test_explained_variance_is_told_of_the_smallest_rewards_too(name: str, returns: bool) -> None:
    network = Network.model_validate({"hidden": [8], "normalize": {"returns": returns}})
    found = []
    for scale in (1.0, 1e-6):
        config = specs.KINDS[name].model_validate({"unroll_length": 5, "batch_size": 60, "reward_scale": scale})
        algorithm = algorithms.find(name)(config, network, SPACES, seed=0)
        assert isinstance(algorithm, ActorCriticAlgorithm)
        with torch.no_grad():
            for weight in algorithm.net.value.parameters():
                weight.zero_()
        actor = Actor(algorithm, algorithm.schema(config, network, SPACES), Anything(12, 1, SPACES), seed=2)
        with torch.no_grad():
            algorithm.prepare(actor.segment(), lambda sums: sums)
        found.append(algorithm.batch_metrics["explained_variance"])
    assert found == pytest.approx([0, 0], abs=1e-6)
