"""Running moments: exact over any parts and any number of learners; the value stays what it was."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from rlctl.spec.schema import Network
from rlctl_agents.models.moments import LARGEST, MEMORY_STEPS, ObservationMoments, ReturnMoments, RunningMoments
from rlctl_agents.models.policy import ActorCritic
from rlctl_agents.types.spaces import Box, Dict, Discrete, Spaces


def rows(count: int, seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal([1e3, -5.0], [0.1, 40.0], (count, 2)).astype(np.float32))


def test_moments_of_parts_are_those_of_the_whole() -> None:
    parts = [rows(count, seed) for seed, count in enumerate((1, 7, 400, 0, 25))]
    one = RunningMoments(2)
    for part in parts:
        one.merge(one.sums(part))
    whole = torch.cat(parts).double()
    assert float(one.count) == len(whole)
    torch.testing.assert_close(one.mean, whole.mean(0))
    torch.testing.assert_close(one.variance, whole.var(0, unbiased=False))


def test_sums_of_several_learners_one_of_them_without_rows_are_those_of_one() -> None:
    alone, each = RunningMoments(2), RunningMoments(2)
    for seed in range(3):
        alone.merge(alone.sums(rows(60, seed)))
        parts = [rows(60, seed)[:20], None, rows(60, seed)[20:]]
        each.merge(torch.stack([each.sums(part) for part in parts]).sum(0))
    torch.testing.assert_close(each.mean, alone.mean)
    torch.testing.assert_close(each.variance, alone.variance)


def test_what_is_normalised_has_deviation_1_and_is_clipped() -> None:
    one = RunningMoments(2)
    one.merge(one.sums(rows(1000, 0)))
    seen = one(rows(1000, 0))
    assert seen.mean(0).abs().max() < 1e-2
    assert (seen.std(0) - 1).abs().max() < 1e-2
    assert one(torch.full((1, 2), 1e9)).tolist() == [[LARGEST, LARGEST]]


def test_only_real_numbers_are_normalised_and_only_valid_rows_counted() -> None:
    space = Dict({"camera": Box((2, 40, 40), "uint8", 0, 255), "room": Discrete(4), "speed": Box((2,), "float32")})
    one = ObservationMoments(space)
    assert one.names == ["obs.speed"]
    obs = {"obs.speed": rows(8, 0).view(4, 2, 2), "obs.room": torch.ones(4, 2)}
    valid = torch.tensor([[True, False], [True, True], [False, True]])
    one.update(obs, valid, lambda sums: sums)
    (moments,) = one.moments
    torch.testing.assert_close(moments.mean, obs["obs.speed"][:3][valid].double().mean(0))
    assert one({name: leaf[0] for name, leaf in obs.items()})["obs.room"].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("leaf", "normalised"),
    [
        (Box((2,), "int32", 0, 10_000), True),
        (Box((2,), "int64"), True),
        (Box((2,), "uint16"), True),
        (Box((2,), "int8", -1, 1), False),
        (Box((2,), "uint8", 0, 255), False),
        (Box((2,), "bool", 0, 1), False),
    ],
)
def test_whole_numbers_without_a_small_range_are_normalised_for_networks_of_ours(leaf: Box, normalised: bool) -> None:
    assert ObservationMoments(leaf).names == []
    one = ObservationMoments(leaf, codes=True)
    assert one.names == (["obs"] if normalised else [])
    if normalised:
        obs = {"obs": torch.tensor([[[0, 500]], [[20, 900]], [[40, 1300]]], dtype=getattr(torch, leaf.dtype))}
        one.update(obs, torch.ones(2, 1, dtype=torch.bool), lambda sums: sums)
        seen = one({"obs": obs["obs"][:2, 0]})["obs"]
        assert seen.dtype == torch.float32
        torch.testing.assert_close(seen, torch.tensor([[-1.0, -1.0], [1.0, 1.0]]))


@pytest.mark.parametrize(("shape", "stack"), [((5, 5, 3), 0), ((3, 5, 5), 0), ((2, 5, 5, 3), 2), ((2, 3, 5, 5), 2)])
def test_each_channel_of_codes_has_moments_of_its_own(shape: tuple[int, ...], stack: int) -> None:
    space = Box(shape, "uint8", 0, 255, stack)
    assert ObservationMoments(space).names == []
    one, axis = ObservationMoments(space, codes=True), len(shape) - 1 if shape[-1] == 3 else len(shape) - 3
    zeros = torch.zeros(1, *shape, dtype=torch.uint8)
    assert one({"obs": zeros + 255})["obs"].allclose(torch.ones(())), "as pixels, until more is known"
    highest = torch.tensor([11, 6, 3]).view([3 if at == axis else 1 for at in range(len(shape))])
    draw = torch.rand(5, 8, *shape, generator=torch.Generator().manual_seed(1))
    obs = (draw * highest).to(torch.uint8)
    one.update({"obs": obs}, torch.ones(4, 8, dtype=torch.bool), lambda sums: sums)
    (moments,) = one.moments
    by_channel = obs[:4].movedim(axis + 2, -1).reshape(-1, 3).double()
    torch.testing.assert_close(moments.mean, by_channel.mean(0))
    seen = one({"obs": obs[0]})["obs"]
    assert seen.dtype == torch.float32
    assert seen.shape == obs[0].shape
    wanted = (obs[0].movedim(axis + 1, -1) - by_channel.mean(0)) / by_channel.std(0, unbiased=False)
    torch.testing.assert_close(seen.movedim(axis + 1, -1), wanted.float(), rtol=1e-4, atol=1e-4)


def test_values_stay_what_they_were_when_the_scale_changes() -> None:
    moments, head = ReturnMoments(), nn.Linear(3, 1)
    features = torch.randn(50, 3, generator=torch.Generator().manual_seed(1))
    for shift, spread in ((-800.0, 900.0**2), (30.0, 40.0**2), (0.5, 1.0)):
        before = moments.raw(head(features))
        moments.update(shift, spread, head, batch_size=640)
        torch.testing.assert_close(moments.raw(head(features)), before, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("mean", "deviation", "kept"), [(-0.5, 0.35, True), (-800.0, 300.0, False)])
def test_small_values_stay_what_they_were_when_the_scale_is_given_up(mean: float, deviation: float, kept: bool) -> None:
    moments, head = ReturnMoments(), nn.Linear(3, 1)
    features = torch.randn(50, 3, generator=torch.Generator().manual_seed(1))
    moments.update(mean, mean**2 + deviation**2, head, batch_size=640)
    normalised = head(features)
    before = moments.raw(normalised) if kept else normalised
    moments.reset(head)
    assert (float(moments.mean), float(moments.deviation), float(moments.batches)) == (0.0, 1.0, 0.0)
    torch.testing.assert_close(moments.raw(head(features)), before, rtol=1e-3, atol=1e-3)


def test_moments_of_returns_follow_the_targets() -> None:
    moments, head, rng = ReturnMoments(), nn.Linear(3, 1), np.random.default_rng(0)
    for _ in range(400):
        error = rng.normal(-300, 20, 256) - float(moments.mean)
        moments.update(float(error.mean()), float(np.square(error).mean()), head, batch_size=2048)
    assert abs(float(moments.mean) + 300) < 3
    assert abs(float(moments.deviation) - 20) < 1


@pytest.mark.parametrize("batch_size", [160, 2048, 200_000])
def test_moments_of_returns_forget_per_agent_step_whatever_the_size_of_the_batches(batch_size: int) -> None:
    moments, head = ReturnMoments(), nn.Linear(3, 1)

    def learn(agent_steps: int, mean: float) -> float:
        for _ in range(max(1, agent_steps // batch_size)):
            error = mean - float(moments.mean)
            moments.update(error, error**2 + 1, head, batch_size=batch_size)
        return float(moments.mean)

    assert learn(400_000, 100.0) == pytest.approx(100)
    left = learn(MEMORY_STEPS, 0.0) / 100
    assert left == pytest.approx(0 if batch_size > MEMORY_STEPS else np.exp(-1), abs=0.02)


def test_moments_travel_with_the_weights_and_can_be_left_out() -> None:
    spaces = Spaces(Box((2,), "float32"), Discrete(3))
    names = set(ActorCritic(spaces, Network(), seed=1).state_dict())
    assert {"observed.moments.0.mean", "returns.variance"} <= names
    plain = Network.model_validate({"normalize": {"observations": False, "returns": False}})
    assert not any("moments" in name or "returns" in name for name in ActorCritic(spaces, plain, seed=1).state_dict())
