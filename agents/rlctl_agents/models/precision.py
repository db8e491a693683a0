"""Precision of torsos: float32, or bfloat16 where the processor multiplies that faster.

Only the torso: weights, memory, heads, losses and V-trace are float32 always, and so are a torso's outputs.
"""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from rlctl.spec.schema import Network
from rlctl_agents.models.inputs import nets
from rlctl_agents.types.spaces import Space

CPUINFO = Path("/proc/cpuinfo")
WITH_BF16 = ("amx_bf16", "avx512_bf16")
"""Flags of processors that multiply bfloat16 in hardware; others emulate it, which is slower than float32."""
LARGE = frozenset({"nature_cnn", "impala_cnn"})
"""Nets that take more time than the conversion of their inputs."""
WORTH_KEEPING = 1 << 15
"""Least numbers of a weight that is kept in bfloat16 for acting; converting smaller ones costs next to nothing."""


class Precision(NamedTuple):
    """Chosen precision, and the reason for the log."""

    name: Literal["fp32", "bf16"]
    why: str


@cache
def cpuinfo(name: str) -> str:
    """A field of the first processor in /proc/cpuinfo; "" without it."""
    try:
        lines = CPUINFO.read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


@cache
def bf16_flag() -> str:
    """Flag of this processor's bfloat16 hardware; "" if none is known."""
    flags = cpuinfo("flags").split()
    return next((flag for flag in WITH_BF16 if flag in flags), "")


def choose(network: Network, space: Space, *, sync: bool, gpu: bool, flag: str) -> Precision:
    """Resolve `model.precision` for this machine.

    Args:
        network: as in the spec.
        space: observation space.
        sync: lock-step, which is always fp32.
        gpu: the network is computed by a GPU; `auto` is fp32 there (docs/decisions/0009).
        flag: `bf16_flag()` of this processor.
    """
    if sync:
        return Precision("fp32", "sync is true")
    if network.precision != "auto":
        lacking = network.precision == "bf16" and not gpu and not flag
        return Precision(network.precision, "model.precision says so" + ", though the processor has no bf16" * lacking)
    if gpu:
        return Precision("fp32", "there is a GPU, on which bf16 was never measured")
    if ":" in network.torso or not LARGE.intersection(nets(space, network.torso).values()):
        return Precision("fp32", "the torso is neither nature_cnn nor impala_cnn")
    return Precision("bf16", f"the processor has {flag}") if flag else Precision("fp32", "the processor has no bf16")


class Bf16:
    """Computation of torsos in bfloat16, with cached copies of weights for acting. The torsos and their weights stay as
    they are.

    There is no copy for a torso that is trained, nor on a GPU: fused optimizers, and there kernels over lists of
    tensors, write to weights without torch counting it, so that a copy would become stale unnoticed. On a CPU torch
    counts what is written to lists tensor by tensor, as target networks are (tested).
    """

    def __init__(self) -> None:
        self._kept: dict[nn.Module, _Kept] = {}
        self._trained: set[nn.Module] = set()

    def __call__(self, torso: nn.Module, obs: dict[str, Tensor]) -> Tensor:
        """Observations [N, ...] each -> [N, features] float32."""
        device = next(iter(obs.values())).device.type
        if device == "cpu":
            torso = self._for_acting(torso) if not torch.is_grad_enabled() else self._for_training(torso)
        with torch.autocast(device, torch.bfloat16):
            features: Tensor = torso(obs)
        return features.float()

    def _for_training(self, torso: nn.Module) -> nn.Module:
        self._trained.add(torso)
        self._kept.pop(torso, None)
        return torso

    def _for_acting(self, torso: nn.Module) -> nn.Module:
        """The torso with its large weights in bfloat16, converted anew after each write to them."""
        if torso in self._trained:
            return torso
        kept = self._kept.get(torso)
        if kept is None:
            kept = self._kept[torso] = _Kept(torso)
        kept.refresh()
        return kept.module

    def __deepcopy__(self, memo: dict[int, object]) -> Bf16:
        return Bf16()


class _Kept:
    """A copy of a torso that shares its small weights and has the large ones of its dense layers in bfloat16."""

    def __init__(self, torso: nn.Module) -> None:
        layers = (module for module in torso.modules() if isinstance(module, (nn.Linear, nn.Conv2d)))
        self._large = [layer.weight for layer in layers if layer.weight.numel() >= WORTH_KEEPING]
        converted = [nn.Parameter(weight.detach().bfloat16(), requires_grad=False) for weight in self._large]
        shared = {id(tensor): tensor for tensor in (*torso.parameters(), *torso.buffers())}
        own = {id(weight): mine for weight, mine in zip(self._large, converted, strict=True)}
        self.module: nn.Module = copy.deepcopy(torso, {**shared, **own})
        self._converted = converted
        self._versions = [weight._version for weight in self._large]

    @torch.no_grad()
    def refresh(self) -> None:
        """Convert the weights again if they have changed; torch counts the writes to a tensor."""
        versions = [weight._version for weight in self._large]
        if versions != self._versions:
            for mine, weight in zip(self._converted, self._large, strict=True):
                mine.copy_(weight)
            self._versions = versions
