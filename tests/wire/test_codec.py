from __future__ import annotations

import tracemalloc

import msgspec
import numpy as np
import pytest
import zmq
import zstandard
from numpy.typing import NDArray

from rlctl_agents.types.experience import DTYPES, Arrays, Field, Schema
from rlctl_agents.wire.codec import RAW, ZSTD, ArrayHead, BlockCodec, Rejected
from rlctl_agents.wire.sockets import MAX_MESSAGE_BYTES
from tests.wire.pair import SCHEMA, fields, versions

LARGE = Schema(2, (Field("obs", "uint8", (200, 200), "row+1"), Field("noise", "float32", (100, 100), "row")))


def packed(schema: Schema, streams: int, *, compress: bool = False) -> tuple[list[ArrayHead], list[zmq.Frame]]:
    heads, buffers = BlockCodec(schema).pack(
        streams, versions(streams, schema.unroll_length), fields(streams, schema), compress=compress
    )
    return heads, [zmq.Frame(buffer) for buffer in buffers]


def assert_equal(one: Arrays, other: Arrays) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].dtype == other[name].dtype
        np.testing.assert_array_equal(one[name], other[name])


@pytest.mark.parametrize("streams", [1, 3])
def test_dict_observations_tuple_actions_and_recurrent_state_arrive_as_they_left(streams: int) -> None:
    version, arrays = BlockCodec(SCHEMA).unpack(streams, *packed(SCHEMA, streams))
    assert_equal(arrays, fields(streams))
    np.testing.assert_array_equal(version, versions(streams))


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_every_dtype_arrives_aligned_and_read_only(dtype: str) -> None:
    schema = Schema(
        3,
        (Field("small", dtype, (), "segment"), Field("odd", dtype, (3,), "row"), Field("big", dtype, (70_000,), "row")),
    )
    _, arrays = BlockCodec(schema).unpack(1, *packed(schema, 1))
    assert_equal(arrays, fields(1, schema))
    for array in arrays.values():
        assert array.flags.aligned
        assert not array.flags.writeable


def test_large_arrays_are_neither_copied_when_sent_nor_when_received() -> None:
    obs, noise = fields(1, LARGE).values()
    heads, buffers = BlockCodec(LARGE).pack(1, versions(1, 2), {"obs": obs, "noise": noise}, compress=False)
    assert np.shares_memory(np.frombuffer(buffers[0], np.uint8), obs)
    frames = [zmq.Frame(buffer) for buffer in buffers]
    _, arrays = BlockCodec(LARGE).unpack(1, heads, frames)
    assert np.shares_memory(np.frombuffer(frames[0].buffer, np.uint8), arrays["obs"])


def test_an_array_that_does_not_lie_in_one_piece_arrives_as_it_looks() -> None:
    schema = Schema(2, (Field("obs", "uint8", (200, 200), "row"),))
    arrays: Arrays = {
        "obs": np.arange(2 * 200 * 200, dtype=np.int64).astype(np.uint8).reshape(200, 200, 1, 2).transpose(3, 2, 1, 0)
    }
    heads, buffers = BlockCodec(schema).pack(1, versions(1, 2), arrays, compress=False)
    _, back = BlockCodec(schema).unpack(1, heads, [zmq.Frame(buffer) for buffer in buffers])
    assert_equal(back, arrays)


def test_only_large_uint8_arrays_are_compressed() -> None:
    heads, frames = packed(LARGE, 1, compress=True)
    assert [(head.name, head.codec) for head in heads] == [("version", RAW), ("obs", ZSTD), ("noise", RAW)]
    _, arrays = BlockCodec(LARGE).unpack(1, heads, frames)
    assert_equal(arrays, fields(1, LARGE))
    assert not arrays["obs"].flags.writeable


def test_a_field_that_does_not_compress_is_sent_as_it_is_from_the_first() -> None:
    codec = BlockCodec(LARGE)
    arrays = fields(1, LARGE)
    arrays["obs"] = np.random.default_rng(0).integers(0, 256, arrays["obs"].shape).astype(np.uint8)
    noise = codec.pack(1, versions(1, 2), arrays, compress=True)[0]
    plain = codec.pack(1, versions(1, 2), fields(1, LARGE), compress=True)[0]
    assert (noise[1].codec, plain[1].codec) == (RAW, RAW)


def test_a_block_that_is_not_as_the_schema_says_is_not_sent() -> None:
    codec, good = BlockCodec(SCHEMA), fields(2)
    for name, wrong in [
        ("reward", good["reward"].astype(np.float64)),
        ("reward", good["reward"][:, :1]),
        ("reward", good["reward"].astype(">f4")),
        ("core.h", good["core.h"][None]),
    ]:
        with pytest.raises(ValueError, match=name):
            codec.pack(2, versions(2), {**good, name: wrong}, compress=False)
    with pytest.raises(ValueError, match="extra"):
        codec.pack(2, versions(2), {**good, "extra": good["reward"]}, compress=False)
    with pytest.raises(ValueError, match="version"):
        codec.pack(2, versions(1), good, compress=False)


@pytest.mark.parametrize(
    ("field", "why"),
    [
        (Field("x", "object", (), "row"), "dtype"),
        (Field("x", "U8", (), "row"), "dtype"),
        (Field("x", "complex64", (), "row"), "dtype"),
        (Field("x", "float32", (1,) * 7, "row"), "axes"),
        (Field("x", "float32", (-1,), "row"), "axes"),
        (Field("version", "int64", (), "row"), "taken"),
    ],
)
def test_a_schema_that_cannot_travel_is_refused(field: Field, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        BlockCodec(Schema(4, (field,)))


def reason(heads: list[ArrayHead], frames: list[zmq.Frame], streams: int = 1) -> str:
    with pytest.raises(Rejected) as caught:
        BlockCodec(LARGE).unpack(streams, heads, frames)
    return caught.value.reason


def changed(heads: list[ArrayHead], index: int, **changes: object) -> list[ArrayHead]:
    return [*heads[:index], msgspec.structs.replace(heads[index], **changes), *heads[index + 1 :]]


def test_every_statement_about_an_array_is_checked_against_the_schema() -> None:
    heads, frames = packed(LARGE, 1)
    assert reason(heads[:-1], frames) == "fields"
    assert reason([heads[0], heads[2], heads[1]], frames) == "fields"
    assert reason(changed(heads, 1, dtype="int8"), frames) == "dtype"
    assert reason(changed(heads, 1, dtype="object"), frames) == "dtype"
    assert reason(changed(heads, 1, shape=(3, 1, 40_000)), frames) == "shape"
    assert reason(changed(heads, 1, shape=(3, 2**62, 200, 200)), frames) == "shape"
    assert reason(heads, frames, streams=2) == "shape"
    assert reason(changed(heads, 1, size=2**60), frames) == "size"
    assert reason(changed(heads, 1, codec=7), frames) == "codec"
    assert reason(changed(heads, 1, codec=ZSTD), frames) == "codec"
    assert reason(changed(heads, 0, inline=b"short"), frames) == "size"
    assert reason(changed(heads, 0, codec=ZSTD), frames) == "codec"


def test_every_frame_is_used_once_and_in_order() -> None:
    heads, frames = packed(LARGE, 1)
    assert reason(changed(heads, 2, frame=1), frames) == "frames"
    assert reason(changed(heads, 1, frame=-1), frames) == "frames"
    assert reason(heads, frames[:1]) == "frames"
    assert reason(heads, [*frames, zmq.Frame(b"more")]) == "frames"
    assert reason(heads, [zmq.Frame(b"short"), frames[1]]) == "size"
    assert reason(changed(heads, 1, inline=b"both"), frames) == "frames"


def test_bytes_that_are_no_bools_are_rejected() -> None:
    schema = Schema(2, (Field("valid", "bool", (), "row"), Field("mask", "bool", (40_000,), "row")))
    heads, buffers = BlockCodec(schema).pack(1, versions(1, 2), fields(1, schema), compress=False)
    for bad in (changed(heads, 1, inline=b"\1\2"), heads):
        frame = zmq.Frame(bytes(buffers[0]) if bad is not heads else b"\xff" * 80_000)
        with pytest.raises(Rejected) as caught:
            BlockCodec(schema).unpack(1, bad, [frame])
        assert caught.value.reason == "bool"


def test_a_small_frame_that_would_unfold_to_much_is_rejected_before_memory_is_taken() -> None:
    heads, frames = packed(LARGE, 1, compress=True)
    compressor = zstandard.ZstdCompressor(level=1)
    stated = compressor.compress(bytes(200_000_000))
    writer = compressor.compressobj()  # states no size
    silent = writer.compress(bytes(200_000_000)) + writer.flush()
    tracemalloc.start()
    for bomb in (stated, silent, stated[: len(stated) // 2], b"\x28\xb5\x2f\xfd" + bytes(20)):
        assert reason(heads, [zmq.Frame(bomb), frames[1]]) in ("size", "codec")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


def test_something_behind_a_compressed_array_is_rejected() -> None:
    heads, frames = packed(LARGE, 1, compress=True)
    assert reason(heads, [zmq.Frame(frames[0].bytes + b"more"), frames[1]]) == "codec"


def large(streams: int, seed: int = 0) -> tuple[BlockCodec, NDArray[np.int64], Arrays]:
    """One stream of one step is a MiB, half of it noise."""
    schema = Schema(1, (Field("obs", "uint8", (1 << 20,), "row"), Field("next", "uint8", (1 << 17,), "row")))
    noise = np.random.default_rng(seed).integers(0, 256, (1, streams, 1 << 20)).astype(np.uint8)
    noise[..., : 1 << 18] = 0
    return BlockCodec(schema), np.zeros((1, streams), np.int64), {"obs": noise, "next": noise[..., : 1 << 17].copy()}


@pytest.mark.parametrize(("streams", "compress", "frames"), [(16, False, 2), (17, False, 3), (24, True, 3)])
def test_an_array_larger_than_a_frame_travels_in_several(streams: int, compress: bool, frames: int) -> None:
    codec, version, fields = large(streams)
    heads, data = codec.pack(streams, version, fields, compress=compress)
    assert len(data) == frames
    assert max(len(one) for one in data) == MAX_MESSAGE_BYTES or streams == 16
    assert all(len(one) <= MAX_MESSAGE_BYTES for one in data)
    _, back = codec.unpack(streams, heads, [zmq.Frame(one) for one in data])
    assert all(np.array_equal(back[name], fields[name]) for name in fields)
    assert codec.max_frames >= frames


def test_an_array_of_several_frames_is_no_larger_than_stated() -> None:
    codec, version, fields = large(17)
    heads, data = codec.pack(17, version, fields, compress=False)
    whole = zmq.Frame(bytes(MAX_MESSAGE_BYTES))
    for frames in ([whole, whole, zmq.Frame(data[2])], [whole, zmq.Frame(data[2])], [whole]):
        with pytest.raises(Rejected):
            codec.unpack(17, heads, frames)
