"""Adam for small networks, for which the overhead of `torch.optim.Adam` takes longer than the arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor


class _Lists(NamedTuple):
    """Tensors of a parameter group, as arguments of the fused kernel."""

    parameters: list[Tensor]
    means: list[Tensor]
    squares: list[Tensor]
    step: Tensor  # one for all of them

    def trained(self) -> _Lists:
        """Those that have a gradient."""
        having = [row for row in zip(*self[:3], strict=True) if row[0].grad is not None]
        return _Lists(*map(list, zip(*having, strict=True)), step=self.step)  # type: ignore[misc, arg-type]


class SmallAdam(torch.optim.Adam):
    """torch's fused Adam with the same state, but without hooks of steps.

    A parameter group is left out of a step while its key `held` is true, and so is a parameter without a gradient, as a
    frozen one. Steps are counted by group.

    Source: Kingma and Ba 2015, arXiv:1412.6980.
    """

    def __init__(self, groups: list[dict[str, Any]], eps: float) -> None:
        super().__init__(groups, eps=eps, fused=True)
        self._lists: list[_Lists] = []

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        if not self._lists:
            self._lists = [self._of(group["params"]) for group in self.param_groups]
        for group, of in zip(self.param_groups, self._lists, strict=True):
            grads = [one.grad for one in of.parameters if one.grad is not None]
            if not grads or group.get("held"):
                continue
            if len(grads) < len(of.parameters):
                of = of.trained()
            of.step.add_(1.0)
            beta1, beta2 = group["betas"]
            steps = [of.step] * len(grads)
            torch._fused_adam_(
                of.parameters, grads, of.means, of.squares, [], steps, lr=group["lr"], beta1=beta1, beta2=beta2,
                weight_decay=0.0, eps=group["eps"], amsgrad=False, maximize=False, grad_scale=None, found_inf=None,
            )  # fmt: skip

    step.hooked = True  # type: ignore[attr-defined]  # torch wraps it in a range of its profiler otherwise

    def zero_grad(self, set_to_none: bool = True) -> None:
        for group in self.param_groups:
            for one in group["params"]:
                one.grad = None

    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict(state_dict)
        self._lists = []

    def _of(self, parameters: list[Tensor]) -> _Lists:
        step = self.state[parameters[0]].get("step")
        if step is None:
            step = torch.zeros((), dtype=torch.float32, device=parameters[0].device)
        for one in parameters:
            state = self.state[one]
            state["step"] = step
            for name in ("exp_avg", "exp_avg_sq"):
                # in the parameter's memory layout: the kernel walks through all of them in the order of memory
                made = torch.zeros_like(one, memory_format=torch.preserve_format)
                state[name] = made.copy_(state[name]) if name in state else made
        means, squares = ([self.state[one][name] for one in parameters] for name in ("exp_avg", "exp_avg_sq"))
        return _Lists(parameters, means, squares, step)
