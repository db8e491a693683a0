"""Models on a volume: one immutable file of weights each, and beside it the description of the policy."""

from __future__ import annotations

import hashlib
import logging
import re
from pathlib import Path

from msgspec.structs import replace

from rlctl_agents.checkpoint.policy import PolicyFileError, kept_name, pack_policy, unpack_policy
from rlctl_agents.runtime.storage import replace_file
from rlctl_agents.types.experience import ModelRef
from rlctl_agents.weights.client import Model

POLICY = re.compile(r"[a-z0-9]([-a-z0-9]{0,18}[a-z0-9])?")

log = logging.getLogger(__name__)


def keep(folder: Path, model: Model) -> str:
    """Store a model; it is on the disk when this returns. Kept already: nothing.

    Args:
        folder: models/, on the volume.

    Returns:
        Name of the file that describes it. The weights are there whenever this is.

    Raises:
        ValueError: the policy's name cannot be part of a file name, the description is not valid, or the weights do
            not match the checksum.
        OSError: the volume refuses.

    Example:
        Version 233 of the first lineage is `main-l0001-v000000000233-e3b0c44298fc.json` beside `.safetensors`.
    """
    ref, sha256 = model.ref, model.sha256
    if not POLICY.fullmatch(ref.policy):
        raise ValueError(f"{ref.policy!r} is not the name of a policy")
    if hashlib.sha256(model.data).hexdigest() != sha256:
        raise ValueError(f"{len(model.data)} bytes do not have sha256 {sha256[:12]}")
    weights = folder / f"{kept_name(ref, sha256[:12])}.safetensors"
    policy = weights.with_suffix(".json")
    described = replace(unpack_policy(model.policy), ref=ref, tensors=weights.name, sha256=sha256)
    if not (policy.is_file() and weights.is_file()):
        replace_file(weights, model.data, durable=True)
        replace_file(policy, pack_policy(described), durable=True)
    return policy.name


def read(folder: Path, ref: ModelRef) -> Model | None:
    """Read kept weights and check them; None when there are none, or they are damaged."""
    for path in _files(folder, ref, "json"):
        try:
            policy = path.read_bytes()
            described = unpack_policy(policy)
            data = (folder / Path(described.tensors).name).read_bytes()
        except (OSError, PolicyFileError) as error:
            log.error("%s cannot be read: %s", path.name, error)
            continue
        if hashlib.sha256(data).hexdigest() == described.sha256:
            return Model(ref, described.sha256, data, policy)
        log.error("%s is damaged: its bytes are not those that were kept", described.tensors)
    return None


def size(folder: Path, ref: ModelRef) -> int:
    """Bytes of kept weights, without reading them; 0 when there are none."""
    try:
        return max((path.stat().st_size for path in _files(folder, ref, "safetensors")), default=0)
    except OSError:
        return 0


def _files(folder: Path, ref: ModelRef, suffix: str) -> list[Path]:
    """Files of a kept model; none where the volume refuses to list them."""
    if not POLICY.fullmatch(ref.policy):
        return []
    try:
        return sorted(folder.glob(f"{kept_name(ref, '*')}.{suffix}"))
    except OSError as error:
        log.error("%s cannot be listed: %s", folder, error)
        return []
