"""R2D2: learners compute of drawn sequences what actors recorded; targets, loss and priorities, row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rlctl.spec.schema import Network
from rlctl_agents.algorithms.base import Act, ActInputs, AlgorithmError, Batch, Delivery, below
from rlctl_agents.algorithms.r2d2 import R2d2
from rlctl_agents.experience.replay.memory import shard_settings
from rlctl_agents.experience.staging import Staging
from rlctl_agents.models.q_network import RecurrentQNetwork
from rlctl_agents.training.trainer import Trainer
from rlctl_agents.types.experience import Arrays, Ledger, ModelRef, Schema, SegmentBlock, SegmentHeader
from rlctl_agents.types.spaces import Box, Dict, Discrete, MultiDiscrete, Spaces, Tuple
from tests.algorithms.world import Actor, Anything, World
from tests.experience.replay.shards import Run
from tests.ops.test_n_step import written_out

CPU = torch.device("cpu")
T, STREAMS = 4, 6
PLAIN = Spaces(Box((3,), "float32"), Discrete(3))
MASKED = Spaces(Box((3,), "float32"), MultiDiscrete((3, 2)), legal=True)
RICH = Spaces(
    Dict({"camera": Box((36, 36), "uint8", 0, 255), "speed": Box((2,), "float32")}),
    Tuple((Discrete(2), MultiDiscrete((3, 2)))),
    legal=True,
)
SMALL = {
    "unroll_length": T, "burn_in": T, "sequence_length": 2 * T, "batch_size": 16 * 2 * T, "minibatch_size": 4 * 2 * T,
    "gamma": 0.9, "n_step": 3,
}  # fmt: skip


class Rememberer(Actor):
    """Acts with what is asked for of the slot's last decision, and sends segments as the wire has them."""

    def __init__(self, algorithm: R2d2, schema: Schema, world: World, seed: int) -> None:
        super().__init__(algorithm, schema, world, seed)
        self._last: dict[str, Tensor] = {
            name: torch.from_numpy(np.zeros((world.slots, *field.shape), field.dtype))
            for field in schema.fields
            if (name := field.name).partition(".")[0] == "action"
        }
        self._reward = torch.zeros(world.slots)
        self._row0 = 0

    def _decide(self, fields: Arrays, t: int) -> Act:
        obs, first, legal = self._look(fields, t)
        uniform = self.noise.uniform(1e-6, 1 - 1e-6, (self.world.slots, self.algorithm.noise_width))
        if t:
            self._reward = torch.from_numpy(fields["reward"][t - 1].copy())
        last = {name: leaf * ~first.view(-1, *[1] * (leaf.ndim - 1)) for name, leaf in self._last.items()}
        inputs = ActInputs(
            obs, first, self.state, torch.from_numpy(uniform.astype(np.float32)), legal, last_action=last,
            last_reward=self._reward * ~first, stream=torch.arange(self.world.slots),
        )  # fmt: skip
        act = self.algorithm.act(inputs)
        self._last = act.action
        return act

    def block(self) -> SegmentBlock:
        """The next segment of every slot."""
        made = self.segment()
        self._reward = made.fields["reward"][-1].clone()
        header = SegmentHeader(
            run="r", term=1, boot="b", sequence=0, receiver="s", model=ModelRef("main", 0, 0),
            stream=list(range(self.world.slots)), row0=[self._row0] * self.world.slots, ledger=Ledger(),
        )  # fmt: skip
        self._row0 += T
        return SegmentBlock(header, made.version.numpy(), {name: one.numpy() for name, one in made.fields.items()})


def made(spaces: Spaces = PLAIN, *, core: str = "lstm", **settings: Any) -> R2d2:
    """With values and memory that differ from row to row by much more than fp32's rounding."""
    config = R2d2.settings.model_validate({**SMALL, **settings})
    one = R2d2(config, Network(hidden=[8], core=core, width=6), spaces, seed=3)
    torch.manual_seed(5)
    with torch.no_grad():
        one.net.policy.weight.copy_(torch.randn_like(one.net.policy.weight))
        one.net.core.from_hidden.weight.mul_(2)
        for weight in one.target.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return one


def gathered(one: R2d2, spaces: Spaces = PLAIN) -> Run:
    """A shard of what the algorithm itself has done, and a learner's end of it."""
    schema = type(one).schema(one.config, Network(hidden=[8], core=_core(one), width=6), spaces)
    actor = Rememberer(one, schema, Anything(STREAMS, 1, spaces), seed=2)
    run = Run(1, agreed=schema, settings=shard_settings(one.config), columns=100, streams=STREAMS)
    for _ in range(10):
        assert run.places[0].shared.insert(actor.block())
    run.meet()
    return run


def draw(run: Run, sequences: int = 16) -> Batch:
    staging = Staging(CPU)
    memory = staging.allocate(run.drawer.schema, sequences)
    parts = run.drawer.draw(sequences)
    assert parts is not None
    run.drawer.fill(memory, parts)
    return staging.batch(memory)._replace(delivery=Delivery(np.zeros(sequences, np.int64), 1, 1))


def drawn(one: R2d2, spaces: Spaces = PLAIN) -> Batch:
    """Sequences of what it has done."""
    return draw(gathered(one, spaces))


def _core(one: R2d2) -> str:
    return "lstm" if "core.c" in one.initial_state(1) else "gru"


def prepared(one: R2d2, batch: Batch) -> Batch:
    found = one.prepare(batch, lambda sums: sums)
    assert found is not None
    return found


def learned(one: R2d2, batch: Batch) -> Tensor:
    """[sequence_length + 1, B, options] as a learner has them."""
    with torch.no_grad():
        return one._burned_in(one.net, prepared(one, batch).fields)


# -- actors and learners -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("core", "spaces", "burn_in"),
    [
        *((core, spaces, burn_in) for core in ("lstm", "gru") for spaces in (PLAIN, MASKED) for burn_in in (0, T)),
        ("lstm", PLAIN, 2 * T),
        ("gru", RICH, T),
    ],
)
def test_a_learner_computes_the_values_that_its_actor_recorded(core: str, spaces: Spaces, burn_in: int) -> None:
    one = made(spaces, core=core, burn_in=burn_in)
    batch = drawn(one, spaces)
    fields = batch.fields
    assert fields["first"][1:].any()
    assert (~fields["valid"]).any(), "episodes end in these sequences"
    rows = slice(burn_in, burn_in + 2 * T)
    q = learned(one, batch)[:-1]
    assert q.std() > 0.1
    legal = fields["legal"][rows] if spaces.legal else None
    for at in range(2 * T):
        chosen = {name: leaf[rows][at] for name, leaf in below(fields, "action").items()}
        taken = q[at].gather(1, one.choices.columns(chosen)).sum(1)
        assert torch.allclose(taken, fields["q"][rows][at], atol=1e-5, rtol=0)
        best = one.choices.best(q[at], None if legal is None else legal[at])[1]
        assert torch.allclose(best, fields["q_max"][rows][at], atol=1e-5, rtol=0)


@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_without_the_stored_memory_a_sequence_begins_with_zeros(core: str) -> None:
    one, other = made(core=core, burn_in=0), made(core=core, burn_in=0, stored_state=False)
    batch = drawn(one)
    names = set(one.initial_state(1))
    assert names == ({"core.h", "core.c"} if core == "lstm" else {"core.h"})
    for name in names:
        assert torch.equal(prepared(one, batch).fields[name], batch.fields[name])
        assert batch.fields[name].abs().max() > 0.1
        assert not prepared(other, batch).fields[name].any()
    far = (learned(one, batch) - learned(other, batch)).abs().amax(2)
    begins = batch.fields["first"].cumsum(0) > 0
    assert far[~begins].max() > 1e-2
    assert far[begins].max() == 0.0, "the memory of another episode is forgotten"


def test_the_memory_of_the_burn_in_is_of_the_weights_as_they_are() -> None:
    one = made()
    batch = drawn(one)
    before = learned(one, batch)
    with torch.no_grad():
        one.net.core.from_hidden.weight.mul_(0.5)
    after = learned(one, batch)
    no_burn_in = made(burn_in=0, sequence_length=3 * T)
    no_burn_in.net.load_state_dict(one.net.state_dict())
    assert not torch.allclose(before, after, atol=1e-3)
    assert torch.allclose(after, learned(no_burn_in, batch)[T:], atol=1e-6), "burned in from the stored memory"


def test_rewards_reach_the_network_as_they_are_learned_from_and_rescaled() -> None:
    one = made(reward_scale=0.5, reward_clip=0.4)
    batch = drawn(one)
    last = prepared(one, batch).fields["last"]
    fields = batch.fields
    seen = torch.cat([fields["last_reward"], fields["reward"][-1:]]) * ~fields["first"]
    wanted = (0.5 * seen).clamp(-0.4, 0.4)
    wanted = wanted.sign() * ((wanted.abs() + 1).sqrt() - 1) + 1e-3 * wanted
    assert torch.allclose(last[..., -1], wanted, atol=1e-6)
    codes = torch.nn.functional.one_hot(torch.cat([fields["last_action"], fields["action"][-1:]]), 3)
    assert torch.equal(last[..., :-1], codes * ~fields["first"].unsqueeze(-1))
    assert torch.equal(fields["last_action"][1:][~fields["first"][1:-1]], fields["action"][:-1][~fields["first"][1:-1]])


# -- the loss ------------------------------------------------------------------------------------------------------


def row_by_row(one: R2d2, net: RecurrentQNetwork, batch: Batch) -> Tensor:
    """[L + 1, B, options], without gradient before the rows that are learned from."""
    fields, config = batch.fields, one.config
    state = below(fields, "core")
    if not config.stored_state:
        state = {name: torch.zeros_like(leaf) for name, leaf in state.items()}
    found = []
    for row in range(len(fields["first"])):
        first = fields["first"][row]
        obs = net.seen({name: leaf[row] for name, leaf in below(fields, "obs").items()})
        if row < len(fields["reward"]):
            action = {name: fields[f"last_{name}"][row] for name in below(fields, "action")}
            reward = fields["last_reward"][row]
        else:
            action = {name: leaf[-1] for name, leaf in below(fields, "action").items()}
            reward = fields["reward"][-1]
        last = torch.cat([one.choices.codes(action), one.scaled(reward).unsqueeze(1)], 1) * ~first.unsqueeze(1)
        if row == config.burn_in:
            state = {name: leaf.detach() for name, leaf in state.items()}
        q, state = net.unroll(
            {name: leaf.unsqueeze(0) for name, leaf in obs.items()}, last.unsqueeze(0), first.unsqueeze(0), state
        )
        found.append(q[0])
    return torch.stack(found)


def h(x: float) -> float:
    return float(np.sign(x) * (np.sqrt(abs(x) + 1) - 1) + 1e-3 * x)


def h_inverse(x: float) -> float:
    return float(np.sign(x) * (((np.sqrt(1 + 4e-3 * (abs(x) + 1 + 1e-3)) - 1) / 2e-3) ** 2 - 1))


def targets(one: R2d2, batch: Batch, q: Tensor, q_target: Tensor) -> list[list[float | None]]:
    """Row by row, of those that are learned from; None: it is not."""
    fields, config = batch.fields, one.config
    rows, columns = q.shape[0] - 1, q.shape[1]
    value = np.zeros((rows + 1, columns))
    for t in range(rows + 1):
        legal = fields["legal"][config.burn_in + t] if "legal" in fields else None
        best, _ = one.choices.best(q[t] if config.double else q_target[t], legal)
        value[t] = one.choices.of(q_target[t], best).detach().numpy()
    if config.value_rescaling:
        value = np.vectorize(h_inverse)(value)
    told = {name: fields[name][config.burn_in :].numpy() for name in ("first", "terminated", "truncated")}
    clip = np.inf if config.reward_clip is None else config.reward_clip
    reward = np.clip(config.reward_scale * fields["reward"][config.burn_in :].numpy(), -clip, clip)
    found: list[list[float | None]] = []
    for t in range(rows):
        row: list[float | None] = []
        for column in range(columns):
            one_return = written_out(told, reward, value, config.gamma, config.n_step, t, column)
            if not fields["valid"][config.burn_in + t, column]:
                one_return = None
            row.append(h(one_return) if config.value_rescaling and one_return is not None else one_return)
        found.append(row)
    return found


@pytest.mark.parametrize(("core", "spaces"), [("lstm", MASKED), ("gru", PLAIN)], ids=["lstm, masked", "gru"])
@pytest.mark.parametrize(
    "settings",
    [
        {}, {"double": False, "dueling": False, "burn_in": 0}, {"value_rescaling": False, "huber": 0.5},
        {"reward_scale": 2.0, "reward_clip": 1.0, "n_step": 1, "stored_state": False}, {"n_step": 20, "burn_in": 2 * T},
    ],
    ids=str,
)  # fmt: skip
def test_loss_gradient_and_priorities_are_those_of_the_page_row_by_row(
    core: str, spaces: Spaces, settings: dict[str, Any]
) -> None:
    one = made(spaces, core=core, **settings)
    config, batch = one.config, drawn(one, spaces)
    batch.fields["weight"][:] = torch.linspace(0.2, 1.0, 16)
    loss = one.loss(prepared(one, batch))
    torch.autograd.backward(loss.total)
    got = {name: weight.grad for name, weight in one.net.named_parameters()}
    one.net.zero_grad()

    q = row_by_row(one, one.net, batch)[config.burn_in :]
    with torch.no_grad():
        q_target = row_by_row(one, one.target, batch)[config.burn_in :]
    wanted = targets(one, batch, q, q_target)
    action = {name: leaf.flatten(0, 1) for name, leaf in below(batch.fields, "action").items()}
    taken = one.choices.columns(action).view(*batch.version.shape, -1)[config.burn_in :]
    total, rows = torch.zeros(()), 0
    errors: list[list[float]] = [[] for _ in range(16)]
    for t, row in enumerate(wanted):
        for column, target in enumerate(row):
            if target is None:
                continue
            error = q[t, column, taken[t, column]].sum() - target
            size, huber = abs(error.item()), np.inf if config.huber is None else config.huber
            one_loss = error**2 / 2 if size <= huber else huber * (error.abs() - huber / 2)
            total = total + batch.fields["weight"][column] * one_loss
            rows += 1
            errors[column].append(size)
    torch.autograd.backward(total)
    assert loss.rows == rows
    assert rows < len(wanted) * 16, "rows after an end are none"
    assert loss.total.item() == pytest.approx(total.item(), rel=1e-4)
    for name, weight in one.net.named_parameters():
        assert got[name] is not None, name
        assert torch.allclose(got[name], weight.grad, atol=1e-4 * weight.grad.abs().max().item() + 1e-7), name
    priorities = [0.9 * max(of) + 0.1 * float(np.mean(of)) for of in errors]
    assert loss.priorities is not None
    assert loss.priorities.tolist() == pytest.approx(priorities, rel=1e-3, abs=1e-4)
    assert loss.metrics["td_error"].item() == pytest.approx(np.mean([size for of in errors for size in of]), rel=1e-3)


def test_no_gradient_flows_into_the_burn_in() -> None:
    one = made()
    batch = prepared(one, drawn(one))
    seen = batch.fields["seen.obs"].clone().requires_grad_()
    memory = batch.fields["core.h"].clone().requires_grad_()
    one.loss(batch._replace(fields={**batch.fields, "seen.obs": seen, "core.h": memory})).total.backward()
    assert memory.grad is None
    assert seen.grad is not None
    assert not seen.grad[:T].any()
    assert seen.grad[T].abs().max() > 1e-4
    assert not seen.grad[-1].any(), "of the row after the last the target alone is made"


def test_a_sequence_without_a_row_to_learn_from_adds_nothing_and_has_no_error() -> None:
    one = made()
    batch = prepared(one, drawn(one))
    whole = one.loss(batch)
    batch.fields["valid"][:, 3] = False
    loss = one.loss(batch)
    assert loss.priorities is not None
    assert whole.priorities is not None
    assert loss.priorities[3] == 0.0
    kept = torch.arange(16) != 3
    assert torch.equal(loss.priorities[kept], whole.priorities[kept])
    assert loss.rows < whole.rows
    batch.fields["valid"][:] = False
    assert one.loss(batch).total.item() == 0.0


@pytest.mark.parametrize(("share", "of"), [(1.0, "the largest"), (0.0, "the mean")])
def test_priority_max_is_the_share_of_the_largest_error(share: float, of: str) -> None:
    one = made()
    batch, both = prepared(one, drawn(one)), []
    for setting in (share, 0.5):
        one.config = one.config.model_copy(update={"priority_max": setting})
        found = one.loss(batch).priorities
        assert found is not None
        both.append(found)
    assert ((both[0] > both[1]) if share else (both[0] < both[1])).all(), of


def test_sequences_that_are_drawn_evenly_have_no_priorities() -> None:
    one = made(prioritized=False)
    batch = drawn(one)
    assert "q" not in batch.fields
    assert one.loss(prepared(one, batch)).priorities is None


# -- versions ------------------------------------------------------------------------------------------------------


def test_a_version_makes_a_step_of_each_minibatch_and_gives_each_sequence_its_error() -> None:
    one = made()
    batch = drawn(one)
    rows = int(batch.fields["valid"][T:].sum())
    first = one.parts(prepared(one, batch))[0]
    wanted = one.loss(first).priorities
    updated = Trainer(one, policy="main", lineage=1, device=CPU).update(batch)
    assert (updated.steps, updated.learned, updated.finite) == (4, rows, True)
    assert updated.priorities is not None
    assert updated.priorities.shape == (16,)
    assert wanted is not None
    assert torch.allclose(updated.priorities[:4], wanted, atol=1e-5)
    assert {"td_error", "q", "target"} <= updated.stats.keys()


def test_moments_are_of_the_rows_that_were_learned_from() -> None:
    one = made()
    assert one.net.observed is not None
    batch = drawn(one)
    valid = batch.fields["valid"][T:]
    wanted = batch.fields["obs"][T:-1][valid].double().mean(0)
    Trainer(one, policy="main", lineage=1, device=CPU).update(batch)
    assert torch.allclose(one.net.observed.moments[0].mean, wanted)  # type: ignore[union-attr,arg-type]


@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_a_restored_learner_goes_on_bit_for_bit(core: str) -> None:
    one, other = (made(core=core, target_every_updates=2) for _ in range(2))
    run = gathered(one)
    batches = [draw(run) for _ in range(6)]
    trainer = Trainer(one, policy="main", lineage=1, device=CPU)
    for batch in batches[:3]:
        trainer.update(batch)
    second = Trainer(other, policy="main", lineage=2, device=CPU)
    assert second.restore(trainer.capture().pack()) == ""
    for batch in batches[3:]:
        assert trainer.update(batch).stats == second.update(batch).stats


def test_what_does_not_fit_is_said() -> None:
    config = R2d2.settings.model_validate(SMALL)
    with pytest.raises(AlgorithmError, match="a recurrent Q-network has an lstm or a gru, got none"):
        R2d2(config, Network(hidden=[8]), PLAIN, seed=0)
    with pytest.raises(AlgorithmError, match="there is action, a Box: use sac or td3"):
        made(Spaces(Box((3,), "float32"), Box((1,), "float32", -1.0, 1.0)))
    with pytest.raises(AlgorithmError, match="cannot change burn_in while it runs"):
        made().set_hyperparameters({"burn_in": 0})
