"""Action distributions over any action space, from one flat vector of parameters.

Written out rather than taken from torch.distributions, whose checks and objects cost more than a small network.
Every method works on any leading shape `...` and takes the parameters as `[..., outputs + free]`: what the network
computes for each observation, then what does not depend on the observation (the log deviations of Gaussians).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rlctl_agents.types.spaces import Box, Discrete, Leaf, MultiBinary, MultiDiscrete, Space, leaves

LOWEST, HIGHEST = 2.0**-24, 1.0 - 2.0**-23
"""Uniforms are clamped to this: one step closer to 1, and float32 rounds u * sum(p) up to sum(p) itself."""
SMALLEST_SCALE, LARGEST_SCALE = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max
"""Of an entry with bounds; closer ones count as equal, wider ones as missing: float32 would make them 0 or infinite."""


class ActionSpaceError(ValueError):
    """No distribution for this action space."""


class Choice(NamedTuple):
    action: Tensor  # [..., *shape of the leaf], dtype of the leaf
    log_prob: Tensor  # [...] of exactly that action, after the rounding to its dtype


class Score(NamedTuple):
    log_prob: Tensor  # [...] natural log
    entropy: Tensor  # [...] nats; of a Gaussian the differential entropy


class LeafDistribution(nn.Module, ABC):
    """The distribution of one leaf. A module only so that what it holds moves to the device of the network: it has
    neither parameters nor anything in the state dict."""

    outputs: int  # parameters that depend on the observation
    free: int = 0  # parameters that do not; they start at 0
    noise: int  # uniforms of one sample

    @abstractmethod
    def sample(self, params: Tensor, noise: Tensor, legal: Tensor | None) -> Choice: ...

    @abstractmethod
    def mode(self, params: Tensor, legal: Tensor | None) -> Choice: ...

    @abstractmethod
    def score(self, params: Tensor, action: Tensor, legal: Tensor | None) -> Score: ...


class Categorical(LeafDistribution):
    """A Discrete; sampled by the inverse of the cumulated probabilities. Where nothing is legal, everything is."""

    noise = 1

    def __init__(self, n: int) -> None:
        super().__init__()
        self.outputs = n

    def sample(self, params: Tensor, noise: Tensor, legal: Tensor | None) -> Choice:
        log_p = _log_p(params, legal)
        cumulated = log_p.exp().cumsum(-1)
        threshold = noise.clamp(LOWEST, HIGHEST) * cumulated.narrow(-1, -1, 1)
        action = (cumulated <= threshold).sum(-1, keepdim=True)
        return Choice(action.squeeze(-1), log_p.gather(-1, action).squeeze(-1))

    def mode(self, params: Tensor, legal: Tensor | None) -> Choice:
        log_p = _log_p(params, legal)
        best = log_p.max(-1)
        return Choice(best.indices, best.values)

    def score(self, params: Tensor, action: Tensor, legal: Tensor | None) -> Score:
        log_p = _log_p(params, legal)
        return Score(log_p.gather(-1, action.unsqueeze(-1)).squeeze(-1), -(log_p.exp() * log_p).sum(-1))


class Categoricals(LeafDistribution):
    """A MultiDiscrete: independent entries."""

    def __init__(self, n: tuple[int, ...]) -> None:
        super().__init__()
        self.sizes = list(n)
        self.outputs = sum(n)
        self.noise = len(n)
        self.entries = [Categorical(size) for size in n]

    def sample(self, params: Tensor, noise: Tensor, legal: Tensor | None) -> Choice:
        parts = zip(self.entries, torch.split(params, self.sizes, -1), torch.split(noise, 1, -1), strict=True)
        return _stack([entry.sample(part, uniform, None) for entry, part, uniform in parts])

    def mode(self, params: Tensor, legal: Tensor | None) -> Choice:
        parts = zip(self.entries, torch.split(params, self.sizes, -1), strict=True)
        return _stack([entry.mode(part, None) for entry, part in parts])

    def score(self, params: Tensor, action: Tensor, legal: Tensor | None) -> Score:
        parts = zip(self.entries, torch.split(params, self.sizes, -1), action.unbind(-1), strict=True)
        return _sum([entry.score(part, chosen, None) for entry, part, chosen in parts])


class Bernoullis(LeafDistribution):
    """A MultiBinary: independent bits, one logit each."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.outputs = self.noise = n

    def sample(self, params: Tensor, noise: Tensor, legal: Tensor | None) -> Choice:
        return self._choice(params, noise < params.sigmoid())

    def mode(self, params: Tensor, legal: Tensor | None) -> Choice:
        return self._choice(params, params > 0)

    def _choice(self, params: Tensor, bits: Tensor) -> Choice:
        return Choice(bits.to(torch.int8), _log_bit(params, bits).sum(-1))

    def score(self, params: Tensor, action: Tensor, legal: Tensor | None) -> Score:
        log_one = torch.nn.functional.logsigmoid(params)
        # H = -p log p - q log q with log q = log p - logit
        entropy = (params.sigmoid() - 1) * (log_one - params) - params.sigmoid() * log_one
        return Score(_log_bit(params, action != 0).sum(-1), entropy.sum(-1))


class Gaussian(LeafDistribution):
    """A Box of real numbers: independent entries, mean from the network, deviation learned apart from it.

    Each entry's parameters are in units of half the width of its bounds around their middle, or of 1 around 0 where one
    is missing or both are equal; actions are in the units of the space. A sample is not bounded: the environment clips
    it, the density is that of the sample itself.
    """

    centre: Tensor  # [outputs] float32
    scale: Tensor  # [outputs] float32, above 0

    def __init__(self, box: Box) -> None:
        super().__init__()
        self.shape = box.shape
        self.dtype = getattr(torch, box.dtype)
        if not self.dtype.is_floating_point:
            raise ActionSpaceError(f"a Box action must hold real numbers, not {box.dtype}: use MultiDiscrete")
        self.outputs = self.free = self.noise = math.prod(box.shape)
        units = torch.tensor([_units(low, high) for low, high in box.bounds()]).view(-1, 2)
        self.register_buffer("centre", units[:, 0].contiguous(), persistent=False)
        self.register_buffer("scale", units[:, 1].contiguous(), persistent=False)
        self.log_scale = sum(math.log(scale) for scale in units[:, 1].tolist())

    def sample(self, params: Tensor, noise: Tensor, legal: Tensor | None) -> Choice:
        mean, log_std = params.chunk(2, -1)
        normal = math.sqrt(2) * torch.erfinv((2 * noise - 1).clamp(-HIGHEST, HIGHEST))
        return self._choice(params, mean + log_std.exp() * normal)

    def mode(self, params: Tensor, legal: Tensor | None) -> Choice:
        return self._choice(params, params.chunk(2, -1)[0])

    def _choice(self, params: Tensor, unit: Tensor) -> Choice:
        action = (self.centre + self.scale * unit).to(self.dtype).reshape(*unit.shape[:-1], *self.shape)
        return Choice(action, self._log_prob(params, action))

    def _log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        mean, log_std = params.chunk(2, -1)
        unit = ((action.reshape(mean.shape) - self.centre) / self.scale).to(mean.dtype)
        constant = self.outputs * 0.5 * math.log(2 * math.pi) + self.log_scale
        return (-0.5 * ((unit - mean) * (-log_std).exp()).square() - log_std).sum(-1) - constant

    def score(self, params: Tensor, action: Tensor, legal: Tensor | None) -> Score:
        constant = self.outputs * 0.5 * math.log(2 * math.pi * math.e) + self.log_scale
        return Score(self._log_prob(params, action), params.chunk(2, -1)[1].sum(-1) + constant)


def _units(low: float | None, high: float | None) -> tuple[float, float]:
    """Centre and scale of one entry."""
    if low is None or high is None:
        return 0.0, 1.0
    scale = high / 2 - low / 2
    return (low / 2 + high / 2, scale) if SMALLEST_SCALE <= scale <= LARGEST_SCALE else (0.0, 1.0)


class ActionDistribution(nn.Module):
    """The joint distribution over an action space: its leaves are independent given the parameters.

    Raises:
        ActionSpaceError: a leaf has no distribution (a Box of integers).
    """

    def __init__(self, space: Space) -> None:
        super().__init__()
        self.leaves: list[tuple[str, LeafDistribution]] = [
            (name, _leaf_distribution(leaf)) for name, leaf in leaves(space, "action")
        ]
        self.modules_of_leaves = nn.ModuleList(self._kinds())  # so that they follow the network to its device
        self.outputs = sum(leaf.outputs for _, leaf in self.leaves)
        self.free = sum(leaf.free for _, leaf in self.leaves)
        self.noise_width = sum(leaf.noise for _, leaf in self.leaves)

    def sample(self, params: Tensor, noise: Tensor, legal: Tensor | None) -> tuple[dict[str, Tensor], Tensor]:
        """An action from `noise` [..., noise_width], uniform in (0, 1), and its log-probability [...].

        Args:
            legal: [..., n] bool for a lone Discrete, else None.
        """
        if len(self.leaves) == 1:
            return self._joint([self.leaves[0][1].sample(params, noise, legal)])
        uniforms = torch.split(noise, [leaf.noise for _, leaf in self.leaves], -1)
        return self._joint(
            [
                leaf.sample(part, u, legal)
                for leaf, part, u in zip(self._kinds(), self._parts(params), uniforms, strict=True)
            ]
        )

    def mode(self, params: Tensor, legal: Tensor | None) -> tuple[dict[str, Tensor], Tensor]:
        """The most likely action and its log-probability [...]."""
        return self._joint(
            [leaf.mode(part, legal) for leaf, part in zip(self._kinds(), self._parts(params), strict=True)]
        )

    def score(self, params: Tensor, action: dict[str, Tensor], legal: Tensor | None) -> Score:
        """Log-probability of an action, and the entropy, summed over the leaves; both [...]."""
        return _sum(
            [
                leaf.score(part, action[name], legal)
                for (name, leaf), part in zip(self.leaves, self._parts(params), strict=True)
            ]
        )

    def _kinds(self) -> list[LeafDistribution]:
        return [leaf for _, leaf in self.leaves]

    def _parts(self, params: Tensor) -> list[Tensor]:
        """The parameters of each leaf: its outputs, then its free ones."""
        if len(self.leaves) == 1:
            return [params]
        outputs = torch.split(params[..., : self.outputs], [leaf.outputs for leaf in self._kinds()], -1)
        free = torch.split(params[..., self.outputs :], [leaf.free for leaf in self._kinds()], -1)
        return [torch.cat(both, -1) if both[1].shape[-1] else both[0] for both in zip(outputs, free, strict=True)]

    def _joint(self, choices: list[Choice]) -> tuple[dict[str, Tensor], Tensor]:
        actions = {name: choice.action for (name, _), choice in zip(self.leaves, choices, strict=True)}
        log_prob = choices[0].log_prob
        for choice in choices[1:]:
            log_prob = log_prob + choice.log_prob
        return actions, log_prob


def _leaf_distribution(leaf: Leaf) -> LeafDistribution:
    match leaf:
        case Discrete():
            return Categorical(leaf.n)
        case MultiDiscrete():
            return Categoricals(leaf.n)
        case MultiBinary():
            return Bernoullis(leaf.n)
        case Box():
            return Gaussian(leaf)


def _log_p(logits: Tensor, legal: Tensor | None) -> Tensor:
    if legal is not None:
        # finite, so that a row without any legal action is uniform and not nan
        logits = torch.where(legal, logits, torch.finfo(logits.dtype).min / 2)
    return torch.log_softmax(logits, -1)


def _log_bit(logits: Tensor, bits: Tensor) -> Tensor:
    return torch.nn.functional.logsigmoid(torch.where(bits, logits, -logits))


def _stack(choices: list[Choice]) -> Choice:
    return Choice(
        torch.stack([choice.action for choice in choices], -1),
        torch.stack([choice.log_prob for choice in choices], -1).sum(-1),
    )


def _sum(scores: list[Score]) -> Score:
    if len(scores) == 1:
        return scores[0]
    return Score(
        torch.stack([score.log_prob for score in scores], -1).sum(-1),
        torch.stack([score.entropy for score in scores], -1).sum(-1),
    )
