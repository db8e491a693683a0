"""SmallAdam takes the steps of torch's Adam, bit for bit, and goes on from its own stored state."""

from __future__ import annotations

import torch
from torch import nn

from rlctl_agents.ops.adam import SmallAdam


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))


def groups(net: nn.Sequential) -> list[dict[str, object]]:
    return [{"params": [*net[0].parameters()], "lr": 1e-2}, {"params": [*net[2].parameters()], "lr": 1e-3}]


def learn(net: nn.Sequential, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        net(torch.full((4, 3), float(step))).square().sum().backward()
        optimizer.step()


def test_steps_are_those_of_torch() -> None:
    ours, theirs = layers(), layers()
    learn(ours, SmallAdam(groups(ours), eps=1e-8), 20)
    learn(theirs, torch.optim.Adam(groups(theirs), eps=1e-8, fused=True), 20)
    for mine, its in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(mine, its)


def test_goes_on_from_a_stored_state() -> None:
    whole, half = layers(), layers()
    optimizer, before = SmallAdam(groups(whole), eps=1e-8), SmallAdam(groups(half), eps=1e-8)
    for net, one in ((whole, optimizer), (half, before)):
        learn(net, one, 5)
    after = SmallAdam(groups(half), eps=1e-8)
    after.load_state_dict(before.state_dict())
    learn(whole, optimizer, 5)
    learn(half, after, 5)
    for mine, its in zip(whole.parameters(), half.parameters(), strict=True):
        assert torch.equal(mine, its)


def test_a_group_that_is_held_stays() -> None:
    net = layers()
    optimizer = SmallAdam(groups(net), eps=1e-8)
    learn(net, optimizer, 3)
    was = [one.detach().clone() for one in net.parameters()]
    optimizer.param_groups[0]["held"] = True
    learn(net, optimizer, 1)
    moved = [not torch.equal(one, now) for one, now in zip(was, net.parameters(), strict=True)]
    assert moved == [False, False, True, True]


def test_what_is_frozen_stays_also_from_a_later_step_on() -> None:
    ours, theirs = layers(), layers()
    optimizer, other = SmallAdam(groups(ours), eps=1e-8), torch.optim.Adam(groups(theirs), eps=1e-8, fused=True)
    for net, one in ((ours, optimizer), (theirs, other)):
        learn(net, one, 3)
        net[0].weight.requires_grad_(False)
        learn(net, one, 3)
    for mine, its in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(mine, its)
