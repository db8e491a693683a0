"""Action distributions over any action space, from one flat vector of parameters.

Written out, since the checks and objects of torch.distributions cost more than a small network.
Every method works on any leading shape `...` and takes the parameters as `[..., outputs + free]`: those that
the network computes for each observation, then those that do not depend on it (the log standard deviations of
Gaussians, unless the network computes them).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from rlctl.spec import schema as specs
from rlctl_agents.models.inputs import require_distribution, unit
from rlctl_agents.types.spaces import Box, Discrete, Leaf, MultiBinary, MultiDiscrete, Space, leaves

LOWEST, HIGHEST = 2.0**-24, 1.0 - 2.0**-23
"""Bounds to which uniforms are clamped: one step closer to 1, and float32 rounds u * sum(p) up to sum(p) itself."""
LARGEST_MEAN = 5.0
"""Largest mean of a squashed Gaussian, before tanh, clamped softly (`bent`): tanh(5) is 0.9999."""
LARGEST_TANH = 1 - 1e-6
"""Largest squashed action in a density: closer to the bound float32 cannot tell samples apart."""
NODES = 16
"""Nodes of the quadrature for the entropy of a squashed Gaussian."""


class Choice(NamedTuple):
    action: Tensor  # [..., *shape of the leaf], dtype of the leaf
    log_prob: Tensor  # [...] of exactly that action, after the rounding to its dtype


class Score(NamedTuple):
    log_prob: Tensor  # [...] natural log
    entropy: Tensor  # [...] nats; of a Gaussian the differential entropy


class LeafDistribution(nn.Module, ABC):
    """Distribution of one leaf. A module only so that its buffers move to the device of the network: it has no
    parameters, and nothing in the state dict.

    `sample` draws an action, the same one from the same noise; `mode` takes the most probable one that is legal, of a
    Gaussian the mean. Both return it with its log-probability. `score` returns log-probability and entropy.

    Args of these methods:
        params: [..., outputs + free].
        noise: [..., noise] uniforms in (0, 1).
        legal: [..., options] bool; None: every option is.
        action: [..., *shape of the leaf].
    """

    outputs: int  # parameters that depend on the observation
    free: int = 0  # parameters that do not; they start at 0
    noise: int  # uniforms of one sample
    options: int = 0  # Booleans of a mask; 0: it cannot be masked

    @abstractmethod
    def sample(self, params: Tensor, noise: Tensor, legal: Tensor | None) -> Choice: ...

    @abstractmethod
    def mode(self, params: Tensor, legal: Tensor | None) -> Choice: ...

    @abstractmethod
    def score(self, params: Tensor, action: Tensor, legal: Tensor | None) -> Score: ...


class Categorical(LeafDistribution):
    """Distribution of a Discrete, sampled by its inverse cumulative distribution. Where no option is legal, all are."""

    noise = 1

    def __init__(self, n: int) -> None:
        super().__init__()
        self.outputs = self.options = n

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
    """Distribution of a MultiDiscrete: independent entries."""

    def __init__(self, n: tuple[int, ...]) -> None:
        super().__init__()
        self.sizes = list(n)
        self.outputs = self.options = sum(n)
        self.noise = len(n)
        self.entries = [Categorical(size) for size in n]

    def sample(self, params: Tensor, noise: Tensor, legal: Tensor | None) -> Choice:
        uniforms = torch.split(noise, 1, -1)
        return _stack(
            [
                entry.sample(part, uniform, mask)
                for (entry, part, mask), uniform in zip(self._each(params, legal), uniforms, strict=True)
            ]
        )

    def mode(self, params: Tensor, legal: Tensor | None) -> Choice:
        return _stack([entry.mode(part, mask) for entry, part, mask in self._each(params, legal)])

    def score(self, params: Tensor, action: Tensor, legal: Tensor | None) -> Score:
        each = zip(self._each(params, legal), action.unbind(-1), strict=True)
        return _sum([entry.score(part, chosen, mask) for (entry, part, mask), chosen in each])

    def _each(self, params: Tensor, legal: Tensor | None) -> Iterator[tuple[Categorical, Tensor, Tensor | None]]:
        """Every entry with its parameters and its part of the mask."""
        masks = [None] * len(self.sizes) if legal is None else torch.split(legal, self.sizes, -1)
        return zip(self.entries, torch.split(params, self.sizes, -1), masks, strict=True)


class Bernoullis(LeafDistribution):
    """Distribution of a MultiBinary: independent bits, one logit each."""

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
        log_one = functional.logsigmoid(params)
        # H = -p log p - q log q with log q = log p - logit
        entropy = (params.sigmoid() - 1) * (log_one - params) - params.sigmoid() * log_one
        return Score(_log_bit(params, action != 0).sum(-1), entropy.sum(-1))


class Gaussian(LeafDistribution):
    """Distribution of a Box of real numbers: independent entries; the mean is an output of the network, the standard
    deviation one too, or a parameter of its own.

    Each entry's parameters are in units of half the width of its bounds around their middle, or of 1 around 0 where one
    is missing or both are equal; actions are in the units of the space. A sample is not bounded: the environment clips
    it, the density is that of the sample itself.
    """

    centre: Tensor  # [entries] float32
    scale: Tensor  # [entries] float32, above 0

    def __init__(self, box: Box, config: specs.Gaussian) -> None:
        super().__init__()
        self.shape = box.shape
        self.dtype = getattr(torch, box.dtype)
        self.noise = math.prod(box.shape)
        self.outputs, self.free = (2 * self.noise, 0) if config.std == "network" else (self.noise, self.noise)
        units = torch.tensor([unit(low, high) or (0.0, 1.0) for low, high in box.bounds()]).view(-1, 2)
        self.register_buffer("centre", units[:, 0].contiguous(), persistent=False)
        self.register_buffer("scale", units[:, 1].contiguous(), persistent=False)
        self.log_scale = sum(math.log(scale) for scale in units[:, 1].tolist())
        self.start, self.range = config.log_std_init, (config.log_std_min, config.log_std_max)

    def sample(self, params: Tensor, noise: Tensor, legal: Tensor | None) -> Choice:
        mean, log_std = self._moments(params)
        normal = math.sqrt(2) * torch.erfinv((2 * noise - 1).clamp(-HIGHEST, HIGHEST))
        return self._choice(mean, log_std, mean + log_std.exp() * normal)

    def mode(self, params: Tensor, legal: Tensor | None) -> Choice:
        mean, log_std = self._moments(params)
        return self._choice(mean, log_std, mean)

    def score(self, params: Tensor, action: Tensor, legal: Tensor | None) -> Score:
        mean, log_std = self._moments(params)
        return Score(self._log_prob(mean, log_std, action), self._entropy(mean, log_std))

    def _moments(self, params: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and bounded log standard deviation, each [..., entries], in units of the bounds."""
        mean, log_std = params.chunk(2, -1)
        return mean, bent(log_std + self.start if self.start else log_std, *self.range)

    def _choice(self, mean: Tensor, log_std: Tensor, unit: Tensor) -> Choice:
        action = (self.centre + self.scale * unit).to(self.dtype).reshape(*unit.shape[:-1], *self.shape)
        return Choice(action, self._log_prob(mean, log_std, action))

    def _log_prob(self, mean: Tensor, log_std: Tensor, action: Tensor) -> Tensor:
        unit = ((action.reshape(mean.shape) - self.centre) / self.scale).to(mean.dtype)
        constant = self.noise * 0.5 * math.log(2 * math.pi) + self.log_scale
        return (-0.5 * ((unit - mean) * (-log_std).exp()).square() - log_std).sum(-1) - constant

    def _entropy(self, mean: Tensor, log_std: Tensor) -> Tensor:
        return log_std.sum(-1) + (self.noise * 0.5 * math.log(2 * math.pi * math.e) + self.log_scale)


class SquashedGaussian(Gaussian):
    """Distribution of a Box of real numbers, each entry with two bounds: tanh of a Gaussian, scaled to the bounds.

    As the mode it gives the action of the mean, which is the median. The density is that of the recorded action, found
    by inverting tanh, with its determinant; the entropy is that of the Gaussian plus the mean of the log determinant by
    Gauss-Hermite quadrature: differentiable, without random numbers, and within 0.02 nats an entry for standard
    deviations up to e.

    Source: Haarnoja et al. 2018, arXiv:1801.01290, appendix C.
    """

    nodes: Tensor  # [NODES] of a standard normal
    weights: Tensor  # [NODES] their sum is 1

    def __init__(self, box: Box, config: specs.Gaussian) -> None:
        super().__init__(box, config)
        nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
        self.register_buffer("nodes", torch.tensor(nodes, dtype=torch.float32), persistent=False)
        self.register_buffer("weights", torch.tensor(weights / weights.sum(), dtype=torch.float32), persistent=False)

    def _moments(self, params: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = super()._moments(params)
        return bent(mean, -LARGEST_MEAN, LARGEST_MEAN), log_std

    def _choice(self, mean: Tensor, log_std: Tensor, unit: Tensor) -> Choice:
        return super()._choice(mean, log_std, unit.tanh())

    def _log_prob(self, mean: Tensor, log_std: Tensor, action: Tensor) -> Tensor:
        bounded = ((action.reshape(mean.shape) - self.centre) / self.scale).to(mean.dtype)
        unit = bounded.clamp(-LARGEST_TANH, LARGEST_TANH).atanh()
        constant = self.noise * 0.5 * math.log(2 * math.pi) + self.log_scale
        density = -0.5 * ((unit - mean) * (-log_std).exp()).square() - log_std - log_slope(unit)
        return density.sum(-1) - constant

    def _entropy(self, mean: Tensor, log_std: Tensor) -> Tensor:
        samples = mean.unsqueeze(-1) + log_std.exp().unsqueeze(-1) * self.nodes.to(mean.dtype)
        slopes = (log_slope(samples) * self.weights.to(mean.dtype)).sum((-2, -1))
        return super()._entropy(mean, log_std) + slopes


def bent(x: Tensor, low: float, high: float) -> Tensor:
    """Clamp x softly: identity up to 1 before a bound, which it approaches as 1/x does, so that the gradient never
    vanishes."""
    inner = x.clamp(low + 1, high - 1)
    return inner + functional.softsign(x - inner)


def log_slope(x: Tensor) -> Tensor:
    """log(1 - tanh(x)^2) without cancellation."""
    return 2 * (math.log(2) - x - functional.softplus(-2 * x))


class ActionDistribution(nn.Module):
    """Joint distribution over an action space: its leaves are independent given the parameters.

    Args:
        gaussian: `model.gaussian` of the spec, for leaves that hold real numbers.

    Raises:
        ModelError: a leaf has no distribution (a Box of integers, or one without bounds that is to be squashed).
    """

    def __init__(self, space: Space, gaussian: specs.Gaussian) -> None:
        super().__init__()
        require_distribution(space, squash=gaussian.squash)
        self.leaves: list[tuple[str, LeafDistribution]] = [
            (name, _leaf_distribution(leaf, gaussian)) for name, leaf in leaves(space, "action")
        ]
        self.modules_of_leaves = nn.ModuleList(self._kinds())  # so that they follow the network to its device
        self.outputs = sum(leaf.outputs for _, leaf in self.leaves)
        self.free = sum(leaf.free for _, leaf in self.leaves)
        self.noise_width = sum(leaf.noise for _, leaf in self.leaves)

    def sample(self, params: Tensor, noise: Tensor, legal: Tensor | None) -> tuple[dict[str, Tensor], Tensor]:
        """Sample an action from `noise` [..., noise_width], uniform in (0, 1); also returns its log-probability [...].

        Args:
            legal: [..., n] bool, n the options of all choices in the order of the leaves; None: all are legal.
        """
        if len(self.leaves) == 1:
            return self._joint([self.leaves[0][1].sample(params, noise, legal)])
        uniforms = torch.split(noise, [leaf.noise for _, leaf in self.leaves], -1)
        return self._joint(
            [
                leaf.sample(part, u, mask)
                for leaf, part, u, mask in zip(
                    self._kinds(), self._parts(params), uniforms, self._masks(legal), strict=True
                )
            ]
        )

    def mode(self, params: Tensor, legal: Tensor | None) -> tuple[dict[str, Tensor], Tensor]:
        """The most likely action and its log-probability [...]."""
        return self._joint(
            [
                leaf.mode(part, mask)
                for leaf, part, mask in zip(self._kinds(), self._parts(params), self._masks(legal), strict=True)
            ]
        )

    def score(self, params: Tensor, action: dict[str, Tensor], legal: Tensor | None) -> Score:
        """Log-probability of an action, and the entropy, summed over the leaves; both [...]."""
        return _sum(
            [
                leaf.score(part, action[name], mask)
                for (name, leaf), part, mask in zip(self.leaves, self._parts(params), self._masks(legal), strict=True)
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

    def _masks(self, legal: Tensor | None) -> Sequence[Tensor | None]:
        """The mask of each leaf; None where there is none."""
        if legal is None or len(self.leaves) == 1:
            return [legal] * len(self.leaves)
        options = [leaf.options for leaf in self._kinds()]
        return [part if part.shape[-1] else None for part in torch.split(legal, options, -1)]

    def _joint(self, choices: list[Choice]) -> tuple[dict[str, Tensor], Tensor]:
        actions = {name: choice.action for (name, _), choice in zip(self.leaves, choices, strict=True)}
        log_prob = choices[0].log_prob
        for choice in choices[1:]:
            log_prob = log_prob + choice.log_prob
        return actions, log_prob


def _leaf_distribution(leaf: Leaf, gaussian: specs.Gaussian) -> LeafDistribution:
    match leaf:
        case Discrete():
            return Categorical(leaf.n)
        case MultiDiscrete():
            return Categoricals(leaf.n)
        case MultiBinary():
            return Bernoullis(leaf.n)
        case Box():
            return (SquashedGaussian if gaussian.squash else Gaussian)(leaf, gaussian)


def _log_p(logits: Tensor, legal: Tensor | None) -> Tensor:
    if legal is not None:
        # finite, so that a row without any legal action is uniform and not nan
        logits = torch.where(legal, logits, torch.finfo(logits.dtype).min / 2)
    return torch.log_softmax(logits, -1)


def _log_bit(logits: Tensor, bits: Tensor) -> Tensor:
    return functional.logsigmoid(torch.where(bits, logits, -logits))


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
