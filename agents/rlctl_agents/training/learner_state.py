"""State of a learner for an exact resume: weights, optimizer, random states, counters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rlctl_agents.checkpoint.state import StateError, pack_state, unpack_state


class LearnerState(NamedTuple):
    """Snapshot of a learner between two updates, which later updates do not change."""

    arrays: dict[str, NDArray[Any]]
    plain: dict[str, Any]

    def pack(self) -> bytes:
        """Encode as the bytes of a part; from any thread."""
        return pack_state(self.arrays, self.plain)


def capture(
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    counters: Mapping[str, float],
    others: Mapping[str, nn.Module] | None = None,
) -> LearnerState:
    """Copy the state of a learner.

    Args:
        counters: totals over all boots, by name.
        others: modules of the algorithm besides `net`, by name.
    """
    arrays: dict[str, NDArray[Any]] = {}
    dtypes: dict[str, str] = {}

    def keep(name: str, tensor: Tensor) -> None:
        tensor = tensor.detach().cpu()
        if tensor.dtype == torch.bfloat16:  # numpy has none
            dtypes[name], tensor = "bfloat16", tensor.view(torch.int16)
        arrays[name] = tensor.numpy().copy()

    for name, tensor in net.state_dict().items():
        keep(f"weights/{name}", tensor)
    for module, other in (others or {}).items():
        for name, tensor in other.state_dict().items():
            keep(f"modules/{module}/{name}", tensor)
    scalars: dict[str, dict[str, Any]] = {}
    for index, entry in optimizer.state_dict()["state"].items():
        for key, value in entry.items():
            if isinstance(value, Tensor):
                keep(f"optimizer/{index}/{key}", value)
            else:
                scalars.setdefault(str(index), {})[key] = value
    keep("random/cpu", torch.get_rng_state())
    if torch.cuda.is_available():
        for device, state in enumerate(torch.cuda.get_rng_state_all()):
            keep(f"random/cuda.{device}", state)
    plain = {
        "counters": dict(counters),
        "dtypes": dtypes,
        "optimizer": {"kind": type(optimizer).__name__, "scalars": scalars},
    }
    return LearnerState(arrays, plain)


def restore(
    data: bytes,
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    others: Mapping[str, nn.Module] | None = None,
) -> tuple[dict[str, float], str]:
    """Restore a captured state in a fresh learner.

    Settings of the optimizer (learning rate, decays) stay those of the fresh one: they come from the spec, which may
    have changed.

    Args:
        others: as for `capture`.

    Returns:
        The counters, and the parts that could not be restored, in words ("" if all were).

    Raises:
        StateError: the bytes are no such state, or of another network; nothing is changed then.
    """
    arrays, plain = unpack_state(data)
    try:
        counters, dtypes, kept = plain["counters"], plain["dtypes"], plain["optimizer"]
    except KeyError as error:
        raise StateError(f"a stored learner lacks its {error}") from error
    tensors = {
        name: _tensor(values, dtypes.get(name)) for name, values in arrays.items() if not name.startswith("random/")
    }
    stored = [
        (module, _stored(tensors, prefix, module))
        for prefix, module in [("weights/", net), *((f"modules/{name}/", one) for name, one in (others or {}).items())]
    ]
    problem = ""
    if kept["kind"] == type(optimizer).__name__:
        state: dict[int, dict[str, Any]] = {int(index): dict(entry) for index, entry in kept["scalars"].items()}
        for name, value in tensors.items():
            if name.startswith("optimizer/"):
                _, index, key = name.split("/", 2)
                state.setdefault(int(index), {})[key] = value
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
        _match_memory_order(optimizer)
    else:
        problem = f"the optimizer was {kept['kind']} and is {type(optimizer).__name__} now: its averages begin anew"
    for module, weights in stored:
        module.load_state_dict(weights)
    torch.set_rng_state(torch.from_numpy(arrays["random/cpu"]))
    if torch.cuda.is_available():
        for device in range(torch.cuda.device_count()):
            if f"random/cuda.{device}" in arrays:
                torch.cuda.set_rng_state(torch.from_numpy(arrays[f"random/cuda.{device}"]), device)
    return {name: float(value) for name, value in counters.items()}, problem


def _match_memory_order(optimizer: torch.optim.Optimizer) -> None:
    """Bring averages into the memory order of their parameters, in which fused optimizers walk through both: weights of
    convolutions are stored channels last, tensors from a file are not.
    """
    for parameter, averages in optimizer.state.items():
        for name, one in averages.items():
            if isinstance(one, Tensor) and one.shape == parameter.shape and one.stride() != parameter.stride():
                averages[name] = torch.empty_like(parameter, dtype=one.dtype).copy_(one)


def restore_weights(data: bytes, net: nn.Module) -> None:
    """Restore the weights of a captured state in a fresh network, for acting.

    Raises:
        StateError: the bytes are no such state, or of another network; nothing is changed then.
    """
    arrays, plain = unpack_state(data)
    dtypes = plain.get("dtypes", {})
    tensors = {
        name: _tensor(values, dtypes.get(name)) for name, values in arrays.items() if name.startswith("weights/")
    }
    net.load_state_dict(_stored(tensors, "weights/", net))


def _stored(tensors: Mapping[str, Tensor], prefix: str, module: nn.Module) -> dict[str, Tensor]:
    """State dict of a module, stored below a prefix.

    Raises:
        StateError: it belongs to another module.
    """
    weights = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    own = module.state_dict()
    if weights.keys() != own.keys() or any(weights[name].shape != value.shape for name, value in own.items()):
        changed = sorted(weights.keys() ^ own.keys()) or [
            name for name, value in own.items() if weights[name].shape != value.shape
        ]
        raise StateError(f"stored {prefix.rstrip('/')} are of another network: {', '.join(changed[:3])}")
    return weights


def _tensor(values: NDArray[Any], dtype: str | None) -> Tensor:
    tensor = torch.from_numpy(np.array(values))
    return tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor
