"""Loss of PPO and APPO on two mlps with its gradient in closed form, as one node of autograd.

Computing such a network takes less time than autograd's overhead for the sixty operations of its loss, and an update
consists of many minibatches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from rlctl_agents.algorithms.base import Tensors
from rlctl_agents.models.dense import Linear, linear, product, tanh_linear
from rlctl_agents.models.distributions import ActionDistribution, Categorical, Gaussian
from rlctl_agents.models.policy import ActorCritic
from rlctl_agents.models.torso import Mlp, Torso

MODULES = frozenset({Torso, Mlp, Linear, nn.ModuleList, ActionDistribution, Categorical, Gaussian})
"""Classes of modules that are computed here, not by their `forward`; a subclass could compute anything."""
ACTIVATIONS = (torch.tanh, torch.relu)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Differentiated(NamedTuple):
    """A sum over rows, and its derivatives with respect to log-probability, entropy and value."""

    total: Tensor  # scalar
    metrics: Tensor  # [M] sums over the rows
    by_log_prob: Tensor  # [T, B]
    by_entropy: Tensor  # scalar, the same for every row
    by_value: Tensor  # [T, B]


Objective = Callable[[Tensor, Tensor, Tensor], Differentiated]
"""Loss as a function of log-probabilities, entropies and values, [T, B] each."""


class ClosedForm:
    """Loss of a network that `fits`, from normalised observations."""

    def __init__(self, net: ActorCritic) -> None:
        ((self._action, self._leaf),) = net.distribution.leaves
        torso, value_torso = cast(Torso, net.torso), cast(Torso, net.value_torso)
        self._inputs, self._log_std = torso.vectors, net.log_std
        self._policy, self._value = _Layers(torso, net.policy), _Layers(value_torso, net.value)
        free = [] if net.log_std is None else [net.log_std]
        self._weights = [*self._policy.weights, *self._value.weights, *free]

    @staticmethod
    def fits(net: ActorCritic) -> bool:
        """True if the network is two unchanged mlps of this package, with one leaf of actions, whose standard deviation
        does not depend on the observation; in fp32 on a CPU, all of it trained, without hooks."""
        torso, value_torso, leaves = net.torso, net.value_torso, net.distribution.leaves
        if type(net) is not ActorCritic or net.core is not None or value_torso is None or len(leaves) != 1:
            return False
        parts = (torso, value_torso, net.policy, net.value, net.distribution)
        modules = [one for part in parts for one in part.modules()]
        if any(type(one) not in MODULES or any(getattr(one, hooks) for hooks in HOOKS) for one in modules):
            return False
        towers = [cast(Torso, torso), cast(Torso, value_torso)]
        return (
            all(one.mlp is not None and not one.image_names for one in towers)
            and towers[0].vectors == towers[1].vectors
            and all(not one.norms and one.activate in ACTIVATIONS for one in modules if isinstance(one, Mlp))
            and all(one.bias is not None for one in modules if isinstance(one, nn.Linear))
            and (isinstance(leaves[0][1], Categorical) or net.log_std is not None)
            and all(
                one.requires_grad and one.dtype == torch.float32 and one.device.type == "cpu"
                for one in net.parameters()
            )
        )

    def loss(self, obs: Tensors, action: Tensors, objective: Objective) -> tuple[Tensor, Tensor]:
        """Sum of the objective over N rows, and its metrics, without gradient.

        Args:
            obs: [1, N, ...] each.
            action: [1, N, ...] each.
        """
        vectors = [leaf.encode(obs[name].squeeze(0)) for name, leaf in self._inputs.items()]
        x = vectors[0] if len(vectors) == 1 else torch.cat(vectors, 1)
        total, metrics = _WithGradient.apply(  # type: ignore[no-untyped-call]
            lambda: self._differentiated(x, action[self._action], objective), *self._weights
        )
        return total, metrics

    def _differentiated(
        self, x: Tensor, action: Tensor, objective: Objective
    ) -> tuple[Differentiated, Sequence[Tensor]]:
        """The sum, and its gradients with respect to all weights."""
        params, of_policy = self._policy.forward(x)
        values, of_value = self._value.forward(x)
        if isinstance(self._leaf, Gaussian):
            assert self._log_std is not None, "it fits"
            score = _gaussian(self._leaf, params, self._log_std, action)
        else:
            score = _categorical(params, action)
        found = objective(score.log_prob.view(1, -1), score.entropy.view(1, -1), values.view(1, -1))
        by_params, by_free = score.backward(found.by_log_prob.view(-1), found.by_entropy)
        by_policy = self._policy.backward(by_params, of_policy)
        return found, [*by_policy, *self._value.backward(found.by_value.view(-1, 1), of_value), *by_free]


class _WithGradient(torch.autograd.Function):
    """A sum whose gradient is computed together with it.

    Arguments of `apply`: a function that returns both, and the weights of the gradients, in the same order.
    """

    @staticmethod
    def forward(
        ctx: Any, compute: Callable[[], tuple[Differentiated, Sequence[Tensor]]], *weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        found, ctx.gradients = compute()
        ctx.mark_non_differentiable(found.metrics)
        return found.total, found.metrics

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *torch._foreach_mul(ctx.gradients, grad))


class _Layers:
    """The layers of an mlp and a head."""

    def __init__(self, torso: Torso, head: nn.Module) -> None:
        mlp = cast(Mlp, torso.mlp)
        layers = [cast(nn.Linear, layer) for layer in (*mlp.layers, head)]
        self.weights = [one for layer in layers for one in (layer.weight, layer.bias)]
        """Weight and bias of each layer."""
        self._tanh = mlp.activate is torch.tanh

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The output, and the input of each layer."""
        weights, inputs = self.weights, [x]
        for at in range(0, len(weights) - 2, 2):
            layer = weights[at : at + 2]
            x = tanh_linear(x, *layer) if self._tanh else linear(x, *layer).relu_()
            inputs.append(x)
        return linear(x, weights[-2], weights[-1]), inputs

    def backward(self, grad: Tensor, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Gradients with respect to the weights, from the gradient with respect to the output."""
        found: list[Tensor] = []
        for at in reversed(range(len(inputs))):
            found += [grad.sum(0), product(grad.t(), inputs[at])]
            if at:
                grad = product(grad, self.weights[2 * at])
                if self._tanh:
                    grad = torch.ops.aten.tanh_backward.default(grad, inputs[at])
                else:
                    grad = torch.ops.aten.threshold_backward.default(grad, inputs[at], 0)
        return found[::-1]


class _Score(NamedTuple):
    log_prob: Tensor  # [N]
    entropy: Tensor  # [N]
    backward: Callable[[Tensor, Tensor], tuple[Tensor, list[Tensor]]]
    """Maps derivatives with respect to log-probability [N] and entropy to those with respect to the parameters [N, P]
    and the free ones."""


def _categorical(logits: Tensor, action: Tensor) -> _Score:
    """Score of logits [N, n], equal to `Categorical.score`."""
    log_p = torch.log_softmax(logits, -1)
    p, chosen = log_p.exp(), action.view(-1, 1)
    entropy = -(p * log_p).sum(-1, keepdim=True)

    def backward(by_log_prob: Tensor, by_entropy: Tensor) -> tuple[Tensor, list[Tensor]]:
        by = by_log_prob.unsqueeze(1)
        return (p * (by_entropy * (log_p + entropy) + by)).neg_().scatter_add_(-1, chosen, by), []

    return _Score(log_p.gather(-1, chosen).view(-1), entropy.view(-1), backward)


def _gaussian(leaf: Gaussian, mean: Tensor, log_std: Tensor, action: Tensor) -> _Score:
    """Score of means [N, entries] and log standard deviations [entries], equal to `Gaussian.score`."""
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

    return _Score(log_prob, entropy.expand_as(log_prob), backward)
