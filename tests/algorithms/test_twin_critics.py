"""SAC and TD3: targets and losses are those of their pages; each loss moves its own network; targets follow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rlctl.spec.schema import Network
from rlctl_agents.algorithms import find
from rlctl_agents.algorithms.base import ActInputs, AlgorithmError, Batch, Delivery
from rlctl_agents.algorithms.sac import Sac
from rlctl_agents.algorithms.td3 import Td3
from rlctl_agents.algorithms.twin_critics import TwinCriticsAlgorithm
from rlctl_agents.training.trainer import Trainer
from rlctl_agents.types.spaces import Box, Dict, Discrete, Spaces, Tuple
from tests.algorithms.replayed import Memory, Player
from tests.algorithms.world import Anything

CPU = torch.device("cpu")
PLAIN = Spaces(Box((3,), "float32"), Box((2,), "float32", (-1.0, 0.0), (1.0, 1000.0)))
RICH = Spaces(
    Dict({"camera": Box((36, 36), "uint8", 0, 255), "speed": Box((2,), "float32")}),
    Tuple((Box((1,), "float64", -2.0, 2.0), Box((2, 1), "float32", 0.0, 3.0))),
)
SMALL = {"batch_size": 32, "minibatch_size": 8, "unroll_length": 5, "gamma": 0.9, "n_step": 2}


def made(
    name: str, spaces: Spaces = PLAIN, torso: str = "auto", **settings: Any
) -> tuple[TwinCriticsAlgorithm, Memory]:
    kind = find(name)
    assert issubclass(kind, TwinCriticsAlgorithm)
    config = kind.settings.model_validate({**SMALL, **settings})
    network = {**kind.settings.network, "torso": torso, "hidden": [8], "gains": {"policy": 1.0}}
    model = Network.model_validate(network)
    one = kind(config, model, spaces, seed=3)
    schema = kind.schema(config, model, spaces)
    player = Player(one, schema, Anything(4, 1, spaces), seed=2)
    player.progress = 1
    memory = Memory(schema, 60, 4, config.n_step, seed=4)
    for _ in range(12):
        memory.insert(player.segment())
    return one, memory


def drawn(memory: Memory, rows: int = 32) -> Batch:
    return memory.draw(rows)._replace(delivery=Delivery(np.zeros(rows, np.int64), 1, 1))


def first_part(one: TwinCriticsAlgorithm, batch: Batch) -> Batch:
    prepared = one.prepare(batch, lambda x: x)
    assert prepared is not None
    return next(iter(one.minibatches(prepared, torch.Generator().manual_seed(0))))


def test_sacs_target_and_loss_are_those_of_the_page() -> None:
    one, memory = made("sac", temperature=0.3)
    assert isinstance(one, Sac)
    part = first_part(one, memory.draw(32))
    fields = part.fields
    with torch.no_grad():
        action, log_prob = one.net({"obs": fields["next.obs"]}, fields["next_noise"])
        low = one.target_critics(fields["next.obs"], action).amin(0)
        y = fields["reward"] + fields["discount"] * (low - 0.3 * log_prob)
    assert torch.allclose(fields["target"], y, atol=1e-5)
    loss = one.loss(part)
    with torch.no_grad():
        q = one.critics(fields["seen.obs"], fields["units"])
        action, log_prob = one.net({"obs": fields["seen.obs"]}, fields["noise"])
        by_policy = 0.3 * log_prob - one.critics(fields["seen.obs"], action).amin(0)
        total = 0.5 * (q - y).square().sum() + by_policy.sum()
    assert loss.total.item() == pytest.approx(total.item(), rel=1e-5)
    assert loss.rows.item() == 8


@pytest.mark.parametrize("name", ["sac", "td3"])
def test_the_policys_loss_leaves_the_critics_alone(name: str) -> None:
    one, memory = made(name, **({"policy_every": 1} if name == "td3" else {}))
    part = first_part(one, memory.draw(32))
    one.loss(part).total.backward()
    got = [parameter.grad for parameter in one.critics.parameters()]
    assert all(parameter.grad is not None for parameter in one.net.parameters())
    for parameter in one.critics.parameters():
        parameter.grad = None
    q = one.critics(part.fields["seen.obs"], part.fields["units"])
    (0.5 * (q - part.fields["target"]).square()).sum().backward()
    for grad, parameter in zip(got, one.critics.parameters(), strict=True):
        assert grad is not None
        assert torch.allclose(grad, parameter.grad, atol=1e-4)


def test_the_temperature_rises_where_the_entropy_is_too_low() -> None:
    for goal, rises in ((50.0, True), (-50.0, False)):
        one, memory = made("sac", target_entropy=goal, temperature_lr=0.1)
        assert isinstance(one, Sac)
        stats = Trainer(one, policy="main", lineage=1, device=CPU).update(drawn(memory)).stats
        assert (one.temperature.log.item() > 0) is rises
        assert {"td_error", "q", "target", "policy_loss", "entropy", "alpha"} <= stats.keys()
    assert made("sac")[0].target_entropy == -2.0  # type: ignore[attr-defined]


@pytest.mark.parametrize("torso", ["Frozen", "AllFrozen"])
@pytest.mark.parametrize("name", ["sac", "td3"])
def test_what_is_frozen_of_a_torso_stays_and_the_rest_learns(name: str, torso: str) -> None:
    one, memory = made(name, torso=f"tests.acting.owned_nets:{torso}")
    trainer = Trainer(one, policy="main", lineage=1, device=CPU)
    was = {key: value.detach().clone() for key, value in one.net.named_parameters()}
    for _ in range(2):
        trainer.update(drawn(memory))
    same = {key for key, value in one.net.named_parameters() if torch.equal(value, was[key])}
    bias = set() if torso == "Frozen" else {"torso.layer.bias"}
    spare = {"torso.spare.weight", "torso.spare.bias"} if torso == "Frozen" else set()
    assert same == {"torso.layer.weight"} | bias | spare


def test_td3s_target_has_clipped_noise_and_keeps_to_the_bounds() -> None:
    one, memory = made("td3", target_noise=10.0, target_noise_clip=0.3)
    assert isinstance(one, Td3)
    fields = first_part(one, memory.draw(32)).fields
    with torch.no_grad():
        noise = (10 * fields["next_noise"]).clamp(-0.3, 0.3)
        action = (one.target_policy({"obs": fields["next.obs"]}) + noise).clamp(-1, 1)
        y = fields["reward"] + fields["discount"] * one.target_critics(fields["next.obs"], action).amin(0)
    assert torch.allclose(fields["target"], y, atol=1e-5)


def test_td3_moves_policy_and_targets_in_every_second_step_alone() -> None:
    one, memory = made("td3", tau=0.5)
    assert isinstance(one, Td3)
    trainer = Trainer(one, policy="main", lineage=1, device=CPU)
    seen: list[tuple[bool, bool, bool]] = []

    def state() -> list[list[torch.Tensor]]:
        return [[x.detach().clone() for x in part.parameters()] for part in (one.critics, one.net, one.target_critics)]

    before, after_step = [state()], one.after_step

    def spy(means: Any) -> None:
        after_step(means)
        now = state()
        seen.append(tuple(not all(map(torch.equal, a, b)) for a, b in zip(before[-1], now, strict=True)))  # type: ignore[arg-type]
        before.append(now)

    one.after_step = spy  # type: ignore[method-assign]
    trainer.update(drawn(memory))
    assert seen == [(True, False, False), (True, True, True)] * 2


@pytest.mark.parametrize("name", ["sac", "td3"])
def test_targets_follow_after_a_step_by_tau_on_a_learner_without_rows_too(name: str) -> None:
    one, memory = made(name, tau=0.25)
    trainer = Trainer(one, policy="main", lineage=1, device=CPU)
    trainer.update(drawn(memory))
    was = [x.clone() for x in one.target_critics.parameters()]
    one.prepare(None, lambda x: x)
    for _ in range(one.moving):
        one.after_step({})
    for old, now, goal in zip(was, one.target_critics.parameters(), one.critics.parameters(), strict=True):
        assert torch.allclose(now, old + 0.25 * (goal.detach() - old), atol=1e-6)


@pytest.mark.parametrize("name", ["sac", "td3"])
@pytest.mark.parametrize("spaces", [PLAIN, RICH], ids=["plain", "rich"])
def test_a_restored_learner_goes_on_bit_for_bit(name: str, spaces: Spaces) -> None:
    one, memory = made(name, spaces, prioritized=True)
    trainer = Trainer(one, policy="main", lineage=1, device=CPU)
    batches = [drawn(memory) for _ in range(4)]
    for batch in batches[:2]:
        trainer.update(batch)
    stored = trainer.capture().pack()
    for batch in batches[2:]:
        updated = trainer.update(batch)
    assert updated.priorities is not None
    assert updated.priorities.isfinite().all()
    other, _ = made(name, spaces, prioritized=True)
    second = Trainer(other, policy="main", lineage=2, device=CPU)
    assert second.restore(stored) == ""
    for batch in batches[2:]:
        second.update(batch)
    assert second.capture().pack() == trainer.capture().pack()


@pytest.mark.parametrize("name", ["sac", "td3"])
def test_actions_keep_to_their_bounds_and_are_even_before_anything_is_learned(name: str) -> None:
    one, _ = made(name)
    noise = torch.rand(3000, 2, generator=torch.Generator().manual_seed(0))
    inputs = ActInputs({"obs": torch.zeros(3000, 3)}, torch.zeros(3000, dtype=torch.bool), {}, noise)
    first = one.act(inputs).action["action"]
    assert torch.allclose(first, torch.tensor([-1.0, 0.0]) + torch.tensor([2.0, 1000.0]) * noise, atol=1e-3)
    for progress, greedy in ((1, False), (1, True), (0, True)):
        action = one.act(inputs._replace(progress=progress, greedy=greedy)).action["action"]
        assert (action >= torch.tensor([-1.0, 0.0])).all()
        assert (action <= torch.tensor([1.0, 1000.0])).all()
        assert greedy == (action.std(0).max().item() == 0)


def test_learning_rates_of_groups_follow_one_schedule() -> None:
    schedule = {"agent_steps": 100, "final": 0.0}
    one, _ = made("sac", lr=0.1, critic_lr=0.2, temperature_lr=0.4, lr_schedule=schedule)
    optimizer = one.make_optimizer()
    one.set_progress(50, optimizer)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.05, 0.1, 0.2])
    assert one.scheduled == pytest.approx({"lr": 0.05})


def test_what_does_not_fit_is_said() -> None:
    with pytest.raises(AlgorithmError, match="minibatch_size x policy_every = 8 x 3, got 32"):
        made("td3", policy_every=3)
    with pytest.raises(AlgorithmError, match="action is a Discrete: use sac or dqn"):
        made("td3", Spaces(Box((3,), "float32"), Discrete(2)))
