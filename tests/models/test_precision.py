"""Precision of a torso: where it is decided, and that actors and learners agree."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rlctl.spec.schema import Network
from rlctl_agents.models.policy import ActorCritic
from rlctl_agents.models.precision import choose
from rlctl_agents.models.torso import NatureCnn, Pixels
from rlctl_agents.ops.adam import SmallAdam
from rlctl_agents.types.spaces import Box, Discrete, Space, Spaces

IMAGE, VECTOR = Box((4, 84, 84), "uint8", 0.0, 255.0), Box((4,), "float32")


def images(count: int, shape: tuple[int, ...] = IMAGE.shape, seed: int = 0) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, *shape), generator=random, dtype=torch.uint8)


def net(precision: str, seed: int = 0) -> ActorCritic:
    network = Network.model_validate({"torso": "nature_cnn", "width": 64, "precision": precision})
    return ActorCritic(Spaces(IMAGE, Discrete(6)), network, seed=seed)


def acted(made: ActorCritic, obs: Tensor) -> Tensor:
    with torch.inference_mode():
        return made.step({"obs": obs}, torch.zeros(len(obs), dtype=torch.bool), {})[0]


@pytest.mark.parametrize(
    ("asked", "space", "torso", "sync", "gpu", "flag", "given"),
    [
        ("auto", IMAGE, "auto", False, False, "amx_bf16", "bf16"),
        ("auto", IMAGE, "impala_cnn", False, False, "avx512_bf16", "bf16"),
        ("auto", IMAGE, "auto", False, False, "", "fp32"),
        ("auto", IMAGE, "auto", True, False, "amx_bf16", "fp32"),
        ("auto", IMAGE, "auto", False, True, "amx_bf16", "fp32"),
        ("auto", IMAGE, "mlp", False, False, "amx_bf16", "fp32"),
        ("auto", VECTOR, "auto", False, False, "amx_bf16", "fp32"),
        ("auto", IMAGE, "mine:Torso", False, False, "amx_bf16", "fp32"),
        ("fp32", IMAGE, "auto", False, False, "amx_bf16", "fp32"),
        ("bf16", IMAGE, "auto", False, False, "", "bf16"),
        ("bf16", VECTOR, "mine:Torso", False, True, "", "bf16"),
    ],
)
def test_processor_and_spec_decide(
    asked: str, space: Space, torso: str, sync: bool, gpu: bool, flag: str, given: str
) -> None:
    network = Network.model_validate({"torso": torso, "precision": asked})
    assert choose(network, space, sync=sync, gpu=gpu, flag=flag).name == given


def test_the_decision_names_its_reason() -> None:
    assert "amx_bf16" in choose(Network(), IMAGE, sync=False, gpu=False, flag="amx_bf16").why
    assert "sync" in choose(Network(), IMAGE, sync=True, gpu=False, flag="amx_bf16").why
    asked = Network(precision="bf16")
    assert "no bf16" in choose(asked, IMAGE, sync=False, gpu=False, flag="").why


def test_bf16_is_close_to_fp32_and_leaves_in_fp32() -> None:
    obs = images(8)
    exact, rounded = acted(net("fp32"), obs), acted(net("bf16"), obs)
    assert rounded.dtype == torch.float32
    assert not torch.equal(exact, rounded)
    torch.testing.assert_close(rounded, exact, atol=2e-3, rtol=0)  # the policy head's gain is 0.01


def test_in_bf16_the_learner_computes_what_the_actor_did() -> None:
    made, obs = net("bf16"), images(6)
    params, value = made.unroll({"obs": obs.view(3, 2, *obs.shape[1:])}, torch.zeros(3, 2, dtype=torch.bool), {})
    assert value.dtype == params.dtype == torch.float32
    torch.testing.assert_close(params.detach().flatten(0, 1), acted(made, obs), atol=1e-4, rtol=0)


def test_weights_stay_fp32_and_get_gradients() -> None:
    made = net("bf16")
    names = list(made.state_dict())
    acted(made, images(2))  # keeps copies of its own
    made.unroll({"obs": images(2)[None]}, torch.zeros(1, 2, dtype=torch.bool), {})[1].sum().backward()  # type: ignore[no-untyped-call]
    assert list(made.state_dict()) == names
    assert all(weight.dtype == torch.float32 for weight in made.parameters())
    assert all(weight.grad is not None for name, weight in made.named_parameters() if "torso" in name)


def test_acting_follows_weights_that_are_written() -> None:
    made, other, obs = net("bf16"), net("bf16", seed=1), images(2)
    before = acted(made, obs)
    with torch.no_grad():
        for own, given in zip(made.state_dict().values(), other.state_dict().values(), strict=True):
            own.copy_(given)
    assert not torch.equal(acted(made, obs), before)
    assert torch.equal(acted(made, obs), acted(other, obs))


@pytest.mark.parametrize("write", [torch._foreach_copy_, lambda own, given: torch._foreach_lerp_(own, given, 0.5)])
def test_acting_follows_weights_that_are_written_as_a_list_as_those_of_targets_are(
    write: Callable[[list[Tensor], list[Tensor]], None],
) -> None:
    made, other, obs = net("bf16"), net("bf16", seed=1), images(2)
    before = acted(made, obs)
    with torch.no_grad():
        write(list(made.parameters()), list(other.parameters()))
    fresh = net("bf16")
    fresh.load_state_dict(made.state_dict())
    assert not torch.equal(acted(made, obs), before)
    assert torch.equal(acted(made, obs), acted(fresh, obs))


def by_torch(made: ActorCritic) -> torch.optim.Optimizer:
    return torch.optim.Adam(made.parameters(), lr=0.01, fused=True)


def by_our_own(made: ActorCritic) -> torch.optim.Optimizer:
    return SmallAdam([{"params": list(made.parameters()), "lr": 0.01}], eps=1e-8)


@pytest.mark.parametrize("optimizer", [by_torch, by_our_own])
def test_a_pass_without_gradients_follows_the_steps_of_a_fused_optimizer(
    optimizer: Callable[[ActorCritic], torch.optim.Optimizer],
) -> None:
    made, obs = net("bf16"), images(4)
    acted(made, obs)
    steps = optimizer(made)
    for _ in range(2):  # torch counts these writes to no weight
        params, value = made.unroll({"obs": obs[None]}, torch.zeros(1, 4, dtype=torch.bool), {})
        (params.square().sum() + value.square().sum()).backward()
        steps.step()
    fresh = net("bf16")
    fresh.load_state_dict(made.state_dict())
    assert torch.equal(acted(made, obs), acted(fresh, obs))


def test_a_copy_of_a_network_keeps_nothing_of_the_original() -> None:
    made = net("bf16")
    acted(made, images(1))
    copied = copy.deepcopy(made)
    with torch.no_grad():
        for weight in made.parameters():
            weight.zero_()
    assert torch.equal(acted(copied, images(1)), acted(net("bf16"), images(1)))


@pytest.mark.parametrize("shape", [(4, 84, 84), (1, 36, 40), (3, 64, 64)])
@pytest.mark.parametrize("device_autocast", [False, True])
def test_blocks_of_pixels_give_the_same_convolution(shape: tuple[int, ...], device_autocast: bool) -> None:
    pixels = Pixels.of(Box(shape, "uint8", 0.0, 255.0))
    assert pixels is not None
    cnn, obs = NatureCnn(pixels, Network(width=8)), images(3, shape)
    layer = cnn.convolutions[0]
    assert pixels.in_blocks(obs)
    with torch.autocast(obs.device.type, torch.bfloat16, enabled=device_autocast), torch.no_grad():
        got = cnn._first(obs)
    plain = torch.nn.functional.conv2d(obs.float() / 255, layer.weight, layer.bias, 4)  # type: ignore[arg-type]
    torch.testing.assert_close(got.float(), plain, atol=5e-2 if device_autocast else 1e-5, rtol=0)


@pytest.mark.parametrize("shape", [(4, 83, 84), (4, 84, 82), (84, 84, 4), (84, 84)])
def test_images_that_blocks_do_not_fit_take_the_other_way(shape: tuple[int, ...]) -> None:
    pixels = Pixels.of(Box(shape, "uint8", 0.0, 255.0))
    assert pixels is not None
    cnn, obs = NatureCnn(pixels, Network(width=8)), images(2, shape)
    as_planes = obs[:, None] if len(shape) == 2 else obs.permute(0, 3, 1, 2) if pixels.last else obs
    layer = cnn.convolutions[0]
    with torch.no_grad():
        plain = torch.nn.functional.conv2d(
            as_planes.float() / 255,
            layer.weight,  # type: ignore[arg-type]
            layer.bias,  # type: ignore[arg-type]
            4,
        )
        torch.testing.assert_close(cnn._first(obs), plain, atol=1e-5, rtol=0)
