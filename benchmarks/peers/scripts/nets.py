"""The networks of rlctl's actor-critic, for peers that take a module: same layers, same widths."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def orthogonal(layer: nn.Linear | nn.Conv2d, gain: float) -> nn.Module:
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def mlp(inputs: int) -> nn.Sequential:
    """Two layers of 64, tanh."""
    return nn.Sequential(
        orthogonal(nn.Linear(inputs, 64), 2**0.5), nn.Tanh(), orthogonal(nn.Linear(64, 64), 2**0.5), nn.Tanh()
    )


def nature_cnn() -> nn.Sequential:
    """84x84x4 in, 512 out."""
    return nn.Sequential(
        orthogonal(nn.Conv2d(4, 32, 8, 4), 2**0.5), nn.ReLU(),
        orthogonal(nn.Conv2d(32, 64, 4, 2), 2**0.5), nn.ReLU(),
        orthogonal(nn.Conv2d(64, 64, 3, 1), 2**0.5), nn.ReLU(),
        nn.Flatten(), orthogonal(nn.Linear(3136, 512), 2**0.5), nn.ReLU(),
    )  # fmt: skip


class ActorCritic(nn.Module):
    """An mlp each for policy and value, or one Nature CNN for both."""

    def __init__(self, pixels: bool, actions: int, inputs: int = 4) -> None:
        super().__init__()
        self.pixels = pixels
        self.body = nature_cnn() if pixels else mlp(inputs)
        self.value_body = None if pixels else mlp(inputs)
        width = 512 if pixels else 64
        self.policy = orthogonal(nn.Linear(width, actions), 0.01)
        self.value = orthogonal(nn.Linear(width, 1), 1.0)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """[B, ...] -> logits [B, A], values [B, 1]."""
        flat = self.scaled(obs)
        features = self.body(flat)
        valued = features if self.value_body is None else self.value_body(flat)
        return self.policy(features), self.value(valued)

    def logits(self, obs: Tensor) -> Tensor:
        """[B, ...] -> [B, A], alone."""
        found: Tensor = self.policy(self.body(self.scaled(obs)))
        return found

    def values(self, obs: Tensor) -> Tensor:
        """[B, ...] -> [B, 1], alone."""
        found: Tensor = self.value((self.value_body or self.body)(self.scaled(obs)))
        return found

    def scaled(self, obs: Tensor) -> Tensor:
        return obs.float() / 255 if self.pixels else obs.float()


def one_thread() -> None:
    """Compute with one thread, as every role of rlctl on a machine with shared cores."""
    torch.set_num_threads(1)
