"""Weights there and back."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rlctl.spec.schema import Network
from rlctl_agents.models.policy import ActorCritic
from rlctl_agents.models.weights import WeightsError, digest, pack, unpack_into
from rlctl_agents.types.spaces import Box, Discrete, Spaces

IMAGES = Spaces(Box((4, 40, 40), "uint8", 0, 255), Discrete(3))


def network(seed: int, width: int = 8) -> ActorCritic:
    return ActorCritic(IMAGES, Network(width=width), seed=seed)


def test_weights_come_back_bit_for_bit_in_the_memory_format_of_the_receiver() -> None:
    one, two = network(1), network(2)
    unpack_into(two, memoryview(pack(one.state_dict())))
    for name, value in one.state_dict().items():
        assert torch.equal(two.state_dict()[name], value)
    convolution = next(module for module in two.modules() if isinstance(module, nn.Conv2d))
    assert convolution.weight.is_contiguous(memory_format=torch.channels_last)


def test_equal_weights_give_equal_bytes() -> None:
    assert pack(network(1).state_dict()) == pack(network(1).state_dict())


def test_checksum_is_compared_before_anything_is_copied() -> None:
    one, two = network(1), network(2)
    packed = pack(one.state_dict())
    before = pack(two.state_dict())
    with pytest.raises(WeightsError, match="checksum differs"):
        unpack_into(two, packed[:-1] + b"\x7f", sha256=digest(packed))
    assert pack(two.state_dict()) == before
    unpack_into(two, packed, sha256=digest(packed))
    assert pack(two.state_dict()) == packed


def test_other_shapes_are_refused_by_name_and_nothing_is_copied() -> None:
    two = network(2)
    before = pack(two.state_dict())
    with pytest.raises(WeightsError, match=r"torso\.cnns\.0\.dense\.weight is torch\.float32 \[16, 64\], not"):
        unpack_into(two, pack(network(1, width=16).state_dict()))
    assert pack(two.state_dict()) == before


def test_other_names_and_dtypes_are_refused() -> None:
    state = network(1).state_dict()
    with pytest.raises(WeightsError, match=r"1 missing \['value.bias'\], 0 unknown"):
        unpack_into(network(2), pack({name: value for name, value in state.items() if name != "value.bias"}))
    with pytest.raises(WeightsError, match=r"policy\.weight is torch\.float64"):
        unpack_into(network(2), pack({**state, "policy.weight": state["policy.weight"].double()}))


@pytest.mark.parametrize("junk", [b"", b"junk", b"\xff" * 64, b"\x80\x04\x95."])
def test_other_bytes_are_refused_in_words(junk: bytes) -> None:
    with pytest.raises(WeightsError, match="not safetensors"):
        unpack_into(network(1), junk)


def test_a_packed_network_still_learns() -> None:
    net = network(1)
    unpack_into(net, pack(network(2).state_dict()))
    assert all(weight.requires_grad and weight.is_leaf for weight in net.parameters())
