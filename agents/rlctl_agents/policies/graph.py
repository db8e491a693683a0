"""A stored policy as one function of named tensors, in operations that exporters know."""

from __future__ import annotations

import copy
import math
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rlctl_agents.algorithms.base import ActInputs, Algorithm, Tensors
from rlctl_agents.algorithms.q_learning import QLearning
from rlctl_agents.algorithms.r2d2 import R2d2
from rlctl_agents.algorithms.td3 import Td3
from rlctl_agents.algorithms.twin_critics import BoundedActions, TwinCriticsAlgorithm
from rlctl_agents.models.critics import SquashedPolicy
from rlctl_agents.models.distributions import (
    LARGEST_MEAN,
    Categorical,
    Categoricals,
    Gaussian,
    LeafDistribution,
    SquashedGaussian,
    bent,
)
from rlctl_agents.models.policy import ActorCritic, Recurrent
from rlctl_agents.models.q_network import NormalizedTorso, RecurrentQNetwork
from rlctl_agents.models.torso import Cnn, Pixels, Torso, VectorLeaf
from rlctl_agents.policies.answering import NoModel
from rlctl_agents.types.spaces import Box, Discrete, Leaf, MultiDiscrete, Spaces, choices, leaf_array, leaves

STATE, NEXT_STATE, FIRST, LEGAL, PARAMS = "state.", "next_state.", "first", "legal", "params."
LAST, LAST_REWARD = "last_", "last_reward"
ILLEGAL = torch.finfo(torch.float32).min / 2
"""Logit, or value, of an option that is not legal."""
Net = TypeVar("Net", bound=nn.Module)


class Graph(nn.Module):
    """One decision of a policy for N observations side by side; this class is for an actor-critic.

    Args:
        net: as it is, or `plain`.
    """

    net: Any

    def __init__(self, net: nn.Module, spaces: Spaces) -> None:
        super().__init__()
        self.net = net
        self.observed = [name for name, _ in leaves(spaces.obs, "obs")]
        self.memory = sorted(net.initial_state(1)) if isinstance(net, ActorCritic) else []
        boxes = [(name, leaf) for name, leaf in leaves(spaces.action, "action") if isinstance(leaf, Box)]
        self.boxes = [name for name, _ in boxes]
        for index, (_, leaf) in enumerate(boxes):
            bounds = torch.tensor(bounds_of(leaf), dtype=torch.float32).view(2, *leaf.shape)
            self.register_buffer(f"bounds_{index}", bounds, persistent=False)

    def forward(self, inputs: Tensors) -> Tensors:
        """Choose the most likely actions.

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

    def sampling(self) -> dict[str, dict[str, Any]]:
        """Leaf of the action -> description of its sampling; see the function `sampling`."""
        return {name: sampling(leaf) for name, leaf in self.net.distribution.leaves}

    def shortfall(self, name: str, action: Tensor, outputs: Tensors) -> float:
        """Largest shortfall of choices from the best ones, in log-probability; 0: as good.

        Args:
            name: of the leaf.
            outputs: of the policy.
        """
        leaf, logits = dict(self.net.distribution.leaves)[name], outputs[f"{PARAMS}{name}.logits"]
        return float((leaf.mode(logits, None).log_prob - leaf.score(logits, action, None).log_prob).max())

    def clipped(self, action: Tensors) -> Tensors:
        """Boxes clipped to their bounds."""
        found = dict(action)
        for index, name in enumerate(self.boxes):
            low, high = getattr(self, f"bounds_{index}")
            found[name] = action[name].maximum(low).minimum(high)
        return found


class ValueGraph(Graph):
    """Graph of a Q-network: `params.*.q` are the values of a leaf's options, and the best ones are the action.

    Args:
        epsilon: probability of a random action where it samples.
    """

    def __init__(self, net: nn.Module, spaces: Spaces, choices: nn.Module, epsilon: float) -> None:
        super().__init__(net, spaces)
        self.choices: Any = choices
        self.epsilon = epsilon
        self.options = {
            name: list(leaf.n) if isinstance(leaf, MultiDiscrete) else [leaf.n]
            for name, leaf in leaves(spaces.action, "action")
            if isinstance(leaf, (Discrete, MultiDiscrete))
        }

    def forward(self, inputs: Tensors) -> Tensors:
        legal = inputs.get(LEGAL)
        q, after = self.values(inputs)
        found: Tensors = self.choices.split(self.choices.best(q, legal)[0])
        if legal is not None:
            q = torch.where(self.choices._allowed(legal)[:, self.choices.real], q, ILLEGAL)
        each = q.split_with_sizes([sum(sizes) for sizes in self.options.values()], 1)
        return found | {f"{PARAMS}{name}.q": values for name, values in zip(self.options, each, strict=True)} | after

    def values(self, inputs: Tensors) -> tuple[Tensor, Tensors]:
        """Values [N, options] of all choices, and the memory afterwards, `next_state.*`."""
        return self.net(self.net.seen({name: inputs[name] for name in self.observed})), {}

    def sampling(self) -> dict[str, dict[str, Any]]:
        """epsilon_greedy: with probability `epsilon`, drawn once for all leaves, a uniformly random legal option of
        each choice; else the action."""
        return {
            name: {"distribution": "epsilon_greedy", "options": sizes, "epsilon": self.epsilon}
            for name, sizes in self.options.items()
        }

    def shortfall(self, name: str, action: Tensor, outputs: Tensors) -> float:
        """Largest shortfall of values from the best, in units of the largest value, or of 1."""
        sizes, q = self.options[name], outputs[f"{PARAMS}{name}.q"]
        scale = q.where(q > ILLEGAL / 2, 0.0).abs().max().clamp(min=1.0)
        chosen = action.view(len(action), -1).unbind(1)
        worse = [
            part.amax(1) - part.gather(1, one.unsqueeze(1)).squeeze(1)
            for part, one in zip(q.split_with_sizes(sizes, 1), chosen, strict=True)
        ]
        return float((torch.stack(worse).max()) / scale)


class RecurrentGraph(ValueGraph):
    """Graph of a recurrent Q-network: it also takes the last action, `last_action.*`, and reward, `last_reward`."""

    def __init__(self, algorithm: R2d2, net: RecurrentQNetwork, spaces: Spaces, epsilon: float) -> None:
        super().__init__(net, spaces, algorithm.choices, epsilon)
        self.memory = sorted(algorithm.initial_state(1))
        self._q = partial(algorithm.decide, net)
        self._acted = [name for name, _ in leaves(spaces.action, "action")]

    def values(self, inputs: Tensors) -> tuple[Tensor, Tensors]:
        obs = {name: inputs[name] for name in self.observed}
        state = {name: inputs[STATE + name] for name in self.memory}
        last = {name: inputs[LAST + name] for name in self._acted}
        q, after = self._q(obs, inputs[FIRST], state, last, inputs[LAST_REWARD])
        return q, {NEXT_STATE + name: after[name] for name in self.memory}


class BoundedGraph(Graph):
    """Graph of a policy of sac or td3: real numbers between their bounds.

    Args:
        noise: standard deviation of td3's exploration, in units of half the width of the bounds.
    """

    def __init__(self, net: nn.Module, spaces: Spaces, noise: float = 0.0) -> None:
        super().__init__(net, spaces)
        self.squashed = isinstance(net, SquashedPolicy)
        self._log_noise = math.log(max(noise, 1e-30))

    def forward(self, inputs: Tensors) -> Tensors:
        net = self.net
        params = net.policy(net.features(net.seen({name: inputs[name] for name in self.observed})))
        if self.squashed:
            mean, raw = params.chunk(2, 1)
            mean = bent(mean, -LARGEST_MEAN, LARGEST_MEAN)
            log_std, units = bent(raw + net._start, *net._range), mean.tanh()
        else:
            mean = units = params.tanh()
            log_std = torch.full_like(mean, self._log_noise)
        found = self.clipped(net.bounds.to_action(units))
        for key, values in (("mean", mean), ("log_std", log_std)):
            found |= {f"{PARAMS}{name}.{key}": part for name, part in self._by_leaf(values).items()}
        return found

    def sampling(self) -> dict[str, dict[str, Any]]:
        bounds = self.net.bounds
        centre, scale = (self._by_leaf(one.unsqueeze(0)) for one in (bounds.centre, bounds.scale))
        return {
            name: {
                "distribution": "gaussian",
                "squashed": self.squashed,
                "centre": centre[name][0].tolist(),
                "scale": scale[name][0].tolist(),
            }
            for name in self.boxes
        }

    def _by_leaf(self, flat: Tensor) -> Tensors:
        sizes = [math.prod(leaf.shape) for _, leaf in self.net.bounds._leaves]
        return dict(zip(self.boxes, flat.split_with_sizes(sizes, 1), strict=True))


def graph_of(algorithm: Algorithm, spaces: Spaces, steps: int, *, exported: bool = False) -> Graph:
    """Graph of an algorithm's decisions.

    Args:
        steps: agent steps that the weights were learned from.
        exported: in operations that exporters know; False: as the policy computes.

    Raises:
        NoModel: the algorithm does not decide by its network alone.
    """
    net = network_of(algorithm)
    net = plain(net) if exported else net
    if isinstance(algorithm, QLearning):
        nothing = torch.empty(0)
        epsilon = algorithm.epsilon(ActInputs({}, nothing, {}, nothing, progress=steps))
        if isinstance(algorithm, R2d2):
            assert isinstance(net, RecurrentQNetwork), "of r2d2"
            return RecurrentGraph(algorithm, net, spaces, float(epsilon))
        return ValueGraph(net, spaces, algorithm.choices, float(epsilon))
    if isinstance(algorithm, BoundedActions):
        return BoundedGraph(net, spaces, algorithm.config.exploration_noise if isinstance(algorithm, Td3) else 0.0)
    return Graph(net, spaces)


def parameters(leaf: LeafDistribution, part: Tensor, legal: Tensor | None) -> Tensors:
    """Parameters of the distribution of one leaf, [N, ...]; see `sampling`."""
    if isinstance(leaf, Gaussian):
        return dict(zip(("mean", "log_std"), leaf._moments(part), strict=True))
    return {"logits": part if legal is None else torch.where(legal, part, ILLEGAL)}


def sampling(leaf: LeafDistribution) -> dict[str, Any]:
    """Description of how an action is drawn from its parameters.

    categorical: an option of each choice, by the softmax of its `options` logits, one choice after the other; illegal
    ones have the logit `ILLEGAL`. bernoulli: bits, each by the sigmoid of its logit. gaussian:
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
    """Conversion of `Pixels` in operations that every exporter has: no views of bytes as words, no writes in place."""

    def to_float(self, image: Tensor) -> Tensor:
        if image.ndim == 5:
            image = image.permute(0, 2, 3, 1, 4).flatten(3) if self.last else image.flatten(1, 2)
        elif image.ndim == 3:
            image = image.unsqueeze(1)
        return (image.permute(0, 3, 1, 2) if self.last else image).to(torch.float32)

    def in_blocks(self, image: Tensor) -> bool:
        return False


class PlainVector(VectorLeaf):
    """One-hot codes of `VectorLeaf`, for any number of observations."""

    def encode(self, x: Tensor) -> Tensor:
        if not self.sizes:
            return super().encode(x)
        columns = torch.split(x.unsqueeze(-1).flatten(1), 1, 1)  # `len` of a batch would be a constant of the graph
        codes = [column == torch.arange(size) for column, size in zip(columns, self.sizes, strict=True)]
        return torch.cat(codes, 1).to(torch.float32)


def plain(net: Net) -> Net:
    """A copy of a network in operations that exporters know; an actor-critic's has no value."""
    copied = copy.deepcopy(net).requires_grad_(False)
    if isinstance(copied, ActorCritic):
        del copied.value
        copied.value_torso = copied.returns = None
    for module in copied.modules():
        if isinstance(module, Cnn):
            module.pixels = PlainPixels(*module.pixels)
        elif isinstance(module, Torso):
            module.vectors = {name: PlainVector(*leaf) for name, leaf in module.vectors.items()}
    return copied


def network_of(algorithm: Algorithm) -> ActorCritic | NormalizedTorso:
    """The network that decides, computing in float32 from now on.

    Raises:
        NoModel: the algorithm does not decide by its network alone.
    """
    replayed = isinstance(algorithm, (QLearning, TwinCriticsAlgorithm))
    others = algorithm.needs_last and not isinstance(algorithm, R2d2)
    if not isinstance(algorithm.net, NormalizedTorso if replayed else ActorCritic) or others:
        raise NoModel(
            f"{type(algorithm).__name__} decides by other means than a network of rlctl: .onnx and .pt2 cannot hold "
            "it, .safetensors can hold its weights"
        )
    algorithm.net._bf16 = None
    return algorithm.net


def tried(spaces: Spaces, net: ActorCritic | NormalizedTorso, count: int, rng: np.random.Generator) -> Tensors:
    """Random inputs of a graph: observations of the space, states, beginnings, last actions and rewards, and masks.

    Real numbers without bounds are drawn from a normal distribution with the running moments of the network.
    """
    moments = {} if net.observed is None else dict(zip(net.observed.names, net.observed.moments, strict=True))
    found: Tensors = {}
    for name, leaf in leaves(spaces.obs, "obs"):
        found[name] = torch.from_numpy(_drawn(leaf, count, moments.get(name), rng))
    recurrent = net.core if isinstance(net, RecurrentQNetwork) else net
    memory = sorted(recurrent.initial_state(count).items()) if isinstance(recurrent, (ActorCritic, Recurrent)) else []
    for name, values in memory:
        found[STATE + name] = torch.from_numpy(rng.uniform(-1, 1, values.shape).astype(np.float32))
    if memory:
        found[FIRST] = torch.from_numpy(rng.random(count) < 0.3)
    if isinstance(net, RecurrentQNetwork):
        for name, leaf in leaves(spaces.action, "action"):
            found[LAST + name] = torch.from_numpy(_drawn(leaf, count, None, rng))
        found[LAST_REWARD] = torch.from_numpy(rng.normal(size=count).astype(np.float32))
    if spaces.legal:
        found[LEGAL] = torch.from_numpy(rng.random((count, sum(choices(spaces.action)))) < 0.6)
    return found


_FAR = 1e6


def _drawn(leaf: Leaf, count: int, moments: Any, rng: np.random.Generator) -> NDArray[Any]:
    """Random values [count, ...] of a leaf."""
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
    with np.errstate(over="ignore"):
        within = high - low < _FAR  # others are no range that values come from
    values = np.where(within, rng.uniform(np.where(within, low, 0), np.where(within, high, 1), normal.shape), normal)
    return values.clip(low, high).reshape(count, *shape).astype(dtype)


def bounds_of(box: Box) -> NDArray[np.float64]:
    """Bounds [2, entries] of a Box: low and high, infinite where there is none."""
    pairs = [(-np.inf if low is None else low, np.inf if high is None else high) for low, high in box.bounds()]
    return np.array(pairs).T
