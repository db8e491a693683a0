"""The loss of PPO and APPO on mlps in closed form: where it is taken, and that its gradient is that of autograd."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rlctl.spec import algorithms as specs
from rlctl.spec.schema import Network
from rlctl_agents.algorithms.base import Batch, Loss
from rlctl_agents.algorithms.ppo import Ppo
from rlctl_agents.types.spaces import Box, Dict, Discrete, MultiDiscrete, Space, Spaces
from tests.algorithms.test_impala import VECTOR
from tests.algorithms.world import Actor, Anything

REAL = Box((2, 2), "float32", (-1.0, -2.0, -3.0, 0.0), (1.0, 2.0, 5.0, 8.0))
SEVERAL = Dict({"code": Discrete(5), "numbers": Box((3,), "float32")})


def made(obs: Space, action: Space, network: dict[str, Any], **settings: Any) -> Ppo:
    config = specs.Ppo.model_validate({"unroll_length": 5, "batch_size": 60, "minibatch_size": 20, **settings})
    return Ppo(config, Network.model_validate({"hidden": [16, 12], **network}), Spaces(obs, action), seed=3)


def minibatch(algorithm: Ppo, obs: Space, action: Space) -> Batch:
    """A prepared minibatch, far enough from the policy that ratios are clipped."""
    spaces = Spaces(obs, action)
    schema = Ppo.schema(algorithm.config, Network.model_validate({}), spaces)
    with torch.no_grad():
        whole = algorithm.prepare(Actor(algorithm, schema, Anything(12, 1, spaces), seed=2).segment(), lambda x: x)
        assert whole is not None
        rng = torch.Generator().manual_seed(1)
        for weight in algorithm.net.parameters():
            weight.add_(torch.randn(weight.shape, generator=rng), alpha=0.3)
    return next(iter(algorithm.minibatches(whole, rng)))


def gradients(algorithm: Ppo, batch: Batch) -> tuple[Loss, list[Tensor]]:
    algorithm.net.zero_grad()
    loss = algorithm.loss(batch)
    (loss.total / loss.rows).backward()  # type: ignore[no-untyped-call]
    return loss, [one.grad for one in algorithm.net.parameters() if one.grad is not None]


@pytest.mark.parametrize("action", [Discrete(2), Discrete(7), REAL], ids=["two", "seven", "real"])
@pytest.mark.parametrize("obs", [VECTOR, SEVERAL, Discrete(6)], ids=["vector", "several", "code"])
@pytest.mark.parametrize(
    "network",
    [{}, {"activation": "relu"}, {"hidden": []}, {"hidden": [9]}, {"gaussian": {"log_std_init": 1.6}}],
    ids=["tanh", "relu", "no layer", "one layer", "bounded deviation"],
)
def test_the_gradient_is_that_of_autograd(network: dict[str, Any], obs: Space, action: Space) -> None:
    algorithm = made(obs, action, network, value_clip=0.2, entropy_coef=0.05)
    batch = minibatch(algorithm, obs, action)
    assert algorithm.closed_form is not None
    loss, found = gradients(algorithm, batch)
    algorithm.closed_form = None
    wanted_loss, wanted = gradients(algorithm, batch)
    assert len(found) == len(wanted) == len(list(algorithm.net.parameters()))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-6)
        assert bool(other.abs().sum() > 0)
    torch.testing.assert_close(loss.total, wanted_loss.total)
    torch.testing.assert_close(loss.metrics, wanted_loss.metrics)
    assert float(loss.metrics["clipped"]) > 0
    assert not any(one.requires_grad for one in loss.metrics.values())


@pytest.mark.parametrize(
    ("network", "action"),
    [
        ({"core": "lstm"}, Discrete(2)),
        ({"share": True}, Discrete(2)),
        ({"layer_norm": True}, Discrete(2)),
        ({"precision": "bf16"}, Discrete(2)),
        ({"gaussian": {"squash": True}}, REAL),
        ({"gaussian": {"std": "network"}}, REAL),
        ({}, MultiDiscrete((2, 3))),
        ({}, Dict({"one": Discrete(2), "other": Discrete(3)})),
    ],
    ids=str,
)
def test_another_network_is_left_to_autograd(network: dict[str, Any], action: Space) -> None:
    assert made(VECTOR, action, network).closed_form is None
    assert made(VECTOR, Discrete(2), {}).closed_form is not None


def test_a_network_that_somebody_changed_is_left_to_autograd() -> None:
    class Wider(nn.Linear):
        pass

    def hooked(algorithm: Ppo) -> None:
        algorithm.net.policy.register_forward_hook(lambda *_: None)

    def replaced(algorithm: Ppo) -> None:
        algorithm.net.policy = Wider(12, 2)

    def frozen(algorithm: Ppo) -> None:
        algorithm.net.value.weight.requires_grad_(False)

    def normed(algorithm: Ppo) -> None:
        nn.utils.parametrizations.weight_norm(algorithm.net.policy)

    for change in (hooked, replaced, frozen, normed):
        algorithm = made(VECTOR, Discrete(2), {})
        change(algorithm)
        assert algorithm.closed_form is None, change.__name__


def test_masks_of_legal_actions_are_left_to_autograd() -> None:
    config = specs.Ppo.model_validate({"unroll_length": 5, "batch_size": 60, "minibatch_size": 20})
    spaces = Spaces(VECTOR, Discrete(3), legal=True)
    assert Ppo(config, Network.model_validate({}), spaces, seed=3).closed_form is None
