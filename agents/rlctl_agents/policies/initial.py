"""First weights of a run that begins from another one's policy (`init` of the spec)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from rlctl.spec.problems.initial import misfits, taken, unknown_parts
from rlctl.spec.runs.model_names import is_folder
from rlctl.spec.schema import Init
from rlctl_agents.algorithms.base import Algorithm
from rlctl_agents.checkpoint.parts import PartError, read_part
from rlctl_agents.checkpoint.policy import unpack_policy
from rlctl_agents.checkpoint.state import unpack_weights
from rlctl_agents.policies.loaded import DESCRIPTION, require_signed, stored
from rlctl_agents.types.experience import ModelRef


class NotInitial(Exception):
    """A policy that a run cannot begin from; the text has every reason."""


def begin_from(folder: Path, algorithm: Algorithm, init: Init) -> ModelRef:
    """Load the first weights of a run from a policy in its storage.

    Args:
        folder: as `rlctl pull` makes one.
        algorithm: with its first weights, on any device.
        init: names the parts to take.

    Returns:
        Reference of the model.

    Raises:
        NotInitial: it is damaged, or arrays do not fit; nothing is changed then.
    """
    try:
        described = unpack_policy((folder / DESCRIPTION).read_bytes())
        weights = unpack_weights(read_part(folder, described.tensors, described.sha256))
    except (PartError, OSError, ValueError) as error:
        raise NotInitial(f"init.run {init.run}: {error}") from error
    _take({name: torch.from_numpy(array) for name, array in weights.items()}, algorithm, init)
    return described.ref


def begin_from_stored(base: Path, algorithm: Algorithm, init: Init) -> ModelRef:
    """Load the first weights from the policy that the spec names, of a run of this machine or in a folder, without a
    copy in between.

    Args:
        base: folder of the spec file, to which paths are relative.

    Raises:
        NotInitial: as `begin_from`; or there is none, or it is not signed as it has to be.
    """
    where = base / Path(init.run).expanduser() if is_folder(init.run) else init.run
    try:
        if init.verify is not None:
            require_signed(Path(where), base / init.verify)
        described, made = stored(where)
    except (LookupError, ImportError, ValueError) as error:
        raise NotInitial(f"init.run: {error}") from error
    _take(made.net.state_dict(), algorithm, init)
    return described.ref


@torch.no_grad()
def _take(given: Mapping[str, Tensor], algorithm: Algorithm, init: Init) -> None:
    """Copy weights into a fresh network, and into copies of it, such as target networks.

    Raises:
        NotInitial: with every part that is unknown and every array that does not fit.
    """
    own, theirs = algorithm.net.state_dict(), _arrays(given)
    faults = [*unknown_parts(theirs, init.parts, init.run), *misfits(theirs, _arrays(own), init.parts, init.run)]
    if faults:
        raise NotInitial("; ".join(f"{'.'.join(map(str, fault.path))}: {fault.message}" for fault in faults))
    copies = [module for module in algorithm.modules.values() if _is_copy(module, algorithm.net)]
    for name in taken(theirs, init.parts):
        own[name].copy_(given[name])
    for module in copies:
        module.load_state_dict({name: own[name] for name in module.state_dict()})


def arrays_of(algorithm: Algorithm) -> dict[str, str]:
    """Name of each array of the network -> dtype and shape."""
    return _arrays(algorithm.net.state_dict())


def _arrays(state: Mapping[str, Tensor]) -> dict[str, str]:
    return {name: f"{str(one.dtype).removeprefix('torch.')} {list(one.shape)}" for name, one in state.items()}


def _is_copy(module: nn.Module, net: nn.Module) -> bool:
    """True if another module is a copy of the network; it need not have moments of observations."""
    own, held = net.state_dict(), module.state_dict()
    if module is net or held.keys() != {name for name in own if name in held or not name.startswith("observed.")}:
        return False
    return bool(held) and all(torch.equal(values, own[name]) for name, values in held.items())
