"""Action values by choices: the best, the chosen and a random action, as written out over all actions."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from rlctl.spec.schema import Network
from rlctl_agents.models.inputs import ModelError
from rlctl_agents.models.q_network import Choices, QNetwork
from rlctl_agents.types.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Spaces, Tuple

SPACES: list[Space] = [
    Discrete(4),
    MultiDiscrete((3, 3)),
    MultiDiscrete((2, 4, 3)),
    Tuple((Discrete(2), MultiDiscrete((3, 2)))),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_the_best_action_is_that_of_all_with_the_largest_sum(space: Space, masked: bool) -> None:
    torch.manual_seed(1)
    choices = Choices(space)
    sizes, options = choices.sizes.tolist(), int(choices.sizes.sum())
    q = torch.randn(40, options)
    legal = torch.rand(40, options) < 0.5 if masked else None
    best, value = choices.best(q, legal)
    begin = choices.begin.tolist()
    for row in range(40):
        allowed = []
        for first, size in zip(begin, sizes, strict=True):
            mask = [True] * size if legal is None else legal[row, first : first + size].tolist()
            allowed.append([one for one in range(size) if mask[one] or not any(mask)])
        sums = {
            action: sum(q[row, first + one].item() for first, one in zip(begin, action, strict=True))
            for action in product(*allowed)
        }
        assert value[row].item() == pytest.approx(max(sums.values()), abs=1e-5)
        assert sums[tuple(best[row].tolist())] == pytest.approx(max(sums.values()), abs=1e-5)
    assert torch.allclose(choices.of(q, best), value)
    assert torch.equal(choices.columns(choices.split(best)), best + choices.begin)


@pytest.mark.parametrize("space", SPACES, ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_random_actions_are_legal_and_even(space: Space, masked: bool) -> None:
    choices = Choices(space)
    options = int(choices.sizes.sum())
    torch.manual_seed(0)
    mask = torch.rand(options) < 0.6 if masked else torch.ones(options, dtype=torch.bool)
    legal = mask.repeat(4000, 1) if masked else None
    chosen = choices.random(torch.rand(4000, choices.count), legal) + choices.begin
    for number, (first, size) in enumerate(zip(choices.begin.tolist(), choices.sizes.tolist(), strict=True)):
        of = mask[first : first + size] if mask[first : first + size].any() else torch.ones(size, dtype=torch.bool)
        counts = torch.bincount(chosen[:, number] - first, minlength=size)
        assert (counts[~of] == 0).all()
        assert (counts[of] / 4000 - 1 / of.sum()).abs().max() < 0.04
    highest = choices.random(torch.full((1, choices.count), 1 - 2**-24), None)
    assert torch.equal(highest[0], choices.sizes - 1)


@pytest.mark.parametrize("sizes", [(2, 3), (3, 3), (4,)], ids=str)
def test_dueling_is_value_plus_advantages_around_their_mean(sizes: tuple[int, ...]) -> None:
    spaces = Spaces(Box((3,), "float32"), MultiDiscrete(sizes))
    net = QNetwork(spaces, Network(hidden=[8]), dueling=True, seed=0)
    seen = {"obs": torch.randn(5, 3)}
    features = net.features(seen)
    assert net.value is not None
    a, v = net.policy(features), net.value(features).squeeze(1)
    q, choices = net(seen), Choices(spaces.action)
    of_each = a.split(sizes, 1)
    for action in product(*map(range, sizes)):
        centred = sum(one[:, at] - one.mean(1) for one, at in zip(of_each, action, strict=True))
        assert torch.allclose(choices.of(q, torch.tensor([action] * 5)), v + centred, atol=1e-6)


def test_a_plain_mlp_computes_what_its_torso_does() -> None:
    net = QNetwork(Spaces(Box((3,), "float32"), Discrete(2)), Network(activation="relu"), dueling=False, seed=0)
    seen = {"obs": torch.randn(5, 3)}
    assert net._layers
    assert torch.equal(net.features(seen), net.torso(seen))
    network = Network(activation="relu", precision="bf16")
    half = QNetwork(Spaces(Box((3,), "float32"), Discrete(2)), network, dueling=False, seed=0)
    assert torch.allclose(half.features(seen), net.features(seen), atol=0.05)
    assert not torch.equal(half.features(seen), net.features(seen))


def test_every_leaf_that_is_no_choice_is_named() -> None:
    space = Dict({"a": Box((1,), "float32"), "b": Discrete(2), "c": MultiBinary(3)})
    with pytest.raises(ModelError, match=r"action\.a, a Box and action\.c, a MultiBinary: use sac or td3"):
        Choices(space)


def test_a_memory_is_refused() -> None:
    with pytest.raises(ModelError, match="no memory, got lstm"):
        QNetwork(Spaces(Box((3,), "float32"), Discrete(2)), Network(core="lstm"), dueling=False, seed=0)
