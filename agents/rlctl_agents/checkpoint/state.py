"""Arrays and plain data as one file: safetensors with the plain data as JSON in its header. No pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from rlctl_agents.checkpoint.parts import FORMAT, KEY, LENGTH_BYTES, StateError

__all__ = ["StateError", "pack_state", "unpack_state", "unpack_weights"]


def pack_state(arrays: Mapping[str, NDArray[Any]], plain: Mapping[str, Any]) -> bytes:
    """State as bytes.

    Args:
        arrays: by name; scalars have shape ().
        plain: what JSON can hold, floats included as they are; not NaN.

    Raises:
        ValueError: `plain` holds NaN or an infinity.
        TypeError: `plain` holds something that JSON cannot, or an array has a dtype that safetensors has not.
    """
    text = json.dumps({"format": FORMAT, "plain": dict(plain)}, allow_nan=False)
    contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    try:
        return save(contiguous, metadata={KEY: text})
    except (SafetensorError, KeyError) as error:
        raise TypeError(f"cannot be stored: {error}") from error


def unpack_weights(data: bytes) -> dict[str, NDArray[Any]]:
    """Arrays of a safetensors file, whatever else it holds.

    Raises:
        StateError: the bytes are no such file, or it has a dtype that numpy has not.
    """
    try:
        return dict(load(data))
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise StateError(f"{len(data)} bytes are no arrays: {type(error).__name__}: {error}") from error


def unpack_state(data: bytes) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Arrays and plain data of `pack_state`.

    Raises:
        StateError: the bytes are not of `pack_state`, or are damaged or of another format.
    """
    try:
        length = int.from_bytes(data[:LENGTH_BYTES], "little")
        arrays = load(data)
        header = json.loads(data[LENGTH_BYTES : LENGTH_BYTES + length])
        stored = json.loads(header["__metadata__"][KEY])
        number, plain = stored["format"], stored["plain"]
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise StateError(f"{len(data)} bytes are not a stored state: {error}") from error
    if number != FORMAT:
        raise StateError(f"stored in format {number}; this release reads format {FORMAT}")
    return arrays, plain
