"""DQN and Ape-X: targets, losses and priorities are those of docs/algorithms/dqn.md, row by row; how they explore."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rlctl.spec.schema import Network
from rlctl_agents.acting.policy_player import STREAMS_PER_LEASE, stream_ids
from rlctl_agents.algorithms import apex_dqn, find
from rlctl_agents.algorithms.base import ActInputs, AlgorithmError, Batch, Delivery
from rlctl_agents.algorithms.q_learning import QLearning
from rlctl_agents.policies.evaluate import outside_of_a_run
from rlctl_agents.roles.actor import mean_epsilon
from rlctl_agents.training.trainer import Trainer
from rlctl_agents.types.spaces import Box, Dict, Discrete, MultiDiscrete, Spaces, Tuple
from tests.algorithms.replayed import Memory, Player
from tests.algorithms.world import Anything

CPU = torch.device("cpu")
PLAIN = Spaces(Box((3,), "float32"), Discrete(3))
MASKED = Spaces(Box((3,), "float32"), MultiDiscrete((3, 2)), legal=True)
RICH = Spaces(
    Dict({"camera": Box((36, 36), "uint8", 0, 255), "speed": Box((2,), "float32")}),
    Tuple((Discrete(2), MultiDiscrete((3, 2)))),
    legal=True,
)
SMALL = {"batch_size": 32, "minibatch_size": 8, "unroll_length": 5, "gamma": 0.9}


def made(name: str, spaces: Spaces, **settings: Any) -> tuple[QLearning, Memory]:
    """An algorithm, and a replay that it has gathered."""
    kind = find(name)
    assert issubclass(kind, QLearning)
    config, model = kind.settings.model_validate({**SMALL, **settings}), Network(hidden=[8], activation="relu")
    one = kind(config, model, spaces, seed=3)
    schema = kind.schema(config, model, spaces)
    player = Player(one, schema, Anything(4, 1, spaces), seed=2)
    memory = Memory(schema, 60, 4, config.n_step, seed=4)
    for _ in range(12):
        memory.insert(player.segment())
    return one, memory


def drawn(memory: Memory, rows: int = 32) -> Batch:
    return memory.draw(rows)._replace(delivery=Delivery(np.zeros(rows, np.int64), 1, 1))


@pytest.mark.parametrize("spaces", [PLAIN, MASKED, RICH], ids=["plain", "masked", "rich"])
@pytest.mark.parametrize("settings", [{}, {"n_step": 3}, {"double": True, "dueling": True}], ids=str)
def test_targets_are_those_of_the_page_row_by_row(spaces: Spaces, settings: dict[str, Any]) -> None:
    one, memory = made("dqn", spaces, reward_scale=0.5, reward_clip=0.4, **settings)
    with torch.no_grad():
        one.target.policy.bias.add_(torch.randn_like(one.target.policy.bias))
        one.net.policy.weight.mul_(100)
    batch = memory.draw(32)
    prepared = one.prepare(batch, lambda x: x)
    assert prepared is not None
    fields = batch.fields
    after = {name: leaf[1] for name, leaf in fields.items() if name.startswith("obs")}
    with torch.no_grad():
        seen = one.net.seen(after)
        q, q_online = one.target(seen), one.net(seen)
    legal = fields["legal"][1] if spaces.legal else None
    for row in range(32):
        mask = None if legal is None else legal[row : row + 1]
        by = q_online if one.config.double else q
        best, _ = one.choices.best(by[row : row + 1], mask)
        y = 0.0
        for j in range(int(fields["steps"][row])):
            y += 0.9**j * float(np.clip(0.5 * fields["rewards"][row, j].item(), -0.4, 0.4))
        if not fields["terminated"][0, row]:
            y += 0.9 ** int(fields["steps"][row]) * one.choices.of(q[row : row + 1], best).item()
        assert prepared.fields["target"][row].item() == pytest.approx(y, abs=1e-4)


@pytest.mark.parametrize("spaces", [PLAIN, RICH], ids=["plain", "rich"])
def test_a_version_makes_a_step_of_each_minibatch_and_gives_each_row_its_error(spaces: Spaces) -> None:
    one, memory = made("apex_dqn", spaces)
    trainer = Trainer(one, policy="main", lineage=1, device=CPU)
    batch = drawn(memory)
    batch.fields["weight"][:16] = 0.0
    updated = trainer.update(batch)
    assert (updated.steps, updated.learned, updated.finite) == (4, 32, True)
    assert updated.priorities is not None
    assert updated.priorities.isfinite().all()
    assert {"td_error", "q", "target"} <= updated.stats.keys()
    fresh, _ = made("apex_dqn", spaces)
    prepared = fresh.prepare(batch, lambda x: x)
    assert prepared is not None
    first = fresh.parts(prepared)[0]
    loss = fresh.loss(first)
    assert loss.total.item() == 0.0  # its rows have no weight
    assert loss.priorities is not None
    assert torch.allclose(updated.priorities[:8], loss.priorities, atol=1e-6)


def test_actors_record_the_values_that_first_priorities_are_made_of() -> None:
    _, memory = made("apex_dqn", MASKED)
    q, q_max = memory.fields["q"], memory.fields["q_max"]
    valid = memory.fields["valid"]
    assert (q <= q_max + 1e-6)[valid].all()
    assert (q < q_max)[valid].any()
    assert "q" not in made("dqn", MASKED)[1].fields


@pytest.mark.parametrize("spaces", [MASKED, RICH], ids=["masked", "rich"])
def test_nobody_chooses_what_is_not_legal(spaces: Spaces) -> None:
    one, memory = made("dqn", spaces, epsilon_final=0.5, epsilon_initial=0.5)
    for t, slot in np.argwhere(memory.fields["valid"]):
        action = {
            name: torch.from_numpy(values[None, t, slot])
            for name, values in memory.fields.items()
            if name.startswith("action")
        }
        assert memory.fields["legal"][t, slot][one.choices.columns(action)[0]].all()


def test_the_target_network_is_copied_each_so_many_versions() -> None:
    one, memory = made("dqn", PLAIN, target_every_updates=2)
    trainer = Trainer(one, policy="main", lineage=1, device=CPU)

    def same() -> bool:
        return all(torch.equal(a, b) for a, b in zip(one.target.parameters(), one.net.parameters(), strict=True))

    kept = []
    for _ in range(4):
        trainer.update(drawn(memory))
        kept.append(same())
    assert kept == [False, True, False, True]


def test_moments_are_of_the_rows_that_were_drawn_and_change_after_a_version() -> None:
    one, memory = made("dqn", PLAIN)
    assert one.net.observed is not None
    batch = drawn(memory)
    Trainer(one, policy="main", lineage=1, device=CPU).update(batch)
    moments = one.net.observed.moments[0]
    assert torch.allclose(moments.mean, batch.fields["obs"][0].double().mean(0))  # type: ignore[union-attr,arg-type]
    assert not [name for name in one.target.state_dict() if "observed" in name]


@pytest.mark.parametrize("name", ["dqn", "apex_dqn"])
def test_a_restored_learner_goes_on_bit_for_bit(name: str) -> None:
    one, memory = made(name, PLAIN, target_every_updates=2)
    trainer = Trainer(one, policy="main", lineage=1, device=CPU)
    batches = [drawn(memory) for _ in range(6)]
    for batch in batches[:3]:
        trainer.update(batch)
    stored = trainer.capture().pack()
    other, _ = made(name, PLAIN, target_every_updates=2)
    second = Trainer(other, policy="main", lineage=2, device=CPU)
    assert second.restore(stored) == ""
    for batch in batches[3:]:
        assert trainer.update(batch).stats == second.update(batch).stats
    for module, its in zip(one.modules.values(), other.modules.values(), strict=True):
        assert all(
            torch.equal(a, b) for a, b in zip(module.state_dict().values(), its.state_dict().values(), strict=True)
        )


def explored(one: QLearning, progress: int, **more: Any) -> float:
    """Share of decisions that are not the best one, times 3/2: there are three options."""
    slots = 4000
    noise = torch.rand(slots, one.noise_width, generator=torch.Generator().manual_seed(0)) * 0.999 + 5e-4
    obs = {"obs": torch.zeros(slots, 3)}
    inputs = ActInputs(obs, torch.zeros(slots, dtype=torch.bool), {}, noise, progress=progress, **more)
    best = one.act(inputs._replace(greedy=True)).action["action"]
    return 1.5 * (one.act(inputs).action["action"] != best).float().mean().item()


def test_dqn_explores_less_the_more_it_has_learned_from() -> None:
    one, _ = made("dqn", PLAIN, epsilon_initial=0.8, epsilon_final=0.2, epsilon_steps=1000)
    assert explored(one, 0) == pytest.approx(0.8, abs=0.03)
    assert explored(one, 500) == pytest.approx(0.5, abs=0.03)
    assert explored(one, 5000) == pytest.approx(0.2, abs=0.03)


def test_apex_explores_by_stream_and_hardly_at_all_outside_of_a_run() -> None:
    one, _ = made("apex_dqn", PLAIN)
    assert explored(one, 0, stream=torch.zeros(4000, dtype=torch.int64)) == pytest.approx(0.4, abs=0.03)
    assert explored(one, 0, stream=torch.ones(4000, dtype=torch.int64)) == pytest.approx(0.4**4.5, abs=0.01)
    assert explored(one, 0) == pytest.approx(0.4**8, abs=0.003)
    assert explored(outside_of_a_run(one), 0, stream=torch.zeros(4000, dtype=torch.int64)) < 0.003
    assert mean_epsilon(one, np.array([0, 1])) == pytest.approx((0.4 + 0.4**4.5) / 2)


@pytest.mark.parametrize(("actors", "slots"), [(1, 16), (16, 1), (100, 1), (4, 8), (7, 5), (64, 16)])
def test_places_are_even_however_many_actors_with_however_many_slots(actors: int, slots: int) -> None:
    ids = np.concatenate([stream_ids(index, np.arange(slots)) for index in range(actors)])
    places = np.sort(apex_dqn.places(torch.from_numpy(ids)).numpy())
    count = len(places)
    # star discrepancy: how far the share of points below a number is from that number
    off = np.maximum(np.abs(places - np.arange(count) / count), np.abs((np.arange(count) + 1) / count - places)).max()
    assert off < 3 / count**0.8
    assert apex_dqn.STREAMS_PER_LEASE == STREAMS_PER_LEASE
    assert apex_dqn.places(torch.tensor([0, 1, 2, 3])).tolist() == [0.0, 0.5, 0.25, 0.75]


def test_what_does_not_fit_is_said() -> None:
    with pytest.raises(AlgorithmError, match="batch_size must be a multiple of minibatch_size 7"):
        made("dqn", PLAIN, minibatch_size=7)
    with pytest.raises(AlgorithmError, match="there is action, a Box: use sac or td3"):
        made("dqn", Spaces(Box((3,), "float32"), Box((1,), "float32", -1.0, 1.0)))
    one, _ = made("dqn", PLAIN)
    with pytest.raises(AlgorithmError, match="cannot change n_step while it runs"):
        one.set_hyperparameters({"n_step": 2})
    one.set_hyperparameters({"lr": 0.5, "gamma": 0.5})
    optimizer = one.make_optimizer()
    one.set_progress(0, optimizer)
    assert (one.config.gamma, optimizer.param_groups[0]["lr"]) == (0.5, 0.5)
