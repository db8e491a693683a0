"""A learner's state through bytes and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rlctl.spec.schema import Network
from rlctl_agents.checkpoint.state import StateError, pack_state, unpack_state
from rlctl_agents.models.policy import ActorCritic
from rlctl_agents.models.torso import channels_last
from rlctl_agents.training.learner_state import capture, restore
from rlctl_agents.types.spaces import Box, Discrete, Spaces

Optimizers = dict[str, Callable[[Any], torch.optim.Optimizer]]
OPTIMIZERS: Optimizers = {
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.1, amsgrad=True),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.1, momentum=0.9, centered=True),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
}


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


def train(net: nn.Module, optimizer: torch.optim.Optimizer, updates: int) -> None:
    for _ in range(updates):
        optimizer.zero_grad()
        net(torch.randn(8, 3)).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_restored_learner_goes_on_bit_by_bit(kind: str) -> None:
    torch.manual_seed(1)
    net = network()
    optimizer = OPTIMIZERS[kind](net.parameters())
    train(net, optimizer, 5)
    data = capture(net, optimizer, {"consumed_steps": 40}).pack()
    train(net, optimizer, 5)

    torch.manual_seed(2)
    other = network()
    fresh = OPTIMIZERS[kind](other.parameters())
    counters, problem = restore(data, other, fresh)
    train(other, fresh, 5)

    assert (counters, problem) == ({"consumed_steps": 40.0}, "")
    for name, value in net.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


def test_averages_of_a_convolution_lie_in_memory_as_its_weights_do() -> None:
    def images() -> nn.Module:
        torch.manual_seed(3)
        net = nn.Sequential(nn.Unflatten(1, (3, 1, 1)), nn.ZeroPad2d(2), nn.Conv2d(3, 4, 3))
        channels_last(net)
        return net

    def adam(net: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(net.parameters(), lr=0.1, fused=True)

    net, other = images(), images()
    optimizer, fresh = adam(net), adam(other)
    train(net, optimizer, 3)
    restore(capture(net, optimizer, {}).pack(), other, fresh)
    torch.manual_seed(4)
    train(net, optimizer, 3)
    torch.manual_seed(4)
    train(other, fresh, 3)
    for name, value in net.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


def test_a_captured_state_does_not_change_while_the_learner_goes_on() -> None:
    net = network()
    optimizer = OPTIMIZERS["adam"](net.parameters())
    train(net, optimizer, 1)
    state = capture(net, optimizer, {})
    before = {name: values.copy() for name, values in state.arrays.items()}
    train(net, optimizer, 3)
    for name, values in before.items():
        np.testing.assert_array_equal(state.arrays[name], values)


def test_a_changed_learning_rate_of_the_spec_wins_over_the_stored_one() -> None:
    net = network()
    data = capture(net, torch.optim.Adam(net.parameters(), lr=0.1), {}).pack()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.2)
    restore(data, net, optimizer)
    assert optimizer.param_groups[0]["lr"] == 0.2


def test_another_optimizer_begins_anew_and_says_so() -> None:
    net = network()
    optimizer = OPTIMIZERS["rmsprop"](net.parameters())
    train(net, optimizer, 2)
    data = capture(net, optimizer, {}).pack()
    other = OPTIMIZERS["adam"](net.parameters())
    _, problem = restore(data, net, other)
    assert "was RMSprop and is Adam" in problem
    assert not other.state


def test_another_network_is_refused_and_left_as_it_was() -> None:
    data = capture(network(), OPTIMIZERS["adam"](network().parameters()), {}).pack()
    net = nn.Linear(3, 4)
    before = net.weight.clone()
    with pytest.raises(StateError, match="of another network"):
        restore(data, net, OPTIMIZERS["adam"](net.parameters()))
    assert torch.equal(net.weight, before)


def test_weights_in_bfloat16_keep_their_bits() -> None:
    net = nn.Linear(3, 4).to(torch.bfloat16)
    data = capture(net, OPTIMIZERS["adam"](net.parameters()), {}).pack()
    other = nn.Linear(3, 4).to(torch.bfloat16)
    restore(data, other, OPTIMIZERS["adam"](other.parameters()))
    assert torch.equal(net.weight, other.weight)


def test_scalars_empty_arrays_and_every_float_survive() -> None:
    arrays: dict[str, np.ndarray] = {
        "a": np.array(3, np.int64),
        "b": np.empty((0, 2), np.float32),
        "c": np.array([True, False]),
    }
    plain = {"x": 0.1, "n": 2**53 + 1, "text": "é", "list": [1, None]}
    got, back = unpack_state(pack_state(arrays, plain))
    assert back == plain
    for name, values in arrays.items():
        assert got[name].shape == values.shape
        np.testing.assert_array_equal(got[name], values)


@pytest.mark.parametrize("cut", [0, 7, 8, 100, -1])
def test_truncated_bytes_are_no_state(cut: int) -> None:
    data = pack_state({"a": np.arange(100)}, {})
    with pytest.raises(StateError):
        unpack_state(data[:cut])


def test_a_state_of_a_later_format_says_which() -> None:
    data = pack_state({}, {}).replace(b'\\"format\\": 1', b'\\"format\\": 9')
    with pytest.raises(StateError, match="format 9; this release reads format 1"):
        unpack_state(data)


def test_nan_in_counters_is_refused_when_stored() -> None:
    with pytest.raises(ValueError, match="JSON"):
        pack_state({}, {"x": float("nan")})


def test_a_state_without_running_moments_is_refused_with_their_names() -> None:
    spaces = Spaces(Box((3,), "float32"), Discrete(2))
    before = ActorCritic(spaces, Network.model_validate({"normalize": {"observations": False}}), seed=1)
    data = capture(before, OPTIMIZERS["adam"](before.parameters()), {}).pack()
    net = ActorCritic(spaces, Network(), seed=1)
    with pytest.raises(StateError, match=r"of another network: observed\.moments\.0\.count"):
        restore(data, net, OPTIMIZERS["adam"](net.parameters()))
