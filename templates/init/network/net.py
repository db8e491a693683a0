"""A network of your own: residual blocks, in place of the dense layers of `model.torso: mlp`."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from rlctl_agents.types.spaces import Box, Space


class Residual(nn.Module):
    """A vector through residual blocks. rlctl puts around it: running moments of the observations before, a memory
    (`model.core`) and the heads of policy and value behind.

    It acts and learns in eval mode, so that the learner computes the very probabilities that the actors recorded:
    Dropout drops nothing here, and BatchNorm keeps its initial statistics; LayerNorm is the same in both modes.

    Args:
        space: what one seat observes.
        width, blocks: `model.params` of spec.yaml.

    Raises:
        ValueError: the observation is no vector; `rlctl lint` and `rlctl up` say so.
    """

    leaf: ClassVar[str] = "obs"
    """Name of a lone observation; those of a Dict are `obs.NAME`."""

    def __init__(self, space: Space, width: int = 64, blocks: int = 2) -> None:
        super().__init__()
        if not isinstance(space, Box) or len(space.shape) != 1:
            raise ValueError(f"needs one vector as observation, got {space}")
        self.features = width  # read by rlctl: the width of what `forward` returns
        self.first = nn.Linear(space.shape[0], width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
            for _ in range(blocks)
        )

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        """[N, inputs] -> [N, features]; N counts rows of many environments and steps, in no order."""
        x = self.first(obs[self.leaf])
        for block in self.blocks:
            x = x + block(x)
        return torch.relu(x)
