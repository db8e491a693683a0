"""The loss of PPO and APPO on two mlps with its gradient in closed form, as one node of autograd.

Such a network computes for less time than autograd takes for the some sixty operations of its loss, and an update
consists of many minibatches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from rlctl_agents.algorithms.base import Tensors
from rlctl_agents.models.distributions import Categorical, Gaussian
from rlctl_agents.models.policy import ActorCritic
from rlctl_agents.models.torso import Mlp, Torso


class Differentiated(NamedTuple):
    """A sum over rows with its derivatives."""

    total: Tensor  # scalar
    metrics: Tensor  # [M] sums over the rows
    by_log_prob: Tensor  # [T, B]
    by_entropy: Tensor  # scalar, the same for every row
    by_value: Tensor  # [T, B]


Objective = Callable[[Tensor, Tensor, Tensor], Differentiated]
"""The loss of log-probabilities, entropies and values, [T, B] each."""


class ClosedForm:
    """Policy and value of a network that is two mlps, for one leaf of actions, from observations that are normalised.

    Args:
        net: one that `fits`; its parameters stay the same objects.
    """

    def __init__(self, net: ActorCritic) -> None:
        ((self._action, self._leaf),) = net.distribution.leaves
        assert isinstance(net.torso, Torso)
        assert net.torso.mlp is not None
        self._inputs = net.torso.vectors
        self._tanh = net.torso.mlp.activate is torch.tanh
        policy, value = ([*_layers(torso), head] for torso, head in _towers(net))
        self._depth = 2 * len(policy)  # weights and biases of one of them
        self._weights = [one for layer in (*policy, *value) for one in (layer.weight, layer.bias)]
        if net.log_std is not None:
            self._weights.append(net.log_std)

    @staticmethod
    def fits(net: ActorCritic) -> bool:
        """True of a network on a processor that is made of our mlps alone, none of them changed or watched."""
        if type(net) is not ActorCritic or net.value_torso is None or not net.plain:
            return False
        layers = [layer for torso, head in _towers(net) for layer in (*_layers(torso), head)]
        whole = type(net.torso) is Torso and type(net.value_torso) is Torso
        modules = list(net.modules())
        return (
            whole
            and all(type(layer) is nn.Linear and layer.bias is not None for layer in layers)
            and not any(isinstance(one, Mlp) and one.norms for one in modules)
            and not any(one._forward_hooks or one._forward_pre_hooks or one._backward_hooks for one in modules)
            and all(one.requires_grad and one.device.type == "cpu" for one in net.parameters())
            and len(net.distribution.leaves) == 1
            and (type(net.distribution.leaves[0][1]) is Categorical or net.log_std is not None)
            and type(net.distribution.leaves[0][1]) in (Categorical, Gaussian)
        )

    def loss(self, obs: Tensors, action: Tensors, objective: Objective) -> tuple[Tensor, Tensor]:
        """The sum of the objective over N rows, and without gradient its metrics.

        Args:
            obs: [1, N, ...] each.
            action: [1, N, ...] each.
        """
        vectors = [leaf.encode(obs[name].squeeze(0)) for name, leaf in self._inputs.items()]
        x = vectors[0] if len(vectors) == 1 else torch.cat(vectors, 1)

        def compute(weights: Sequence[Tensor]) -> tuple[Differentiated, list[Tensor]]:
            policy, value = weights[: self._depth], weights[self._depth : 2 * self._depth]
            params, of_policy = self._forward(x, policy)
            values, of_value = self._forward(x, value)
            if isinstance(self._leaf, Gaussian):
                scored = _gaussian(self._leaf, params, weights[-1], action[self._action])
            else:
                scored = _categorical(params, action[self._action])
            found = objective(scored.log_prob.view(1, -1), scored.entropy.view(1, -1), values.view(1, -1))
            by_params, by_free = scored.backward(found.by_log_prob.view(-1), found.by_entropy)
            gradients = self._backward(by_params, of_policy, policy)
            gradients += self._backward(found.by_value.view(-1, 1), of_value, value)
            return found, gradients + by_free

        total, metrics = _Known.apply(compute, *self._weights)  # type: ignore[no-untyped-call]
        return total, metrics

    def _forward(self, x: Tensor, weights: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """The output of an mlp, and the inputs of its layers."""
        inputs = [x]
        for at in range(0, len(weights) - 2, 2):
            x = functional.linear(x, weights[at], weights[at + 1])
            x = x.tanh_() if self._tanh else x.relu_()
            inputs.append(x)
        return functional.linear(x, weights[-2], weights[-1]), inputs

    def _backward(self, grad: Tensor, inputs: Sequence[Tensor], weights: Sequence[Tensor]) -> list[Tensor]:
        """Gradients of an mlp's weights from that of its output."""
        found: list[Tensor] = []
        for at in reversed(range(len(inputs))):
            found += [grad.sum(0), grad.t() @ inputs[at]]
            if at:
                grad = grad @ weights[2 * at]
                if self._tanh:
                    grad = torch.ops.aten.tanh_backward.default(grad, inputs[at])
                else:
                    grad = torch.ops.aten.threshold_backward.default(grad, inputs[at], 0)
        return found[::-1]


class _Known(torch.autograd.Function):
    """A sum with a gradient that is computed together with it.

    Arguments of `apply`: a function of the weights that gives both, and the weights.
    """

    @staticmethod
    def forward(
        ctx: Any, compute: Callable[[Sequence[Tensor]], tuple[Differentiated, list[Tensor]]], *weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        found, ctx.gradients = compute(weights)
        ctx.mark_non_differentiable(found.metrics)
        return found.total, found.metrics

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *torch._foreach_mul(ctx.gradients, grad))


class _Scored(NamedTuple):
    log_prob: Tensor  # [N]
    entropy: Tensor  # [N]
    backward: Callable[[Tensor, Tensor], tuple[Tensor, list[Tensor]]]
    """Derivatives by the parameters [N, P], and by those that are free, from those by log-probability and entropy."""


def _categorical(logits: Tensor, action: Tensor) -> _Scored:
    """As `Categorical.score`, of [N, n]."""
    log_p = torch.log_softmax(logits, -1)
    p, chosen = log_p.exp(), action.view(-1, 1)
    entropy = -(p * log_p).sum(-1, keepdim=True)

    def backward(by_log_prob: Tensor, by_entropy: Tensor) -> tuple[Tensor, list[Tensor]]:
        by = by_log_prob.unsqueeze(1)
        return (p * (by_entropy * (log_p + entropy) + by)).neg_().scatter_add_(-1, chosen, by), []

    return _Scored(log_p.gather(-1, chosen).view(-1), entropy.view(-1), backward)


def _gaussian(leaf: Gaussian, mean: Tensor, log_std: Tensor, action: Tensor) -> _Scored:
    """As `Gaussian.score`, of means [N, entries] and log deviations [entries] that no observation changes."""
    raw = log_std + leaf.start
    inner = raw.clamp(leaf.range[0] + 1, leaf.range[1] - 1)
    beyond = raw - inner
    bounded = inner + functional.softsign(beyond)
    inverse = (-bounded).exp()
    z = (((action.reshape(mean.shape) - leaf.centre) / leaf.scale).to(mean.dtype) - mean) * inverse
    summed = bounded.sum()
    log_prob = z.square().sum(-1).mul_(-0.5) - (summed + (leaf.noise * 0.5 * math.log(2 * math.pi) + leaf.log_scale))
    entropy = summed + (leaf.noise * 0.5 * math.log(2 * math.pi * math.e) + leaf.log_scale)

    def backward(by_log_prob: Tensor, by_entropy: Tensor) -> tuple[Tensor, list[Tensor]]:
        by_z = z * by_log_prob.unsqueeze(1)
        by_bounded = (by_z * z).sum(0) - by_log_prob.sum() + by_entropy * len(z)
        return by_z * inverse, [by_bounded * (1 + beyond.abs()).pow(-2)]

    return _Scored(log_prob, entropy.expand_as(log_prob), backward)


def _towers(net: ActorCritic) -> list[tuple[nn.Module, nn.Linear]]:
    assert net.value_torso is not None
    return [(net.torso, net.policy), (net.value_torso, net.value)]  # type: ignore[list-item]


def _layers(torso: nn.Module) -> list[Any]:
    return list(torso.mlp.layers) if isinstance(torso, Torso) and torso.mlp else []
