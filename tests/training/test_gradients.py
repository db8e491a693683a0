"""Facts that learners that step together have to know of their network before the first update."""

from __future__ import annotations

import pytest
from torch import Tensor, nn

from rlctl.spec.schema import Network
from rlctl_agents.algorithms.impala import Impala
from rlctl_agents.training.gradients import together
from rlctl_agents.types.spaces import Box, Discrete, Space, Spaces
from tests.support.chain import settings

SPACES = Spaces(Box((2,), "float32"), Discrete(3))


class Told:
    """A group of one that remembers what it was told of a module."""

    world = 1

    def wrapped(self, module: nn.Module, *, find_unused: bool) -> nn.Module:
        self.find_unused = find_unused
        return module


class Wasteful(nn.Module):
    """A torso of the user's own, with a layer that no batch goes through."""

    def __init__(self, space: Space) -> None:
        super().__init__()
        self.features = 2
        self.spare = nn.Linear(2, 2)

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        return obs["obs"]


class Mine(Impala):
    pass


@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
@pytest.mark.parametrize(
    ("algorithm", "torso", "unused"),
    [(Impala, "auto", False), (Impala, f"{__name__}:Wasteful", True), (Mine, "auto", True)],
)
def test_only_of_our_own_networks_it_is_known_that_every_parameter_has_a_gradient(
    algorithm: type[Impala], torso: str, core: str, unused: bool
) -> None:
    network = Network.model_validate({"hidden": [8], "torso": torso, "core": core, "width": 4})
    told = Told()
    together(algorithm(settings(), network, SPACES, seed=1), told)  # type: ignore[arg-type]
    assert told.find_unused is unused
