"""Action distributions against torch.distributions, and against what they are asked for."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from rlctl.spec.schema import Gaussian
from rlctl_agents.models.distributions import LARGEST_MEAN, ActionDistribution, bent, log_slope
from rlctl_agents.models.inputs import ModelError
from rlctl_agents.types.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple

EVERYTHING = Dict(
    {
        "jump": MultiBinary(3),
        "steer": Box((2, 2), "float32", -2.0, 2.0),
        "turn": Tuple((Discrete(3), MultiDiscrete((2, 5)))),
        "zoom": Box((), "float64"),
    }
)


def made(space: Space, **gaussian: Any) -> ActionDistribution:
    return ActionDistribution(space, Gaussian.model_validate(gaussian))


def random_params(distribution: ActionDistribution, *shape: int, seed: int = 0) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    """Those of a Gaussian within what is not bent."""
    return torch.randn(*shape, distribution.outputs + distribution.free, generator=random).clamp(max=1.0)


def uniforms(*shape: int, seed: int = 1) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, generator=random).clamp(2.0**-24, 1 - 2.0**-24)


def reference(space: Space, params: Tensor) -> torch.distributions.Distribution:
    """The same distribution from torch, for a lone leaf."""
    match space:
        case Discrete():
            return torch.distributions.Categorical(logits=params)
        case MultiBinary():
            return torch.distributions.Independent(torch.distributions.Bernoulli(logits=params), 1)
        case Box():
            mean, log_std = params.chunk(2, -1)
            limits = [(-1.0, 1.0) if low is None or high is None else (low, high) for low, high in space.bounds()]
            half = torch.tensor([(high - low) / 2 for low, high in limits])
            middle = torch.tensor([(high + low) / 2 for low, high in limits])
            return torch.distributions.Independent(
                torch.distributions.Normal(middle + half * mean, half * log_std.exp()), 1
            )
    raise AssertionError(space)


EACH_ITS_OWN = Box((2,), "float32", (-1.0, 0.0), (1.0, 1000.0))
PARTLY_BOUNDED = Box((2, 2), "float32", (-3.0, 0.0, None, None), (5.0, None, 1.0, None))
LONE: list[Space] = [
    Discrete(4), MultiBinary(3), Box((3,), "float32"), Box((2,), "float32", -2.0, 4.0), EACH_ITS_OWN,
]  # fmt: skip


@pytest.mark.parametrize("space", LONE, ids=str)
def test_log_probability_and_entropy_equal_those_of_torch(space: Space) -> None:
    distribution = made(space)
    params = random_params(distribution, 5, 7)
    action, _ = distribution.sample(params, uniforms(5, 7, distribution.noise_width), None)
    got, torchs = distribution.score(params, action, None), reference(space, params)
    torch.testing.assert_close(got.log_prob, torchs.log_prob(action["action"].float()), rtol=1e-5, atol=1e-5)
    assert got.entropy.shape == (5, 7)
    torch.testing.assert_close(got.entropy, torchs.entropy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("space", [*LONE, PARTLY_BOUNDED, MultiDiscrete((3, 2)), EVERYTHING], ids=str)
def test_recorded_log_probability_is_reproduced_from_the_recorded_action(space: Space) -> None:
    distribution = made(space)
    params = random_params(distribution, 64)
    for action, log_prob in (
        distribution.sample(params, uniforms(64, distribution.noise_width), None),
        distribution.mode(params, None),
    ):
        torch.testing.assert_close(distribution.score(params, action, None).log_prob, log_prob, rtol=0, atol=5e-6)


def test_joint_of_a_tree_is_the_sum_of_its_leaves() -> None:
    distribution = made(EVERYTHING)
    assert [name for name, _ in distribution.leaves] == [
        "action.jump", "action.steer", "action.turn.0", "action.turn.1", "action.zoom",
    ]  # fmt: skip
    assert (distribution.outputs, distribution.free, distribution.noise_width) == (
        3 + 4 + 3 + 7 + 1,
        5,
        3 + 4 + 1 + 2 + 1,
    )
    params = random_params(distribution, 6)
    action, log_prob = distribution.sample(params, uniforms(6, distribution.noise_width), None)
    assert {name: (tuple(a.shape), a.dtype) for name, a in action.items()} == {
        "action.jump": ((6, 3), torch.int8),
        "action.steer": ((6, 2, 2), torch.float32),
        "action.turn.0": ((6,), torch.int64),
        "action.turn.1": ((6, 2), torch.int64),
        "action.zoom": ((6,), torch.float64),
    }
    logits, free = params[:, :18], params[:, 18:]
    score = distribution.score(params, action, None)
    parts = [
        reference(MultiBinary(3), logits[:, :3]),
        reference(Box((4,), "float32", -2.0, 2.0), torch.cat([logits[:, 3:7], free[:, :4]], 1)),
        reference(Discrete(3), logits[:, 7:10]),
        reference(Discrete(2), logits[:, 10:12]),
        reference(Discrete(5), logits[:, 12:17]),
        reference(Box((1,), "float32"), torch.cat([logits[:, 17:], free[:, 4:]], 1)),
    ]
    values = [
        action["action.jump"].float(), action["action.steer"].flatten(1), action["action.turn.0"],
        *action["action.turn.1"].unbind(1), action["action.zoom"].float().unsqueeze(1),
    ]  # fmt: skip
    expected = sum(part.log_prob(value) for part, value in zip(parts, values, strict=True))
    torch.testing.assert_close(score.log_prob, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(log_prob, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(score.entropy, sum(part.entropy() for part in parts), rtol=1e-5, atol=1e-5)


def test_categorical_samples_have_the_probabilities_of_the_logits() -> None:
    distribution = made(Discrete(3))
    params = torch.tensor([0.5, -1.0, 1.5]).expand(100_000, 3)
    evenly = ((torch.arange(100_000) + 0.5) / 100_000).unsqueeze(1)
    counts = torch.bincount(distribution.sample(params, evenly, None)[0]["action"], minlength=3)
    torch.testing.assert_close(counts / 1e5, params[0].softmax(0), rtol=0, atol=2e-5)


def test_bits_have_the_probabilities_of_the_logits() -> None:
    distribution = made(MultiBinary(1))
    evenly = ((torch.arange(100_000) + 0.5) / 100_000).unsqueeze(1)
    bits = distribution.sample(torch.full((100_000, 1), -0.8), evenly, None)[0]["action"]
    assert abs(bits.float().mean().item() - torch.tensor(-0.8).sigmoid().item()) < 2e-5


def test_gaussian_samples_have_mean_and_deviation_in_the_units_of_the_space() -> None:
    distribution = made(Box((1,), "float32", 0.0, 10.0))
    params = torch.tensor([0.2, math.log(0.5)]).expand(100_000, 2)
    evenly = ((torch.arange(100_000) + 0.5) / 100_000).unsqueeze(1)
    action = distribution.sample(params, evenly, None)[0]["action"]
    assert abs(action.mean().item() - (5 + 5 * 0.2)) < 1e-3
    assert abs(action.std().item() - 5 * 0.5) < 1e-2


def test_entries_of_a_gaussian_have_units_of_their_own() -> None:
    distribution = made(EACH_ITS_OWN)
    params = torch.tensor([[0.2, 0.2, 0.0, 0.0]])
    assert distribution.mode(params, None)[0]["action"].tolist() == [[pytest.approx(0.2), pytest.approx(600)]]
    one_deviation = torch.full((1, 2), 0.8413447)
    assert distribution.sample(params, one_deviation, None)[0]["action"].tolist() == [
        [pytest.approx(1.2), pytest.approx(1100)]
    ]


def test_an_entry_without_both_bounds_is_in_plain_units_whatever_the_others_are() -> None:
    distribution = made(PARTLY_BOUNDED)
    action, _ = distribution.mode(torch.tensor([[0.5, 0.5, 0.5, 0.5, 0.0, 0.0, 0.0, 0.0]]), None)
    assert action["action"].tolist() == [[[3.0, 0.5], [0.5, 0.5]]]


@pytest.mark.parametrize(("low", "high"), [(5.0, 5.0), (0.0, 1e-45), (-1e39, 1e39)])
def test_bounds_that_give_no_unit_give_finite_numbers(low: float, high: float) -> None:
    distribution = made(Box((2,), "float32", (-1.0, low), (1.0, high)))
    action, log_prob = distribution.sample(torch.zeros(3, 4), uniforms(3, 2), None)
    assert action["action"].isfinite().all()
    assert log_prob.isfinite().all()


def test_units_follow_the_network_to_its_device_and_stay_out_of_its_weights() -> None:
    distribution = made(EVERYTHING)
    assert not distribution.state_dict()
    assert all(buffer.is_meta for buffer in distribution.to("meta").buffers())
    assert len(list(distribution.buffers())) == 4


@pytest.mark.parametrize("extreme", [0.0, 2.0**-25, 1 - 2.0**-24, 1.0])
def test_extreme_noise_gives_an_action_inside_the_space_and_finite_numbers(extreme: float) -> None:
    distribution = made(EVERYTHING)
    params = 5 * random_params(distribution, 1000)
    action, log_prob = distribution.sample(params, torch.full((1000, distribution.noise_width), extreme), None)
    assert action["action.turn.0"].min() >= 0
    assert action["action.turn.0"].max() <= 2
    assert (action["action.turn.1"] < torch.tensor([2, 5])).all()
    assert action["action.steer"].isfinite().all()
    assert log_prob.isfinite().all()


@pytest.mark.parametrize("extreme", [2.0**-25, 0.5, 1 - 2.0**-24, 1.0])
def test_an_illegal_action_is_never_taken(extreme: float) -> None:
    distribution = made(Discrete(6))
    legal = torch.rand(2000, 6, generator=torch.Generator().manual_seed(2)) < 0.3
    legal[:, 3] |= ~legal.any(1)
    params = 20 * random_params(distribution, 2000)
    for action, log_prob in (
        distribution.sample(params, torch.full((2000, 1), extreme), legal),
        distribution.mode(params, legal),
    ):
        chosen = action["action"]
        assert legal.gather(1, chosen.unsqueeze(1)).all()
        masked = torch.where(legal, params, -math.inf).log_softmax(-1)
        torch.testing.assert_close(log_prob, masked.gather(1, chosen.unsqueeze(1)).squeeze(1))


def test_entropy_under_a_mask_counts_legal_actions_only() -> None:
    distribution = made(Discrete(4))
    legal = torch.tensor([[True, False, True, False], [False, False, True, False]])
    score = distribution.score(torch.zeros(2, 4), {"action": torch.tensor([0, 2])}, legal)
    torch.testing.assert_close(score.entropy, torch.tensor([math.log(2), 0.0]))


def test_a_mask_of_several_choices_is_cut_in_the_order_of_the_leaves() -> None:
    distribution = made(Dict({"b": Discrete(3), "a": MultiDiscrete((2, 4)), "c": Box((1,), "float32")}))
    masks = [torch.tensor([True, False]), torch.tensor([False, True, False, True]), torch.tensor([False, True, True])]
    legal = torch.cat(masks).expand(500, -1)
    noise = torch.rand(500, distribution.noise_width, generator=torch.Generator().manual_seed(1))
    action, log_prob = distribution.sample(torch.zeros(500, distribution.outputs + distribution.free), noise, legal)
    assert set(action["action.a"][:, 0].tolist()) == {0}
    assert set(action["action.a"][:, 1].tolist()) == {1, 3}
    assert set(action["action.b"].tolist()) == {1, 2}
    score = distribution.score(torch.zeros(500, distribution.outputs + distribution.free), action, legal)
    torch.testing.assert_close(score.log_prob, log_prob)
    free = distribution.score(torch.zeros(1, distribution.outputs + distribution.free),
                              {name: value[:1] for name, value in action.items()}, None)  # fmt: skip
    torch.testing.assert_close(free.entropy[0] - score.entropy[0], torch.tensor(math.log(2 * 2 * 1.5)))
    best, _ = distribution.mode(torch.zeros(1, distribution.outputs + distribution.free), legal[:1])
    assert (best["action.a"].tolist(), best["action.b"].tolist()) == ([[0, 1]], [1])


def test_nothing_legal_gives_numbers_and_gradients_all_the_same() -> None:
    distribution = made(Discrete(3))
    params = torch.randn(2, 3, requires_grad=True)
    score = distribution.score(params, {"action": torch.tensor([0, 1])}, torch.zeros(2, 3, dtype=torch.bool))
    (gradient,) = torch.autograd.grad((score.log_prob + score.entropy).sum(), params)
    assert score.log_prob.isfinite().all()
    assert gradient.isfinite().all()


def test_mode_is_the_likeliest_action() -> None:
    distribution = made(Tuple((Discrete(3), MultiBinary(2), Box((1,), "float32", -2.0, 2.0))))
    params = torch.tensor([[0.1, 0.3, 0.2, 1.0, -1.0, 0.25, 9.0]])
    action, _ = distribution.mode(params, None)
    assert action["action.0"].tolist() == [1]
    assert action["action.1"].tolist() == [[1, 0]]
    assert action["action.2"].tolist() == [[0.5]]


def test_gradient_of_the_score_is_that_of_finite_differences() -> None:
    distribution = made(EVERYTHING)
    params = random_params(distribution, 2)
    action, _ = distribution.sample(params, uniforms(2, distribution.noise_width), None)

    def both(params: Tensor) -> Tensor:
        return torch.cat(tuple(distribution.score(params, action, None)))

    assert torch.autograd.gradcheck(both, params.double().requires_grad_())


def test_a_box_of_integers_is_refused_as_an_action() -> None:
    with pytest.raises(ModelError, match="use MultiDiscrete"):
        made(Box((2,), "int32"))


BOUNDED: list[Box] = [Box((2, 3), "float32", -2.0, 4.0), EACH_ITS_OWN, Box((), "float64", -1e-3, 1e3)]


def squashed(space: Box, params: Tensor) -> torch.distributions.Distribution:
    """The same distribution from torch."""
    torchs = torch.distributions
    mean, log_std = params.chunk(2, -1)
    bounds = torch.tensor(list(space.bounds()), dtype=params.dtype)
    low, high = bounds[:, 0], bounds[:, 1]
    turns = [torchs.TanhTransform(), torchs.AffineTransform((low + high) / 2, (high - low) / 2)]
    one = torchs.TransformedDistribution(torchs.Normal(mean, log_std.exp()), turns)  # type: ignore[arg-type]
    return torchs.Independent(one, 1)


@pytest.mark.parametrize("std", ["free", "network"])
@pytest.mark.parametrize("space", BOUNDED, ids=str)
def test_density_of_a_squashed_gaussian_equals_that_of_torch(space: Box, std: str) -> None:
    distribution = made(space, squash=True, std=std)
    params = 0.4 * random_params(distribution, 5, 7)  # where tanh in float32 still tells samples apart
    action, log_prob = distribution.sample(params, uniforms(5, 7, distribution.noise_width), None)
    flat = action["action"].reshape(5, 7, -1).double()
    expected = squashed(space, params.double()).log_prob(flat)
    torch.testing.assert_close(log_prob.double(), expected, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(distribution.score(params, action, None).log_prob, log_prob, rtol=0, atol=5e-6)
    exact = distribution.double().score(params.double(), {"action": flat.reshape(5, 7, *space.shape)}, None)
    torch.testing.assert_close(exact.log_prob, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("mean", "log_std"), [(0.0, 0.0), (1.5, -1.0), (-2.0, -4.0), (0.3, 1.0), (3.5, 0.5)])
def test_entropy_of_a_squashed_gaussian_is_the_mean_of_its_log_density_with_a_gradient(
    mean: float, log_std: float
) -> None:
    distribution = made(Box((1,), "float32", -2.0, 2.0), squash=True).double()
    params = torch.tensor([[mean, log_std]], dtype=torch.float64, requires_grad=True)
    entropy = distribution.score(params, {"action": torch.zeros(1, 1)}, None).entropy
    evenly = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    normal = math.sqrt(2) * torch.erfinv(2 * evenly - 1)
    at = params[:, :1] + params[:, 1:].exp() * normal  # by the reparametrised sample
    expected = (params[:, 1] + 0.5 * math.log(2 * math.pi * math.e) + math.log(2)) + log_slope(at).mean(-1)
    torch.testing.assert_close(entropy, expected, rtol=0, atol=0.02)
    (got,), (wanted,) = (torch.autograd.grad(one.sum(), params, retain_graph=True) for one in (entropy, expected))
    torch.testing.assert_close(got, wanted, rtol=0.02, atol=0.05)


def test_squashed_actions_lie_within_the_bounds_and_greedy_ones_are_those_of_the_mean() -> None:
    distribution = made(EACH_ITS_OWN, squash=True)
    params = torch.tensor([[0.2, -0.4, 0.0, 0.0]])
    expected = [pytest.approx(math.tanh(0.2)), pytest.approx(500 + 500 * math.tanh(-0.4))]
    assert distribution.mode(params, None)[0]["action"].tolist() == [expected]
    for extreme in (0.0, 2.0**-25, 1 - 2.0**-24, 1.0):
        wild = 50 * random_params(distribution, 1000)
        action, log_prob = distribution.sample(wild, torch.full((1000, 2), extreme), None)
        assert (action["action"] >= torch.tensor([-1.0, 0.0])).all()
        assert (action["action"] <= torch.tensor([1.0, 1000.0])).all()
        assert log_prob.isfinite().all()
        torch.testing.assert_close(distribution.score(wild, action, None).log_prob, log_prob, rtol=0, atol=5e-6)


def test_log_slope_does_not_cancel_where_tanh_is_flat() -> None:
    x = torch.tensor([-40.0, -9.0, -1.0, 0.0, 1.0, 9.0, 40.0])
    expected = torch.log1p(-x.double()[2:5].tanh().square())
    torch.testing.assert_close(log_slope(x)[2:5], expected.float(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(log_slope(x)[[0, 1, 5, 6]], 2 * math.log(2) - 2 * x[[0, 1, 5, 6]].abs())


@pytest.mark.parametrize("low", [-5.0, -1.0])
def test_what_is_bent_stays_within_its_bounds_and_keeps_a_gradient(low: float) -> None:
    x = torch.tensor([-1e4, -20.0, low + 0.5, 0.0, 0.9, 1.5, 20.0, 1e4], requires_grad=True)
    y = bent(x, low, 2.0)
    assert torch.equal(y[3:5], x[3:5])
    assert ((y > low) & (y < 2.0)).all()
    assert (y.diff() > 0).all()
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert (gradient[3:5] == 1).all()
    assert (gradient > 1e-9).all()
    assert gradient[6] > 1e-3, "not dead far out"


@pytest.mark.parametrize("squash", [False, True])
def test_log_deviations_are_bounded_and_start_where_they_are_told_to(squash: bool) -> None:
    space = Box((1,), "float32", -1.0, 1.0)
    distribution = made(space, squash=squash, log_std_min=-3.0, log_std_max=1.0, log_std_init=-0.5)
    zeros = {"action": torch.zeros(1, 1)}
    (kind,) = distribution.modules_of_leaves
    for raw, expected in ((0.0, -0.5), (1e9, 1.0), (-1e9, -3.0)):
        mean, log_std = kind._moments(torch.tensor([[1e9, raw]]))  # type: ignore[operator]
        assert log_std.item() == pytest.approx(expected)
        assert mean.item() == (LARGEST_MEAN if squash else 1e9)
        assert distribution.score(torch.tensor([[0.0, raw]]), zeros, None).entropy.isfinite().all()


def test_the_network_gives_deviations_where_it_is_asked_to() -> None:
    distribution = made(EVERYTHING, std="network")
    assert (distribution.outputs, distribution.free) == (3 + 8 + 3 + 7 + 2, 0)
    params = random_params(distribution, 6)
    action, _ = distribution.sample(params, uniforms(6, distribution.noise_width), None)
    steer = torch.distributions.Normal(2 * params[:, 3:7], 2 * params[:, 7:11].exp())
    parts = distribution._parts(params)
    assert torch.equal(parts[1], params[:, 3:11])
    kind = distribution.leaves[1][1]
    got = kind.score(parts[1], action["action.steer"], None).log_prob
    torch.testing.assert_close(got, steer.log_prob(action["action.steer"].flatten(1)).sum(-1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "space", [Box((2,), "float32"), PARTLY_BOUNDED, Box((2,), "float32", (-1.0, 5.0), (1.0, 5.0))], ids=str
)
def test_an_entry_without_bounds_is_refused_where_it_is_to_be_squashed(space: Box) -> None:
    with pytest.raises(
        ModelError, match=r"squash needs two different finite bounds for every entry, and action\.b, Box"
    ):
        made(Dict({"a": Discrete(2), "b": space}), squash=True)
