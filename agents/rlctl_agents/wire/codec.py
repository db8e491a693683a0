"""Encoding of arrays and structs as frames, and decoding. Nothing that arrives is trusted: every number is checked
against what the receiver already knows before anything of its size is allocated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeVar

import msgspec
import numpy as np
import zmq
import zstandard
from numpy.typing import NDArray

from rlctl_agents.types.experience import MAX_DIMS, Array, Arrays, Schema, check_schema
from rlctl_agents.wire.sockets import MAX_MESSAGE_BYTES, Socket

PROTOCOL = 2
INLINE_BYTES = 1 << 16
"""Bytes from which an array gets a frame of its own, sent without a copy; smaller ones travel inside frame 0."""
MAX_ARRAY_BYTES = 1 << 28
"""Bytes of the largest array, in as many frames as it takes."""
RAW, ZSTD = 0, 1
_NOBLOCK = int(zmq.NOBLOCK)  # an int is cheaper to test than an enum
WORTHWHILE_RATIO = 1.2
"""Least compression ratio: a field that compresses less is sent uncompressed from then on."""

T = TypeVar("T")
Buffer = bytes | memoryview
Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Name = Annotated[str, msgspec.Meta(max_length=256)]


class Rejected(Exception):
    """A refused message. `reason` is one of a fixed set of words, for counting; the text is for people."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class ArrayHead(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Header of one array of a message: its bytes, if they travel inside frame 0, or the number of its frame."""

    name: Name
    dtype: Annotated[str, msgspec.Meta(max_length=16)]
    shape: Annotated[tuple[Count, ...], msgspec.Meta(max_length=MAX_DIMS)]
    frame: int  # from 1: the first of those that hold it; 0: inline
    codec: int  # RAW or ZSTD
    size: Count  # bytes when not compressed
    inline: bytes


class BlockCodec:
    """Codec of the arrays in blocks of one schema: `version` first, then the fields in the schema's order.

    `max_frames` is the largest number of frames of a block after frame 0, `max_rows` its largest number of rows.

    Raises:
        ValueError: the schema cannot be sent: a dtype that is not allowed, names that repeat, more than 8 axes.
    """

    def __init__(self, schema: Schema) -> None:
        check_schema(schema)
        self.unroll_length = schema.unroll_length
        # name, dtype name, dtype, axes before the stream axis, axes after it, bytes of one stream
        self._arrays: list[tuple[str, str, np.dtype[np.generic], tuple[int, ...], tuple[int, ...], int]] = []
        steps = schema.unroll_length
        rows = {"row": (steps,), "row+1": (steps + 1,), "segment": ()}
        frames = {field.name: field.frames for field in schema.fields}
        for name, dtype, shape, per in [
            ("version", "int64", (), "row"),
            *((field.name, field.dtype, field.shape, field.per) for field in schema.fields),
        ]:
            before, after = rows[per], tuple(shape)
            if frames.get(name):
                before, after = (steps + frames[name],), after[1:]
            unit = int(np.prod([*before, *after], dtype=object)) * np.dtype(dtype).itemsize
            self._arrays.append((name, dtype, np.dtype(dtype), before, after, unit))
        streams = MAX_ARRAY_BYTES // max(unit for *_, unit in self._arrays)
        self.max_rows = steps * streams
        self.max_frames = sum(max(_frames_of(unit * streams), 1) for *_, unit in self._arrays)
        self._hopeless: set[str] = set()
        self._compressor = zstandard.ZstdCompressor(level=1)
        self._decompressor = zstandard.ZstdDecompressor()

    def pack(
        self, streams: int, version: NDArray[np.int64], fields: Arrays, *, compress: bool
    ) -> tuple[list[ArrayHead], list[Buffer]]:
        """Encode a block: heads of all arrays, and the contents of frames 1, 2, ...

        Args:
            streams: B.
            version: [T, B] as in `SegmentBlock`.
            fields: name -> array of the shape that the schema gives for a block of B streams.
            compress: large uint8 arrays with zstd level 1, where that is worthwhile.

        Raises:
            ValueError: the arrays are not what the schema says, or too large.
        """
        if len(fields) != len(self._arrays) - 1:
            names = {name for name, *_ in self._arrays[1:]}
            raise ValueError(f"fields differ from the schema: {sorted(names.symmetric_difference(fields))}")
        heads: list[ArrayHead] = []
        frames: list[Buffer] = []
        for index, (name, dtype_name, dtype, before, after, unit) in enumerate(self._arrays):
            array: Array = version if index == 0 else fields[name]
            shape = (*before, streams, *after)
            if array.dtype != dtype or array.shape != shape:
                raise ValueError(f"{name}: must be {dtype_name} {shape}, got {array.dtype} {array.shape}")
            size = unit * streams
            if size < INLINE_BYTES:
                heads.append(ArrayHead(name, dtype_name, shape, 0, RAW, size, array.tobytes()))
                continue
            if size > MAX_ARRAY_BYTES:
                raise ValueError(f"{name}: {size} bytes, more than {MAX_ARRAY_BYTES}: too many environments or steps")
            array = np.ascontiguousarray(array)
            data: Buffer = array.reshape(-1).view(np.uint8).data
            packed = self._compress(name, data) if compress and dtype_name == "uint8" else None
            codec, data = (RAW, data) if packed is None else (ZSTD, packed)
            heads.append(ArrayHead(name, dtype_name, shape, len(frames) + 1, codec, size, b""))
            if len(data) <= MAX_MESSAGE_BYTES:
                frames.append(data)
            else:
                view = memoryview(data)
                frames += [view[at : at + MAX_MESSAGE_BYTES] for at in range(0, len(view), MAX_MESSAGE_BYTES)]
        return heads, frames

    def unpack(
        self, streams: int, heads: Sequence[ArrayHead], frames: Sequence[zmq.Frame]
    ) -> tuple[NDArray[np.int64], Arrays]:
        """Decode a block: version and fields, read-only, as views on the frames where possible.

        Args:
            streams: B, already bounded by the credit of the sender.
            heads: as they came.
            frames: 1, 2, ... as they came.

        Raises:
            Rejected: anything is not exactly as the schema says.
        """
        if len(heads) != len(self._arrays):
            raise Rejected("fields", f"{len(heads)} arrays instead of {len(self._arrays)}")
        result: Arrays = {}
        used = 0
        for head, (name, dtype_name, dtype, before, after, unit) in zip(heads, self._arrays, strict=True):
            if head.name != name:
                raise Rejected("fields", f"array {head.name[:40]!r} instead of {name!r}")
            if head.dtype != dtype_name:
                raise Rejected("dtype", f"{name}: {head.dtype} instead of {dtype_name}")
            shape = (*before, streams, *after)
            if head.shape != shape:
                raise Rejected("shape", f"{name}: {head.shape} instead of {shape}")
            size = unit * streams
            if head.size != size:
                raise Rejected("size", f"{name}: {head.size} bytes stated instead of {size}")
            data: Buffer
            if head.frame == 0:
                data = head.inline
                if head.codec != RAW:
                    raise Rejected("codec", f"{name}: inline with codec {head.codec}")
            else:
                used += 1
                if head.frame != used or used > len(frames) or head.inline:
                    raise Rejected("frames", f"{name}: frame {head.frame} of {len(frames)}, expected {used}")
                data = frames[used - 1].buffer
                if len(data) == MAX_MESSAGE_BYTES and size > MAX_MESSAGE_BYTES:
                    data, used = _joined(frames, used, size)
                if head.codec == ZSTD:
                    data = self._decompress(name, data, size)
                elif head.codec != RAW:
                    raise Rejected("codec", f"{name}: unknown codec {head.codec}")
            if len(data) != size:
                raise Rejected("size", f"{name}: {len(data)} bytes came instead of {size}")
            if dtype_name == "bool" and not _are_bools(data):
                raise Rejected("bool", f"{name}: bytes other than 0 and 1")
            array: Array = np.ndarray(shape, dtype, data)
            flags = array.flags
            if not flags.aligned:
                array = array.copy()
                flags = array.flags
            flags.writeable = False
            result[name] = array
        if used != len(frames):
            raise Rejected("frames", f"{len(frames)} frames instead of {used}")
        version = result.pop("version")
        return version, result  # type: ignore[return-value]

    def _compress(self, name: str, data: Buffer) -> bytes | None:
        if name in self._hopeless:
            return None
        packed: bytes = self._compressor.compress(data)
        if len(packed) * WORTHWHILE_RATIO > len(data):
            self._hopeless.add(name)
            return None
        if len(packed) % MAX_MESSAGE_BYTES == 0:  # the receiver takes the first frame that is not full for the last
            return None
        return packed

    def _decompress(self, name: str, data: Buffer, size: int) -> bytes:
        try:
            stated = zstandard.get_frame_parameters(data).content_size
            if stated != size:  # max_output_size is ignored when the frame states its size: 1.5 KB can become 50 MB
                raise Rejected("size", f"{name}: {stated} bytes after decompression instead of {size}")
            plain: bytes = self._decompressor.decompress(data, max_output_size=size, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise Rejected("codec", f"{name}: {error}") from error
        return plain


def decode(decoder: msgspec.msgpack.Decoder[T], data: Buffer) -> T:
    """Decode `data`.

    Raises:
        Rejected: it is larger than `MAX_MESSAGE_BYTES`, or not what the decoder expects.
    """
    if len(data) > MAX_MESSAGE_BYTES:
        raise Rejected("decode", f"{len(data)} bytes, more than {MAX_MESSAGE_BYTES}")
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise Rejected("decode", str(error)) from error


def receive(socket: Socket, parts: int, max_frames: int) -> tuple[list[bytes], list[zmq.Frame] | None] | None:
    """Receive one whole message without waiting; None when there is none.

    Args:
        socket: to receive from.
        parts: leading parts that are copied into bytes: the routing id of a ROUTER's peer, and frame 0.
        max_frames: most further parts that are kept.

    Returns:
        The leading parts (fewer when the message ended early) and further parts without a copy; None instead of the
        latter when there were too many.
    """
    try:
        frame = socket.recv(_NOBLOCK, copy=False)
    except zmq.Again:
        return None
    head = [frame.bytes]
    frames: list[zmq.Frame] = []
    count = 0
    while frame.more:
        frame = socket.recv(_NOBLOCK, copy=False)
        if len(head) < parts:
            head.append(frame.bytes)
            continue
        count += 1
        if count <= max_frames:
            frames.append(frame)
        else:
            frames.clear()
    return head, frames if count <= max_frames else None


def _frames_of(size: int) -> int:
    return -(-size // MAX_MESSAGE_BYTES)


def _joined(frames: Sequence[zmq.Frame], first: int, size: int) -> tuple[bytes, int]:
    """Bytes of an array that came in several frames, all full but the last, and the number of the last one."""
    parts = [frames[first - 1].buffer]
    while len(parts[-1]) == MAX_MESSAGE_BYTES and len(parts) < _frames_of(size) and first < len(frames):
        parts.append(frames[first].buffer)
        first += 1
    return b"".join(parts), first


def _are_bools(data: Buffer) -> bool:
    if isinstance(data, bytes):
        return not data.translate(None, b"\0\1")
    return bool(np.frombuffer(data, np.uint8).max(initial=0) <= 1)
