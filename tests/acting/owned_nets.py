"""Networks and algorithms of a user's own, for the check of a spec."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from rlctl_agents.algorithms.dqn import Dqn
from rlctl_agents.algorithms.impala import Impala


class Sound(nn.Module):
    features = 8

    def __init__(self, space: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 8)

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        out: Tensor = self.layer(obs["obs"])
        return out


class Constant(nn.Module):
    """Fits every observation."""

    features = 1

    def __init__(self, space: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        out: Tensor = self.layer(next(iter(obs.values())).new_ones(len(next(iter(obs.values()))), 1))
        return out


class Narrow(Sound):
    features = 9


class Frozen(Sound):
    def __init__(self, space: Any) -> None:
        super().__init__(space)
        self.layer.weight.requires_grad_(False)
        self.spare = nn.Linear(2, 2)


class AllFrozen(Sound):
    def __init__(self, space: Any) -> None:
        super().__init__(space)
        self.requires_grad_(False)


class Mine(Impala):
    pass


class Failing(Impala):
    def __init__(self, *arguments: Any, **more: Any) -> None:
        raise RuntimeError("half done")


class Drawing(Dqn):
    """Draws from the replay role."""


class Bringing(Dqn):
    source = "tests.training.outside.double_dqn:Ring"
