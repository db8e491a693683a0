"""A stored policy as one function of named tensors, in operations that exporters know."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rlctl_agents.algorithms.base import Algorithm, Tensors
from rlctl_agents.models.distributions import Categorical, Categoricals, Gaussian, LeafDistribution, SquashedGaussian
from rlctl_agents.models.policy import ActorCritic
from rlctl_agents.models.torso import Cnn, Pixels, Torso, VectorLeaf
from rlctl_agents.policies.answering import NoModel
from rlctl_agents.types.spaces import Box, Discrete, Leaf, MultiDiscrete, Spaces, choices, leaf_array, leaves

STATE, NEXT_STATE, FIRST, LEGAL, PARAMS = "state.", "next_state.", "first", "legal", "params."


class Graph(nn.Module):
    """One decision of an actor-critic for N observations side by side.

    Args:
        net: as it is, or `plain`.
    """

    def __init__(self, net: ActorCritic, spaces: Spaces) -> None:
        super().__init__()
        self.net = net
        self.observed = [name for name, _ in leaves(spaces.obs, "obs")]
        self.memory = sorted(net.initial_state(1))
        boxes = [(name, leaf) for name, leaf in leaves(spaces.action, "action") if isinstance(leaf, Box)]
        self.boxes = [name for name, _ in boxes]
        for index, (_, leaf) in enumerate(boxes):
            bounds = torch.tensor(bounds_of(leaf), dtype=torch.float32).view(2, *leaf.shape)
            self.register_buffer(f"bounds_{index}", bounds, persistent=False)

    def forward(self, inputs: Tensors) -> Tensors:
        """Decide.

        Args:
            inputs: leaves of the observation; with a memory `state.*` and `first`; with masks `legal`. [N, ...] each.

        Returns:
            Leaves of the most likely action, Boxes clipped to their bounds; `params.*` of the distribution; with a
            memory `next_state.*`.
        """
        obs = {name: inputs[name] for name in self.observed}
        first = inputs[FIRST] if self.memory else torch.empty(0)
        params, state = self.net.step(obs, first, {name: inputs[STATE + name] for name in self.memory})
        distribution, legal = self.net.distribution, inputs.get(LEGAL)
        found = self.clipped(distribution.mode(params, legal)[0])
        each = zip(distribution.leaves, distribution._parts(params), distribution._masks(legal), strict=True)
        for (name, leaf), part, mask in each:
            found |= {f"{PARAMS}{name}.{key}": value for key, value in parameters(leaf, part, mask).items()}
        return found | {NEXT_STATE + name: state[name] for name in self.memory}

    def clipped(self, action: Tensors) -> Tensors:
        """Boxes clipped to their bounds."""
        found = dict(action)
        for index, name in enumerate(self.boxes):
            low, high = getattr(self, f"bounds_{index}")
            found[name] = action[name].maximum(low).minimum(high)
        return found


def parameters(leaf: LeafDistribution, part: Tensor, legal: Tensor | None) -> Tensors:
    """Parameters of the distribution of one leaf, [N, ...]: as `sampling` says."""
    if isinstance(leaf, Gaussian):
        return dict(zip(("mean", "log_std"), leaf._moments(part), strict=True))
    return {"logits": part if legal is None else torch.where(legal, part, torch.finfo(part.dtype).min / 2)}


def sampling(leaf: LeafDistribution) -> dict[str, Any]:
    """Description of how an action is drawn from its parameters.

    categorical: an option of each choice, by the softmax of its `options` logits, one choice after the other; illegal
    ones have the smallest logit there is. bernoulli: bits, each by the sigmoid of its logit. gaussian:
    centre + scale * f(mean + exp(log_std) * normal), f tanh where squashed, clipped to the bounds.
    """
    if isinstance(leaf, Gaussian):
        squashed = isinstance(leaf, SquashedGaussian)
        units = {"centre": leaf.centre.tolist(), "scale": leaf.scale.tolist()}
        return {"distribution": "gaussian", "squashed": squashed, **units}
    if isinstance(leaf, (Categorical, Categoricals)):
        options = leaf.sizes if isinstance(leaf, Categoricals) else [leaf.outputs]
        return {"distribution": "categorical", "options": options}
    return {"distribution": "bernoulli"}


class PlainPixels(Pixels):
    """The same conversion in operations that every exporter has: no bytes seen as words, nothing written in place."""

    def to_float(self, image: Tensor) -> Tensor:
        if image.ndim == 5:
            image = image.permute(0, 2, 3, 1, 4).flatten(3) if self.last else image.flatten(1, 2)
        elif image.ndim == 3:
            image = image.unsqueeze(1)
        return (image.permute(0, 3, 1, 2) if self.last else image).to(torch.float32)

    def in_blocks(self, image: Tensor) -> bool:
        return False


class PlainVector(VectorLeaf):
    """The same codes, of any number of observations."""

    def encode(self, x: Tensor) -> Tensor:
        if not self.sizes:
            return super().encode(x)
        columns = torch.split(x.unsqueeze(-1).flatten(1), 1, 1)  # `len` of a batch would be a constant of the graph
        codes = [column == torch.arange(size) for column, size in zip(columns, self.sizes, strict=True)]
        return torch.cat(codes, 1).to(torch.float32)


def plain(net: ActorCritic) -> ActorCritic:
    """A copy that acts in operations that exporters know; it has no value."""
    copied = copy.deepcopy(net).requires_grad_(False)
    del copied.value
    copied.value_torso = copied.returns = None
    for module in copied.modules():
        if isinstance(module, Cnn):
            module.pixels = PlainPixels(*module.pixels)
        elif isinstance(module, Torso):
            module.vectors = {name: PlainVector(*leaf) for name, leaf in module.vectors.items()}
    return copied


def network_of(algorithm: Algorithm) -> ActorCritic:
    """The network that decides, computing in float32 from now on.

    Raises:
        NoModel: it is not the network alone that decides.
    """
    if not isinstance(algorithm.net, ActorCritic) or algorithm.needs_last:
        raise NoModel(
            f"{type(algorithm).__name__} decides by other means than an actor-critic of rlctl: .onnx and .pt2 cannot "
            "hold it, .safetensors can hold its weights"
        )
    algorithm.net._bf16 = None
    return algorithm.net


def tried(spaces: Spaces, net: ActorCritic, count: int, rng: np.random.Generator) -> Tensors:
    """Random inputs of a graph: observations of the space, states, beginnings and masks.

    Real numbers without bounds are drawn as the running moments know them.
    """
    moments = {} if net.observed is None else dict(zip(net.observed.names, net.observed.moments, strict=True))
    found: Tensors = {}
    for name, leaf in leaves(spaces.obs, "obs"):
        found[name] = torch.from_numpy(_drawn(leaf, count, moments.get(name), rng))
    memory = sorted(net.initial_state(count).items())
    for name, values in memory:
        found[STATE + name] = torch.from_numpy(rng.uniform(-1, 1, values.shape).astype(np.float32))
    if memory:
        found[FIRST] = torch.from_numpy(rng.random(count) < 0.3)
    if spaces.legal:
        found[LEGAL] = torch.from_numpy(rng.random((count, sum(choices(spaces.action)))) < 0.6)
    return found


def _drawn(leaf: Leaf, count: int, moments: Any, rng: np.random.Generator) -> NDArray[Any]:
    """[count, ...] values of a leaf."""
    dtype, shape = leaf_array(leaf)
    if not isinstance(leaf, Box):
        options = np.array(leaf.n) if isinstance(leaf, (Discrete, MultiDiscrete)) else 2
        return rng.integers(0, options, (count, *shape)).astype(dtype)
    low, high = bounds_of(leaf)
    if np.dtype(dtype).kind != "f":
        kind = np.iinfo(dtype)
        low, high = np.clip((low, high), max(kind.min, -(2**20)), min(kind.max, 2**20))
        return rng.integers(low, high, (count, low.size), endpoint=True).reshape(count, *shape).astype(dtype)
    normal = rng.normal(size=(count, low.size))
    if moments is not None and moments.mean.numel() == low.size:
        normal = normal * moments.variance.sqrt().numpy() + moments.mean.numpy()
    within = np.isfinite(high - low)
    values = np.where(within, rng.uniform(np.where(within, low, 0), np.where(within, high, 1), normal.shape), normal)
    return values.clip(low, high).reshape(count, *shape).astype(dtype)


def bounds_of(box: Box) -> NDArray[np.float64]:
    """[2, entries]: low and high, infinite where there is none."""
    pairs = [(-np.inf if low is None else low, np.inf if high is None else high) for low, high in box.bounds()]
    return np.array(pairs).T
