"""SAC over options: targets and losses against loops over all of them, masks, entropy and temperature, acting."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rlctl.spec.schema import Network
from rlctl_agents.algorithms import find
from rlctl_agents.algorithms.base import ActInputs, AlgorithmError, Batch
from rlctl_agents.algorithms.sac import DiscreteSac, Sac
from rlctl_agents.training.trainer import Trainer
from rlctl_agents.types.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Spaces, Tuple
from tests.algorithms.replayed import Memory
from tests.algorithms.test_twin_critics import CPU, SMALL, drawn, first_part, made

OBS = Box((3,), "float32")
SIZES = {"one": [4], "many": [3, 2, 4], "one, masks": [4], "many, masks": [3, 2, 4]}
"""Options of each choice."""
BOTH = Tuple((Box((1,), "float32", -1.0, 1.0), Discrete(2)))
MANY = Dict({"a": Discrete(3), "b": MultiDiscrete((2, 4))})
SPACES = {
    "one": Spaces(OBS, Discrete(4)),
    "many": Spaces(OBS, MANY),
    "one, masks": Spaces(OBS, Discrete(4), legal=True),
    "many, masks": Spaces(OBS, MANY, legal=True),
}
RICH = Spaces(
    Dict({"camera": Box((36, 36), "uint8", 0, 255), "speed": Box((2,), "float32")}),
    Tuple((Discrete(2), MultiDiscrete((3, 2)))),
    legal=True,
)
every_space = pytest.mark.parametrize("case", SPACES)
masked = pytest.mark.parametrize("case", [case for case in SPACES if "masks" in case])


def discrete(spaces: Spaces, **settings: Any) -> tuple[DiscreteSac, Memory]:
    """With values and preferences that differ between options, and target critics that are others than the critics."""
    one, memory = made("sac", spaces, **settings)
    assert isinstance(one, DiscreteSac)
    torch.manual_seed(0)
    with torch.no_grad():
        one.net.policy.weight.mul_(3)
        for part in (one.critics, one.target_critics):
            for bias in part.biases:
                bias.add_(torch.randn_like(bias))
    return one, memory


def begins(case: str) -> list[int]:
    """First column of each choice."""
    return [sum(SIZES[case][:at]) for at in range(len(SIZES[case]))]


def probabilities(logits: Tensor, legal: Tensor | None, case: str) -> list[dict[int, float]]:
    """Of one row: column -> probability, of the legal options of each choice; of all where none is legal."""
    found = []
    for begin, size in zip(begins(case), SIZES[case], strict=True):
        columns = [c for c in range(begin, begin + size) if legal is None or bool(legal[c])]
        columns = columns or [*range(begin, begin + size)]
        dead = legal is not None and not legal[begin : begin + size].any()
        weight = {c: 1.0 if dead else math.exp(float(logits[c])) for c in columns}
        found.append({c: one / sum(weight.values()) for c, one in weight.items()})
    return found


@pytest.mark.parametrize(
    ("action", "kind"),
    [
        (Discrete(3), DiscreteSac),
        (MultiDiscrete((3, 2)), DiscreteSac),
        (MANY, DiscreteSac),
        (Box((2,), "float32", -1.0, 1.0), Sac),
        (Tuple((Box((1,), "float32", -1.0, 1.0),)), Sac),
    ],
    ids=str,
)
def test_the_action_space_chooses_the_kind(action: Space, kind: type) -> None:
    assert type(made("sac", Spaces(OBS, action))[0]) is kind


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (BOTH, r"action\.1 is a Discrete: use sac or dqn .* ppo for both"),
        (MultiBinary(3), "there is action, a MultiBinary: .* MultiDiscrete of twos for bits"),
        (Tuple((Discrete(2), MultiBinary(3))), r"there is action\.1, a MultiBinary"),
    ],
    ids=str,
)
def test_actions_that_sac_cannot_choose_are_refused_in_words(action: Space, words: str) -> None:
    with pytest.raises(AlgorithmError, match=words):
        made("sac", Spaces(OBS, action))


class OfAUser(Sac):
    """Changes nothing."""


def test_a_users_subclass_of_sac_stays_itself() -> None:
    config, model = OfAUser.settings.model_validate(SMALL), Network.model_validate(OfAUser.settings.network)
    one = OfAUser(config, model, Spaces(OBS, Box((2,), "float32", -1.0, 1.0)), seed=0)
    assert type(one) is OfAUser
    with pytest.raises(AlgorithmError, match="derive it from DiscreteSac"):
        OfAUser(config, model, Spaces(OBS, Discrete(2)), seed=0)


@every_space
@pytest.mark.parametrize("temperature", [0.3, 5.0])
def test_targets_are_sums_over_all_options_row_by_row(case: str, temperature: float) -> None:
    one, memory = discrete(SPACES[case], temperature=temperature)
    fields = first_part(one, memory.draw(32)).fields
    with torch.no_grad():
        logits = one.net({"obs": fields["next.obs"]})
        q = one.target_critics(fields["next.obs"])
    for row in range(8):
        legal = fields["next_legal"][row] if "next_legal" in fields else None
        value = 0.0
        for choice in probabilities(logits[row], legal, case):
            for column, p in choice.items():
                low = min(float(q[0, row, column]), float(q[1, row, column]))
                value += p * (low - temperature * math.log(p))
        y = float(fields["reward"][row]) + float(fields["discount"][row]) * value
        assert float(fields["target"][row]) == pytest.approx(y, abs=1e-4)


@every_space
@pytest.mark.parametrize("temperature", [0.3, 5.0])
def test_the_loss_is_that_of_the_page_row_by_row(case: str, temperature: float) -> None:
    one, memory = discrete(SPACES[case], temperature=temperature, prioritized=True)
    part = first_part(one, memory.draw(32))
    fields = part.fields
    weight = torch.linspace(0.25, 1.0, 8)
    fields["weight"] = weight
    with torch.no_grad():
        logits = one.net({"obs": fields["seen.obs"]})
        q = one.critics(fields["seen.obs"])
    total, entropies, sizes = 0.0, [], []
    for row in range(8):
        taken = [int(column) for column in fields["column"][row]]
        for begin, size, column in zip(begins(case), SIZES[case], taken, strict=True):
            assert begin <= column < begin + size
        errors = [sum(float(q[twin, row, c]) for c in taken) - float(fields["target"][row]) for twin in (0, 1)]
        total += float(weight[row]) * 0.5 * sum(error**2 for error in errors)
        sizes.append(sum(abs(error) for error in errors) / 2)
        legal = fields["legal"][row] if "legal" in fields else None
        entropies.append(0.0)
        for choice in probabilities(logits[row], legal, case):
            for column, p in choice.items():
                low = min(float(q[0, row, column]), float(q[1, row, column]))
                total += p * (temperature * math.log(p) - low)
                entropies[-1] -= p * math.log(p)
    loss = one.loss(part)
    assert loss.total.item() == pytest.approx(total, rel=1e-4)
    assert loss.rows.item() == 8
    assert loss.metrics["entropy"].item() == pytest.approx(np.mean(entropies), abs=1e-4)
    assert loss.priorities is not None
    np.testing.assert_allclose(loss.priorities.numpy(), sizes, rtol=1e-4)


@every_space
def test_the_policys_loss_leaves_the_critics_alone(case: str) -> None:
    one, memory = discrete(SPACES[case])
    part = first_part(one, memory.draw(32))
    one.loss(part).total.backward()
    assert all(parameter.grad is not None for parameter in one.net.parameters())
    assert all(parameter.grad is None for parameter in one.target_critics.parameters())
    got = [parameter.grad for parameter in one.critics.parameters()]
    for parameter in one.critics.parameters():
        parameter.grad = None
    q = one.critics(part.fields["seen.obs"]).gather(2, part.fields["column"].expand(2, -1, -1)).sum(2)
    (0.5 * (q - part.fields["target"]).square()).sum().backward()
    for grad, parameter in zip(got, one.critics.parameters(), strict=True):
        assert grad is not None
        assert torch.allclose(grad, parameter.grad, atol=1e-4)


def test_the_policys_gradient_is_that_of_the_expectation() -> None:
    """By finite differences of the loops, in each bias of the last layer."""
    case = "many, masks"
    one, memory = discrete(SPACES[case], temperature=0.7)
    part = first_part(one, memory.draw(32))
    fields = part.fields
    one.loss(part).total.backward()
    grad = one.net.policy.bias.grad
    assert grad is not None
    with torch.no_grad():
        logits, low = one.net({"obs": fields["seen.obs"]}).double(), one.critics(fields["seen.obs"]).amin(0)

    def by_policy(moved: Tensor) -> float:
        total = 0.0
        for row in range(8):
            for choice in probabilities(logits[row] + moved, fields["legal"][row], case):
                total += sum(p * (0.7 * math.log(p) - float(low[row, c])) for c, p in choice.items())
        return total

    for column in range(sum(SIZES[case])):
        moved = torch.zeros(sum(SIZES[case]), dtype=torch.float64)
        moved[column] = 1e-4
        assert float(grad[column]) == pytest.approx((by_policy(moved) - by_policy(-moved)) / 2e-4, abs=1e-3)


def test_the_temperature_rises_where_the_entropy_is_too_low() -> None:
    for goal, rises in ((50.0, True), (-50.0, False)):
        for case in SPACES:
            one, memory = made("sac", SPACES[case], target_entropy=goal, temperature_lr=0.1)
            assert isinstance(one, DiscreteSac)
            stats = Trainer(one, policy="main", lineage=1, device=CPU).update(drawn(memory)).stats
            assert (one.temperature.log.item() > 0) is rises
            assert {"td_error", "q", "target", "policy_loss", "entropy", "alpha"} <= stats.keys()


@every_space
def test_half_of_the_largest_entropy_is_wanted(case: str) -> None:
    one, _ = discrete(SPACES[case])
    assert one.target_entropy == pytest.approx(0.5 * sum(math.log(size) for size in SIZES[case]))
    assert discrete(SPACES[case], target_entropy=0.7)[0].target_entropy == 0.7


@masked
def test_with_masks_half_of_the_largest_entropy_of_what_is_legal_is_wanted(case: str) -> None:
    one, memory = discrete(SPACES[case])
    part = first_part(one, memory.draw(32))
    wanted = 0.0
    for row in range(8):
        for begin, size in zip(begins(case), SIZES[case], strict=True):
            wanted += 0.5 * math.log(int(part.fields["legal"][row, begin : begin + size].sum()))
    loss = one.loss(part)
    loss.total.backward()
    assert one.temperature.log.grad is not None
    entropy = 8 * loss.metrics["entropy"].item()
    assert one.temperature.log.grad.item() == pytest.approx(entropy - wanted, abs=1e-4)
    told, _ = discrete(SPACES[case], target_entropy=0.7)
    assert "target_entropy" not in first_part(told, memory.draw(32)).fields, "as the spec says, whatever is legal"


def test_where_one_option_of_each_choice_is_legal_the_temperature_stays() -> None:
    one, memory = discrete(SPACES["many, masks"], temperature_lr=0.1)
    batch = drawn(memory)
    batch.fields["legal"][:] = False
    batch.fields["legal"][..., [0, 3, 5]] = True
    for name, leaf in batch.fields.items():
        if name.startswith("action"):
            leaf.zero_()
    stats = Trainer(one, policy="main", lineage=1, device=CPU).update(batch).stats
    assert stats["entropy"] == pytest.approx(0, abs=1e-6)
    assert one.temperature.log.item() == pytest.approx(0, abs=1e-6)


@masked
def test_illegal_options_add_nothing_and_have_no_gradient(case: str) -> None:
    one, memory = discrete(SPACES[case], temperature=5.0)
    part = first_part(one, memory.draw(32))
    total = one.loss(part).total.item()
    seen, legal = {"obs": part.fields["seen.obs"]}, part.fields["legal"]
    log_p = one.net.log_probs(seen, legal)
    assert (log_p.exp()[~legal] == 0).all()
    assert log_p.isfinite().all()
    original = one.critics.forward

    def raised(*inputs: Any, **more: Any) -> Tensor:
        """Values of illegal options that would be taken if they were looked at."""
        return original(*inputs, **more) + torch.where(legal, 0.0, 1e6)

    one.critics.forward = raised  # type: ignore[method-assign]
    assert one.loss(part).total.item() == pytest.approx(total, rel=1e-5)
    logits = torch.zeros(8, sum(SIZES[case]), requires_grad=True)
    one.net.forward = lambda _: logits  # type: ignore[method-assign]
    one.loss(part).total.backward()
    assert logits.grad is not None
    assert (logits.grad[~legal] == 0).all()
    assert logits.grad[legal].abs().sum() > 0


@masked
@pytest.mark.parametrize(("progress", "greedy"), [(0, False), (1, False), (1, True), (0, True)])
def test_what_is_not_legal_is_never_chosen(case: str, progress: int, greedy: bool) -> None:
    one, _ = discrete(SPACES[case])
    count, width, rng = 2000, sum(SIZES[case]), torch.Generator().manual_seed(0)
    legal = torch.rand(count, width, generator=rng) < 0.4
    for begin in begins(case):
        legal[:, begin] |= ~legal[:, begin : begin + 2].any(1)
    noise = torch.rand(count, len(SIZES[case]), generator=rng).clamp(2.0**-24, 1 - 2.0**-24)
    noise[:2] = torch.tensor([[2.0**-24], [1 - 2.0**-24]])
    obs = {"obs": torch.randn(count, 3, generator=rng)}
    inputs = ActInputs(obs, torch.zeros(count, dtype=torch.bool), {}, noise, legal, greedy, progress)
    columns = one.choices.columns(one.act(inputs).action)
    assert legal.gather(1, columns).all()


def even(noise: Tensor, **more: Any) -> ActInputs:
    """The same observation in every slot."""
    return ActInputs({"obs": torch.ones(len(noise), 3)}, torch.zeros(len(noise), dtype=torch.bool), {}, noise, **more)


@pytest.mark.parametrize("case", ["one", "many"])
def test_actions_are_even_before_anything_is_learned_then_the_policys_own(case: str) -> None:
    one, _ = discrete(SPACES[case], random_steps=100)
    noise = torch.rand(20_000, len(SIZES[case]), generator=torch.Generator().manual_seed(0))
    seen = one.net.seen(even(noise).obs)
    p = one.net.log_probs({name: leaf[:1] for name, leaf in seen.items()}, None).detach().exp()[0]
    for progress in (0, 99, 100):
        columns = one.choices.columns(one.act(even(noise, progress=progress)).action)
        for at, (begin, size) in enumerate(zip(begins(case), SIZES[case], strict=True)):
            shares = torch.bincount(columns[:, at] - begin, minlength=size) / len(noise)
            wanted = p[begin : begin + size] if progress == 100 else torch.full((size,), 1 / size)
            assert torch.allclose(shares, wanted, atol=0.02)
        assert (p - 1 / max(SIZES[case])).abs().max() > 0.05, "the policy is not even itself"
    best = one.choices.columns(one.act(even(noise[:1], greedy=True)).action)[0]
    for at, (begin, size) in enumerate(zip(begins(case), SIZES[case], strict=True)):
        assert best[at] == begin + p[begin : begin + size].argmax()


@pytest.mark.parametrize("spaces", [*SPACES.values(), RICH], ids=[*SPACES, "rich"])
def test_a_restored_learner_goes_on_bit_for_bit(spaces: Spaces) -> None:
    one, memory = made("sac", spaces, prioritized=True)
    trainer = Trainer(one, policy="main", lineage=1, device=CPU)
    batches = [drawn(memory) for _ in range(4)]
    for batch in batches[:2]:
        trainer.update(batch)
    stored = trainer.capture().pack()
    for batch in batches[2:]:
        updated = trainer.update(batch)
    assert updated.priorities is not None
    assert updated.priorities.isfinite().all()
    other, _ = made("sac", spaces, prioritized=True)
    second = Trainer(other, policy="main", lineage=2, device=CPU)
    assert second.restore(stored) == ""
    for batch in batches[2:]:
        second.update(batch)
    assert second.capture().pack() == trainer.capture().pack()


def test_images_go_through_one_net_of_the_policy_and_one_of_the_critics() -> None:
    one, memory = discrete(RICH)
    part = first_part(one, memory.draw(32))
    fields = part.fields
    with torch.no_grad():
        seen = {"obs.camera": fields["seen.obs.camera"], "obs.speed": fields["seen.obs.speed"]}
        table = one.critics(one.critics.features(seen))
    assert table.shape == (2, 8, 7)
    one.loss(part).total.backward()
    for net in (one.net, one.critics):
        assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in net.parameters())


def test_targets_follow_after_a_step_by_tau() -> None:
    one, memory = discrete(SPACES["many"], tau=0.25)
    Trainer(one, policy="main", lineage=1, device=CPU).update(drawn(memory))
    was = [x.clone() for x in one.target_critics.parameters()]
    one.after_step({})
    for old, now, goal in zip(was, one.target_critics.parameters(), one.critics.parameters(), strict=True):
        assert torch.allclose(now, old + 0.25 * (goal.detach() - old), atol=1e-6)


def test_nothing_of_a_batch_is_drawn_at_random() -> None:
    """Expectations are exact: the same minibatch has the same target and loss whatever the generator."""
    one, memory = discrete(SPACES["one"])
    batch: Batch = memory.draw(32)
    totals = []
    for seed in (0, 1):
        prepared = one.prepare(batch, lambda x: x)
        assert prepared is not None
        totals.append(one.loss(next(iter(one.minibatches(prepared, torch.Generator().manual_seed(seed))))).total.item())
    assert totals[0] == totals[1]


def test_the_name_finds_both_kinds() -> None:
    assert find("sac") is Sac
    assert DiscreteSac.settings is Sac.settings
