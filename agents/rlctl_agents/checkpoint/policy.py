"""Self-description of a stored policy: all that is needed to load, evaluate, export or resume the tensors beside it."""

from __future__ import annotations

from typing import Any

import msgspec

from rlctl_agents.types.experience import ModelRef, Schema
from rlctl_agents.types.spaces import Spaces, leaf_array, leaves

FORMAT = 1


def kept_name(ref: ModelRef, end: str) -> str:
    """Name, without suffix, of the files of a model that is kept.

    Args:
        end: first digits of the sha256 of its weights; `*` in a pattern; "" for the common prefix of all its names.
    """
    return f"{ref.policy}-l{ref.lineage:04d}-v{ref.version:012d}-{end}"


class PolicyFileError(ValueError):
    """Bytes that describe no policy, or one of another format."""


class Observed(msgspec.Struct, frozen=True):
    """One field of an observation."""

    name: str  # dotted: obs.camera
    dtype: str  # numpy name
    shape: tuple[int, ...]


class PolicyFile(msgspec.Struct, frozen=True, kw_only=True):
    """`policy.json` of a generation. Normalisation is among the tensors: running moments are buffers of the network."""

    format: int = FORMAT
    ref: ModelRef
    steps: int  # agent steps learned from
    spaces: Spaces
    observations: tuple[Observed, ...]  # in the order of the network's inputs
    schema: Schema  # of segments
    network: dict[str, Any]  # the `model` section of the spec
    algorithm: dict[str, Any]  # the `algorithm` section of the spec, its `name` included
    tensors: str = ""  # file beside this one: a generation, where `weights/` are the network's; else the weights alone
    sha256: str = ""  # of that file, 64 hex digits; "": the manifest of the generation knows it


def describe(
    ref: ModelRef, steps: int, spaces: Spaces, schema: Schema, network: dict[str, Any], algorithm: dict[str, Any]
) -> PolicyFile:
    """Description of a policy.

    Args:
        steps: agent steps that it was learned from.
        network, algorithm: sections of the spec, as JSON can hold them.
    """
    observed = tuple(Observed(name, *leaf_array(leaf)) for name, leaf in leaves(spaces.obs, "obs"))
    return PolicyFile(
        ref=ref, steps=steps, spaces=spaces, observations=observed, schema=schema, network=network, algorithm=algorithm
    )


def pack_policy(policy: PolicyFile) -> bytes:
    """Encode as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(policy)) + b"\n"


def unpack_policy(data: bytes) -> PolicyFile:
    """Decode the description in the bytes of a part.

    Raises:
        PolicyFileError: they describe no policy, or are of another format.
    """
    try:
        number = msgspec.json.decode(data)["format"]
        if number != FORMAT:
            raise PolicyFileError(f"stored in format {number}; this release reads format {FORMAT}")
        return msgspec.json.decode(data, type=PolicyFile)
    except (msgspec.MsgspecError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise PolicyFileError(f"{len(data)} bytes describe no policy: {error}") from error
