"""Networks of actor-critics with a replay: policies over bounded real numbers or over options, and two critics side by
side."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from rlctl.spec.schema import Network
from rlctl_agents.models.actions import require_bounds, require_choices
from rlctl_agents.models.dense import Linear, linear, product
from rlctl_agents.models.distributions import HIGHEST, LARGEST_MEAN, ActionDistribution, log_slope
from rlctl_agents.models.inputs import unit
from rlctl_agents.models.precision import Bf16
from rlctl_agents.models.q_network import NormalizedTorso, seeded
from rlctl_agents.models.torso import gain, hold_still, make_torso, orthogonal
from rlctl_agents.types.spaces import Box, Space, Spaces, leaves

Tensors = dict[str, Tensor]
ILLEGAL = -1e9
"""Logit of an option that is not legal: finite, so that where none is, all are alike, and so that its log-probability
times any temperature and a probability of 0 is 0."""
LOG_ROOT = 0.5 * math.log(2 * math.pi)


class Bounds(nn.Module):
    """Conversion of the actions of a space of bounded Boxes to one vector, scaled by the bounds to [-1, 1], and back.

    A module only so that it follows the network to its device.

    Raises:
        ModelError: an action has a leaf of another kind; every such leaf is named.
    """

    centre: Tensor  # [A]
    scale: Tensor  # [A]

    def __init__(self, space: Space) -> None:
        super().__init__()
        self._leaves = [(name, leaf) for name, leaf in leaves(space, "action") if isinstance(leaf, Box)]
        require_bounds(space)
        units = torch.tensor([unit(low, high) for _, leaf in self._leaves for low, high in leaf.bounds()]).view(-1, 2)
        self.register_buffer("centre", units[:, 0].contiguous(), persistent=False)
        self.register_buffer("scale", units[:, 1].contiguous(), persistent=False)
        self.count = len(units)

    def to_action(self, units: Tensor) -> dict[str, Tensor]:
        """[N, A] from -1 to 1 -> actions in the form of the space."""
        flat = self.centre + self.scale * units
        parts = flat.split_with_sizes([math.prod(leaf.shape) for _, leaf in self._leaves], 1)
        return {
            name: part.to(getattr(torch, leaf.dtype)).reshape(-1, *leaf.shape)
            for (name, leaf), part in zip(self._leaves, parts, strict=True)
        }

    def to_units(self, action: dict[str, Tensor]) -> Tensor:
        """Actions in the form of the space -> [N, A], clipped to the bounds, as the environment does."""
        parts = [action[name].unsqueeze(-1).flatten(1).to(torch.float32) for name, _ in self._leaves]
        flat = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        return ((flat - self.centre) / self.scale).clamp(-1.0, 1.0)


class SquashedPolicy(NormalizedTorso):
    """Means and log standard deviations of a Gaussian squashed by tanh, one for each number of an action."""

    def __init__(self, spaces: Spaces, network: Network, *, seed: int) -> None:
        super().__init__(spaces, network, seed=seed)
        self.bounds = Bounds(spaces.action)
        with seeded(seed + 1):
            self.policy = orthogonal(Linear(self.width, 2 * self.bounds.count), network.gains.policy)
        self._range = (network.gaussian.log_std_min, network.gaussian.log_std_max)
        self._start = network.gaussian.log_std_init

    def forward(self, seen: dict[str, Tensor], normal: Tensor | None) -> tuple[Tensor, Tensor]:
        """An action [N, A] in [-1, 1], and its log-density [N] there, differentiable in the weights.

        Args:
            seen: observations from `seen`, [N, ...] each.
            normal: [N, A] samples of a standard normal; None: the action of the mean, with the density of that sample.
        """
        params = self.policy(self.features(seen))
        noise = torch.zeros_like(params[:, self.bounds.count :]) if normal is None else normal
        return _Squashed.apply(params, noise, self._start, *self._range)  # type: ignore[no-untyped-call,no-any-return]


class _Squashed(torch.autograd.Function):
    """tanh(m + s n) and its log-density, with gradients in closed form: autograd's operations cost more than a layer.

    m is the first half of the parameters, clamped softly to +-LARGEST_MEAN as by `distributions.bent`; log s is the
    other half + start, clamped softly between low and high. With u = m + s n and a = tanh u:

        log p(a) = sum of - n^2 / 2 - log s - log(2 pi) / 2 - log(1 - a^2)
        da/du = 1 - a^2,  d log p / du = 2 a,  du/dm = 1,  du / d log s = s n,  d log p / d log s = 2 a s n - 1
    """

    @staticmethod
    def forward(
        ctx: Any, params: Tensor, normal: Tensor, start: float, low: float, high: float
    ) -> tuple[Tensor, Tensor]:
        count = normal.shape[1]
        raw_mean, raw_log_std = params[:, :count], params[:, count:]
        if start:
            raw_log_std = raw_log_std + start
        near_mean, near_log = raw_mean.clamp(1 - LARGEST_MEAN, LARGEST_MEAN - 1), raw_log_std.clamp(low + 1, high - 1)
        beyond_mean, beyond_log = raw_mean - near_mean, raw_log_std - near_log
        log_std = near_log + functional.softsign(beyond_log)
        spread = log_std.exp() * normal
        before = near_mean + functional.softsign(beyond_mean) + spread
        action = before.tanh()
        log_prob = (log_slope(before) + log_std).add_(normal.square(), alpha=0.5).sum(1).neg_().sub_(count * LOG_ROOT)
        ctx.save_for_backward(action, spread, beyond_mean, beyond_log)
        return action, log_prob

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_action: Tensor, by_log_prob: Tensor) -> tuple[Tensor | None, ...]:
        action, spread, beyond_mean, beyond_log = ctx.saved_tensors
        of_row = by_log_prob.unsqueeze(1)
        by_before = torch.addcmul(by_action * (1 - action.square()), of_row, action, value=2.0)
        by_log = by_before * spread - of_row
        by_params = torch.cat([by_before, by_log], 1)
        # softsign'(x) = (1 + |x|)^-2, which is 1 where nothing is clamped
        bend = torch.cat([beyond_mean, beyond_log], 1).abs_().add_(1.0).square_()
        return by_params.div_(bend), None, None, None, None


class TanhPolicy(NormalizedTorso):
    """Deterministic policy: tanh of the head."""

    def __init__(self, spaces: Spaces, network: Network, *, seed: int) -> None:
        super().__init__(spaces, network, seed=seed)
        self.bounds = Bounds(spaces.action)
        with seeded(seed + 1):
            self.policy = orthogonal(Linear(self.width, self.bounds.count), network.gains.policy)

    def forward(self, seen: dict[str, Tensor]) -> Tensor:
        """Actions [N, A] in [-1, 1]."""
        return torch.tanh(self.policy(self.features(seen)))


class ChoicePolicy(NormalizedTorso):
    """Logits of the options of all choices: a Categorical for each choice, independent given the observation."""

    def __init__(self, spaces: Spaces, network: Network, *, seed: int) -> None:
        super().__init__(spaces, network, seed=seed)
        self.sizes = list(require_choices(spaces.action))
        self.distribution = ActionDistribution(spaces.action, network.gaussian)
        with seeded(seed + 1):
            self.policy = orthogonal(Linear(self.width, sum(self.sizes)), network.gains.policy)

    def forward(self, seen: Tensors) -> Tensor:
        """[N, options] logits."""
        logits: Tensor = self.policy(self.features(seen))
        return logits

    def step(self, obs: Tensors, first: Tensor, state: Tensors) -> tuple[Tensor, Tensors]:
        """Parameters [N, options] of the action distribution, and no memory."""
        return self(self.seen(obs)), {}

    def log_probs(self, seen: Tensors, legal: Tensor | None) -> Tensor:
        """Log-probability of each option within its choice, [N, options]; very small, but finite, if it is not legal.

        Args:
            legal: [N, options]; where no option of a choice is legal, all of them are.
        """
        logits = self(seen)
        if legal is not None:
            logits = torch.where(legal, logits, ILLEGAL)
        if len(self.sizes) == 1:
            return torch.log_softmax(logits, 1)
        return torch.cat([torch.log_softmax(part, 1) for part in logits.split_with_sizes(self.sizes, 1)], 1)


class TwinCritics(nn.Module):
    """Two mlps on features of the observation and an action, the weights of each layer in one tensor for both.

    Without an action they give a value for each of some options. Vectors are inputs as they are; images pass through
    one convolutional net for both, or the whole observation through a network of the user's own. Layers are as `model`
    says.

    Args:
        actions: numbers of an action; 0: no action.
        options: values per critic; None: one, of the given action.

    Raises:
        ModelError: network and spaces do not fit.
    """

    def __init__(
        self, spaces: Spaces, network: Network, actions: int, *, options: int | None = None, seed: int
    ) -> None:
        super().__init__()
        with seeded(seed):
            self.torso = make_torso(spaces.obs, network.model_copy(update={"hidden": []}))
            widths = [int(self.torso.features) + actions, *network.hidden, options or 1]  # type: ignore[arg-type]
            gains = [gain(network)] * len(network.hidden) + [network.gains.value]
            self.weights = nn.ParameterList(
                nn.Parameter(torch.stack([orthogonal(nn.Linear(a, b), one).weight.detach().T for _ in range(2)]))
                for a, b, one in zip(widths, widths[1:], gains, strict=False)
            )
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(2, 1, width)) for width in widths[1:])
        self._options = options
        self._norm = network.layer_norm
        self.scales = nn.ParameterList(
            nn.Parameter(torch.ones(2, 1, width)) for width in network.hidden if network.layer_norm
        )
        self.shifts = nn.ParameterList(
            nn.Parameter(torch.zeros(2, 1, width)) for width in network.hidden if network.layer_norm
        )
        self._activate = torch.tanh if network.activation == "tanh" else torch.relu
        self._bf16 = Bf16() if network.precision == "bf16" else None
        hold_still(self)

    def features(self, seen: dict[str, Tensor]) -> Tensor:
        """Observations from the policy's `seen`, [N, ...] each -> [N, features]."""
        features: Tensor = self.torso(seen) if self._bf16 is None else self._bf16(self.torso, seen)
        return features

    def forward(self, features: Tensor, action: Tensor | None = None, *, frozen: bool = False) -> Tensor:
        """Values of both critics, [2, N], or [2, N, options].

        Args:
            features: from `features`.
            action: [N, A] in [-1, 1]; None: no action.
            frozen: True for a gradient with respect to the inputs alone, not the weights.
        """
        weights, biases, *norms = self._layers(frozen)
        inputs = features if action is None else torch.cat([features, action], 1)
        if inputs.device.type == "cpu" and not self._norm:
            values: Tensor = _Twins.apply(inputs, self._activate, *weights, *biases)  # type: ignore[no-untyped-call]
            return values.squeeze(2) if self._options is None else values
        x = inputs.expand(2, -1, -1)
        last = len(weights) - 1
        for at, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            x = torch.baddbmm(bias, x, weight)
            if at < last:
                if self._norm:
                    x = functional.layer_norm(x, x.shape[-1:]) * norms[0][at] + norms[1][at]
                x = self._activate(x)
        return x.squeeze(2) if self._options is None else x

    def _layers(self, frozen: bool) -> list[list[Tensor]]:
        lists = (self.weights, self.biases, self.scales, self.shifts)
        return [[one.detach() if frozen else one for one in layers] for layers in lists]


class _Twins(torch.autograd.Function):
    """Both mlps of `TwinCritics` on a CPU, with the gradient in closed form.

    One after the other, in place: each product then finds its rows in the cache, and a batched product of one column
    takes seven times as long as two.
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, activate: Callable[[Tensor], Tensor], *layers: Tensor) -> Tensor:
        """[N, a], and weights [2, a, b] of all layers, then their biases [2, 1, b] -> [2, N, outputs]."""
        depth = len(layers) // 2
        ctx.tanh, kept, values = activate is torch.tanh, [inputs], []
        for k in range(2):
            x = inputs
            for at in range(depth):
                x = linear(x, layers[at][k].t(), layers[depth + at][k, 0])
                if at < depth - 1:
                    kept.append(x.tanh_() if ctx.tanh else x.relu_())
            values.append(x)
        ctx.save_for_backward(*kept, *layers[:depth])
        return torch.stack(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        depth = (len(ctx.saved_tensors) + 1) // 3
        inputs, *kept = ctx.saved_tensors[: 2 * depth - 1]
        weights = ctx.saved_tensors[2 * depth - 1 :]
        of_inputs, trained = ctx.needs_input_grad[0], any(ctx.needs_input_grad[2:])
        by_inputs: Tensor | None = None
        by_weights: list[list[Tensor]] = [[] for _ in weights]  # of each layer
        by_biases: list[list[Tensor]] = [[] for _ in weights]
        for k in range(2):
            by = grad[k]
            for at in reversed(range(depth)):
                x = kept[k * (depth - 1) + at - 1] if at else inputs
                if trained:
                    by_weights[at].append(product(x.t(), by))
                    by_biases[at].append(by.sum(0, keepdim=True))
                if at or of_inputs:
                    by = product(by, weights[at][k].t())
                if at and ctx.tanh:
                    torch.ops.aten.tanh_backward.grad_input(by, x, grad_input=by)
                elif at:
                    torch.ops.aten.threshold_backward.grad_input(by, x, 0, grad_input=by)
            if of_inputs:
                by_inputs = by if by_inputs is None else by_inputs.add_(by)
        found = [torch.stack(both) if trained else None for both in (*by_weights, *by_biases)]
        return by_inputs, None, *found


def normals(uniform: Tensor) -> Tensor:
    """Samples of a standard normal by its inverse cumulative distribution; both of any shape.

    Args:
        uniform: in (0, 1); 0 and 1 give the outermost values that float32 has.
    """
    return math.sqrt(2) * torch.erfinv((2 * uniform - 1).clamp(-HIGHEST, HIGHEST))
