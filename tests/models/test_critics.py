"""Twin critics are two mlps; the squashed Gaussian has an exact density and gradient; actions keep to their bounds."""

from __future__ import annotations

import math

import pytest
import torch

from rlctl.spec.schema import Network
from rlctl_agents.models.critics import Bounds, SquashedPolicy, TanhPolicy, TwinCritics, _Squashed, normals
from rlctl_agents.models.distributions import bent
from rlctl_agents.models.inputs import ModelError
from rlctl_agents.types.spaces import Box, Dict, Discrete, Spaces

SPACES = Spaces(Box((3,), "float32"), Box((2,), "float32", (-1.0, 0.0), (1.0, 1000.0)))


@pytest.mark.parametrize("layer_norm", [False, True])
def test_twin_critics_are_two_mlps(layer_norm: bool) -> None:
    network = Network(hidden=[8, 6], activation="relu", layer_norm=layer_norm)
    critics = TwinCritics(SPACES, network, 2, seed=0)
    seen, action = {"obs": torch.randn(5, 3)}, torch.rand(5, 2)
    q = critics(critics.features(seen), action)
    for twin in range(2):
        x = torch.cat([seen["obs"], action], 1)
        for at, weight in enumerate(critics.weights):
            x = x @ weight[twin] + critics.biases[at][twin]
            if at < 2:
                x = torch.relu(torch.nn.functional.layer_norm(x, x.shape[1:]) if layer_norm else x)
        assert torch.allclose(q[twin], x.squeeze(1), atol=1e-5)
    assert not torch.allclose(q[0], q[1])


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("hidden", [[], [8], [8, 6, 7]])
@pytest.mark.parametrize("options", [None, 3])
def test_gradients_of_critics_are_those_of_the_layers(activation: str, hidden: list[int], options: int | None) -> None:
    critics = TwinCritics(SPACES, Network(hidden=hidden, activation=activation), 2, options=options, seed=0)
    x, action = torch.randn(5, 3, requires_grad=True), torch.rand(5, 2, requires_grad=True)
    inputs = torch.cat([x, action], 1).expand(2, -1, -1)
    for at, (weight, bias) in enumerate(zip(critics.weights, critics.biases, strict=True)):
        inputs = torch.baddbmm(bias, inputs, weight)
        if at < len(hidden):
            inputs = inputs.relu() if activation == "relu" else inputs.tanh()
    of = (x, action, *critics.parameters())
    found, expected = (torch.autograd.grad(one.square().sum(), of) for one in (critics(x, action), inputs))
    assert all(torch.allclose(one, other, atol=1e-5) for one, other in zip(found, expected, strict=True))


def test_frozen_critics_pass_the_gradient_to_the_action_alone() -> None:
    critics = TwinCritics(SPACES, Network(hidden=[8]), 2, seed=0)
    action = torch.rand(5, 2, requires_grad=True)
    critics(torch.randn(5, 3), action, frozen=True).sum().backward()
    assert action.grad is not None
    assert action.grad.abs().sum() > 0
    assert all(one.grad is None for one in critics.parameters())


def test_squashed_density_is_that_of_the_change_of_variables() -> None:
    torch.manual_seed(0)
    params, normal = torch.randn(50, 4, dtype=torch.float64) * 3, torch.randn(50, 2, dtype=torch.float64)
    action, log_prob = _Squashed.apply(params, normal, 0.3, -5.0, 2.0)
    mean, log_std = bent(params[:, :2], -5, 5), bent(params[:, 2:] + 0.3, -5, 2)
    gaussian = torch.distributions.Normal(mean, log_std.exp())
    before = mean + log_std.exp() * normal
    assert torch.allclose(action, before.tanh())
    expected = gaussian.log_prob(before).sum(1) - (1 - before.tanh().square()).clamp(min=1e-300).log().sum(1)
    near = before.abs().max(1).values < 8  # beyond, 1 - tanh^2 has no digits left
    assert torch.allclose(log_prob[near], expected[near], atol=1e-6)
    assert log_prob.isfinite().all()


def test_squashed_density_integrates_to_one() -> None:
    params = torch.tensor([[0.4, -0.5]], dtype=torch.float64)
    normal = torch.linspace(-12, 12, 20001, dtype=torch.float64).unsqueeze(1)
    action, log_prob = _Squashed.apply(params.expand(20001, 2), normal, 0.0, -5.0, 2.0)
    assert torch.trapezoid(log_prob.exp(), action.squeeze(1)).item() == pytest.approx(1.0, abs=1e-6)


def test_squashed_gradient_is_right_where_parameters_are_bent_too() -> None:
    torch.manual_seed(0)
    params = torch.randn(20, 4, dtype=torch.float64) * 4
    params.requires_grad_(True)
    normal = torch.randn(20, 2, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda one: _Squashed.apply(one, normal, 0.3, -5.0, 2.0), (params,))


def test_actions_go_to_their_bounds_and_back() -> None:
    bounds = Bounds(Dict({"a": Box((2, 1), "float64", -2.0, 4.0), "b": Box((), "float32", 0.0, 10.0)}))
    action = bounds.to_action(torch.tensor([[-1.0, 0.0, 1.0]]))
    assert action["action.a"].tolist() == [[[-2.0], [1.0]]]
    assert action["action.a"].dtype == torch.float64
    assert action["action.b"].tolist() == [10.0]
    assert torch.equal(bounds.to_units(action), torch.tensor([[-1.0, 0.0, 1.0]]))


def test_every_action_without_bounds_is_named() -> None:
    space = Dict({"a": Box((1,), "float32", -1.0), "b": Discrete(2), "c": Box((1,), "int64", 0, 3)})
    with pytest.raises(ModelError) as refused:
        Bounds(space)
    said = str(refused.value)
    assert "action.a lacks some" in said
    assert "action.b is a Discrete: use sac or dqn" in said
    assert "action.c holds int64: use MultiDiscrete" in said


def test_policies_of_equal_seeds_are_equal_and_start_near_the_middle() -> None:
    seen = {"obs": torch.randn(200, 3)}
    for kind in (SquashedPolicy, TanhPolicy):
        one, other, third = (kind(SPACES, Network(), seed=seed) for seed in (1, 1, 2))
        assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
        assert not torch.equal(one.policy.weight, third.policy.weight)
        action = one(seen, None)[0] if isinstance(one, SquashedPolicy) else one(seen)
        assert action.abs().max() < 0.1


def test_normals_are_finite_at_the_ends() -> None:
    edge = normals(torch.tensor([2.0**-24, 0.5, 1 - 2.0**-24]))
    assert edge.isfinite().all()
    assert edge[1] == 0
    assert math.isclose(edge[0], -edge[2], rel_tol=0.1)
