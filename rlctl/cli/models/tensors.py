"""Extraction of the weights from a learner's stored state, which has the optimizer's averages too; both safetensors.

The format: 8 bytes with the length of a JSON header, the header, which has dtype, shape and place of every tensor, and
the tensors (github.com/huggingface/safetensors, "Format"). Read here by hand, because rlctl is installed without numpy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import BinaryIO, Final

_LENGTH_BYTES: Final = 8
_LARGEST_HEADER: Final = 100 * 2**20
_KEY: Final = "rlctl"
_PREFIX: Final = "weights/"
_DTYPES: Final = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
"""dtype in safetensors -> its name in torch."""


class NoWeights(ValueError):
    """Bytes that are not the stored state of a learner."""


def weights(state: BinaryIO, steps: int) -> bytes:
    """The network's weights alone, as they are sent to actors.

    Args:
        state: file of a learner: the tensors `weights/*` are the network's. Types that numpy lacks are stored as
            integers of the same width, and the header says so.
        steps: agent steps that they were learned from.

    Raises:
        NoWeights: the file holds something else.
        OSError: it cannot be read.
    """
    length = int.from_bytes(state.read(_LENGTH_BYTES), "little")
    if not 0 < length <= _LARGEST_HEADER:
        raise NoWeights("it does not begin as a safetensors file")
    try:
        header = json.loads(state.read(length))
        dtypes = json.loads(header["__metadata__"][_KEY])["plain"].get("dtypes", {})
        chosen = {name: entry for name, entry in header.items() if name.startswith(_PREFIX)}
        made: dict[str, object] = {"__metadata__": {_KEY: json.dumps({"progress": steps})}}
        spans, end = [], 0
        for name, entry in chosen.items():
            first, last = (int(place) for place in entry["data_offsets"])
            dtype = "BF16" if dtypes.get(name) == "bfloat16" else entry["dtype"]
            place = [end, end + last - first]
            made[name.removeprefix(_PREFIX)] = {"dtype": dtype, "shape": entry["shape"], "data_offsets": place}
            spans.append((first, last - first))
            end = place[1]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise NoWeights(f"its header is not that of a learner: {type(error).__name__}: {error}") from error
    if not chosen:
        raise NoWeights("it holds no weights")
    data = bytearray(_beginning(made))
    for first, size in spans:
        state.seek(_LENGTH_BYTES + length + first)
        piece = state.read(size)
        if len(piece) != size:
            raise NoWeights("it ends before its last tensor")
        data += piece
    return bytes(data)


def arrays(file: bytes) -> dict[str, str]:
    """Name of each tensor -> dtype and shape, as in `float32 [64, 4]`.

    Raises:
        NoWeights: the bytes are no safetensors file.
    """
    end = _LENGTH_BYTES + int.from_bytes(file[:_LENGTH_BYTES], "little")
    try:
        header = json.loads(file[_LENGTH_BYTES:end])
        header.pop("__metadata__", None)
        return {name: f"{_DTYPES.get(one['dtype'], one['dtype'])} {one['shape']}" for name, one in header.items()}
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise NoWeights(f"it does not begin as a safetensors file: {error}") from error


def with_metadata(file: bytes, more: Mapping[str, str]) -> bytes:
    """The same tensors with further entries of metadata.

    Raises:
        NoWeights: the bytes are no safetensors file.
    """
    end = _LENGTH_BYTES + int.from_bytes(file[:_LENGTH_BYTES], "little")
    try:
        header = json.loads(file[_LENGTH_BYTES:end])
        made = {**header, "__metadata__": {**header.get("__metadata__", {}), **more}}
    except (ValueError, TypeError, AttributeError) as error:
        raise NoWeights(f"it does not begin as a safetensors file: {error}") from error
    return _beginning(made) + file[end:]


def _beginning(header: Mapping[str, object]) -> bytes:
    """Length and header of a file, up to its tensors."""
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text
