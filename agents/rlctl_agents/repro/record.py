"""Recorded episode: a line of JSON that describes it, then in MessagePack actions, and digests of the answers.

Answers are numbered: 0 is that of the reset with seeds, n that of the n-th step after it. Action n leads to answer n.
Where the environment raised, the last action has no answer.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlctl_agents.types.experience import Arrays, Decisions, ModelRef
from rlctl_agents.types.spaces import Box, Discrete, MultiDiscrete, Spaces, leaf_array, leaves

FORMAT = 1
_LARGEST_BODY_BYTES = 1 << 28
"""Unpacked: a record that was made to harm takes no more memory."""
_PART_BYTES = 4096
"""Of the observations that are stepped together, so much of each answer has a digest."""
_FLAGS = (np.uint32(0x9E3779B1), np.uint32(0x85EBCA77), np.uint32(0xC2B2AE3D))
Kind = Literal["crash", "worst", "best"]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class RecordError(ValueError):
    """A record cannot be used, and why."""


class ActionLeaf(msgspec.Struct, frozen=True):
    """One leaf of the actions."""

    name: str
    dtype: str  # as the environment takes it
    stored: str  # the narrowest that holds all of its values
    bits: Annotated[int, msgspec.Meta(ge=0, le=4)]  # 1, 2, 4: of each value, in bytes that hold several; 0: as stored
    shape: tuple[Count, ...]

    def pack(self, values: NDArray[Any]) -> bytes:
        """Values of this leaf, stored ones, side by side."""
        if not self.bits:
            return values.tobytes()
        each, flat = 8 // self.bits, values.reshape(-1)
        packed = flat[::each].copy()
        for place in range(1, each):
            part = flat[place::each]
            packed[: part.size] |= part << np.uint8(place * self.bits)
        return packed.tobytes()

    def unpack(self, data: bytes, rows: int, at: int) -> tuple[NDArray[Any], int]:
        """[rows, *shape] as stored, and the number of the byte after them.

        Raises:
            ValueError, TypeError: they are not there.
        """
        count = rows * int(np.prod(self.shape, dtype=np.int64))
        if not self.bits:
            values = np.frombuffer(data, self.stored, count, at)
            return values.reshape(rows, *self.shape), at + values.nbytes
        each = 8 // self.bits
        packed = np.frombuffer(data, np.uint8, -(-count // each), at)
        values = packed[:, None] >> np.arange(0, 8, self.bits, dtype=np.uint8) & np.uint8(2**self.bits - 1)
        return values.ravel()[:count].reshape(rows, *self.shape), at + packed.size


class Start(msgspec.Struct, frozen=True):
    """Answer from which an episode can be played: that of the reset with seeds, or the first of an episode."""

    answer: Count
    generator: str = ""
    """State of the generator `np_random` before that episode's reset, as JSON; "": the reset with seeds."""


class Provenance(msgspec.Struct, frozen=True):
    """Code, packages and machine that an episode was played with."""

    code: dict[str, str] = {}  # module of the user's own -> 16 hex digits of its file's sha256
    packages: dict[str, str] = {}  # distribution -> version
    image: str = ""
    machine: str = ""


class Header(msgspec.Struct, frozen=True):
    """Description of a recorded episode."""

    format: int
    run: str
    process: str  # "actor/3"
    kind: Kind
    created: float  # unix time
    env: dict[str, Any]  # the section of the spec
    training: bool
    envs: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
    seats: Annotated[int, msgspec.Meta(ge=1, le=1_000)]
    seeds: list[Count]  # of the reset
    alone: bool  # only the actions of environment `index` are here: no other touches it
    index: int | None  # environment that it is an episode of; None: not known
    episode: Count  # its number in that environment since the reset, from 1
    begin: Count  # its first answer
    answers: Annotated[int, msgspec.Meta(ge=-1)]  # the last answer; -1: the reset with seeds raised
    actions: Count  # the last action
    leaves: list[ActionLeaf]
    starts: list[Start]  # earliest first; none: it cannot be played
    why_not: str = ""  # it cannot
    opening: tuple[Count, Count] | None = None  # digests of answer 0
    error: str = ""  # of a crash
    traceback: str = ""  # the part that is of the user's own code
    returned: float | None = None  # of an episode of an evaluation
    model: ModelRef | None = None  # the weights that acted last
    sha256: str = ""  # of these
    mode: str = ""  # of an evaluation
    provenance: Provenance = Provenance()
    body: str = ""  # sha256 of what follows

    @property
    def steps(self) -> int:
        """Steps of the episode, with the one that raised."""
        return max(0, self.actions - self.begin)


class Chunk(msgspec.Struct, frozen=True):
    """Actions of successive steps, and digests of the answers that they led to."""

    first: Count  # number of the first action
    steps: Count
    rows: Count  # of all steps
    whole: bool  # every slot acts in every step
    data: bytes  # unless whole int32 rows of each step and int32 slots; then leaf after leaf
    digests: bytes  # uint32 [answers, 2]: of observations, of rewards and ends; b"": too old
    mark: Count  # CRC-32 of all digests up to here


_CHUNKS = msgspec.msgpack.Decoder(list[Chunk])
_HEADER = msgspec.json.Decoder(Header)


def action_leaves(spaces: Spaces) -> list[ActionLeaf]:
    """Leaves of the actions of an environment."""
    found = []
    for name, leaf in leaves(spaces.action, "action"):
        (dtype, shape), stored, bits = leaf_array(leaf), "", 0
        if isinstance(leaf, Discrete | MultiDiscrete):
            most = int(np.max(leaf.n))
            stored, bits = np.min_scalar_type(most - 1).name, next((one for one in (1, 2, 4) if most <= 2**one), 0)
        found.append(ActionLeaf(name, dtype, stored or dtype, bits, shape))
    return found


def pack(header: Header, chunks: list[Chunk]) -> tuple[bytes, bytes]:
    """The line of JSON without its end, and what follows."""
    body = zlib.compress(msgspec.msgpack.encode(chunks), 1)
    return msgspec.json.encode(msgspec.structs.replace(header, body=hashlib.sha256(body).hexdigest())), body


def unpack(data: bytes) -> tuple[Header, list[Chunk]]:
    """Header and chunks of a record.

    Raises:
        RecordError: it is damaged, or of another release.
    """
    line, _, body = data.partition(b"\n")
    try:
        found = msgspec.json.decode(line, type=dict[str, Any]).get("format")
        if found != FORMAT:
            raise RecordError(f"it is in format {str(found)[:40]}, this release reads format {FORMAT}")
        header = _HEADER.decode(line)
        if hashlib.sha256(body).hexdigest() != header.body:
            raise RecordError("it is damaged: its sha256 is not the one that it names")
        unzip = zlib.decompressobj()
        chunks = _CHUNKS.decode(unzip.decompress(body, _LARGEST_BODY_BYTES))
    except (zlib.error, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RecordError(f"it is damaged: {error}") from error
    if len(header.seeds) != header.envs or header.index not in (None, *range(header.envs)):
        raise RecordError("it is damaged: seeds and environments do not fit")
    if header.starts:
        reached = header.starts[0].answer
        for chunk in chunks:
            if chunk.first > reached + 1:
                break
            reached = max(reached, chunk.first + chunk.steps - 1)
        if reached < header.actions:
            raise RecordError(f"it is damaged: action {reached + 1} is missing")
    return header, chunks


class Step(msgspec.Struct):
    """What was done in one step, and what is known of the answer."""

    number: int
    slot: NDArray[np.int64]
    action: Arrays
    digest: tuple[int, int] | None  # of observations, and of rewards and ends
    mark: int | None  # CRC-32 of all digests up to here, where they are not known


def steps_of(header: Header, chunks: list[Chunk], after: int) -> Iterator[Step]:
    """Steps in order, from the one that follows an answer.

    Raises:
        RecordError: they cannot be read.
    """
    slots = np.arange(1 if header.alone else header.envs * header.seats)
    for chunk in chunks:
        if chunk.first + chunk.steps <= after + 1:
            continue
        counts, slot, action = _opened(header, chunk, slots)
        digests: list[list[int]] = np.frombuffer(chunk.digests, np.uint32).reshape(-1, 2).tolist()
        ends = np.cumsum(counts).tolist()
        for n in range(max(0, after + 1 - chunk.first), chunk.steps):
            part = slice(ends[n] - int(counts[n]), ends[n])
            known = (digests[n][0], digests[n][1]) if n < len(digests) else None
            ends_chunk = n == chunk.steps - 1 and chunk.first + n <= header.answers
            mark = chunk.mark if ends_chunk and not chunk.digests else None
            yield Step(chunk.first + n, slot[part], {name: all_[part] for name, all_ in action.items()}, known, mark)


def _opened(
    header: Header, chunk: Chunk, slots: NDArray[np.int64]
) -> tuple[NDArray[np.integer[Any]], NDArray[np.int64], Arrays]:
    """Rows of each step, slot of each row, and actions as the environment takes them.

    Args:
        slots: that act where all do.

    Raises:
        RecordError: they cannot be read.
    """
    data = chunk.data
    try:
        counts: NDArray[np.integer[Any]] = np.full(chunk.steps, slots.size)
        slot, at = np.tile(slots, chunk.steps), 0
        if not chunk.whole:
            counts = np.frombuffer(data, np.int32, chunk.steps)
            slot = np.frombuffer(data, np.int32, chunk.rows, counts.nbytes).astype(np.int64)
            at = 4 * (chunk.steps + chunk.rows)
        if not slot.size == chunk.rows == counts.sum():
            raise ValueError("rows are missing")
        action: Arrays = {}
        for leaf in header.leaves:
            values, at = leaf.unpack(data, chunk.rows, at)
            action[leaf.name] = values.astype(leaf.dtype)
    except (ValueError, TypeError) as error:
        raise RecordError(f"it is damaged: actions {chunk.first} and on cannot be read") from error
    return counts, slot, action


class Digests:
    """CRC-32 of answers, by which the first that differs is found.

    Of stacked frames the last counts: each is the last once. Where environments are stepped together, an answer has one
    digest, and of a large observation a part that moves on from step to step.

    Args:
        spaces: of the environment.
        alone: each row of an answer has a digest of its own.
    """

    def __init__(self, spaces: Spaces, *, alone: bool) -> None:
        self._obs = [(name, isinstance(leaf, Box) and leaf.stack > 1) for name, leaf in leaves(spaces.obs, "obs")]
        self._alone = alone

    def observed(self, decisions: Decisions, answer: int) -> list[int]:
        """Of the observations and masks: of each row, or of all.

        Args:
            answer: its number.
        """
        shown = [decisions.obs[name][:, -1] if stacked else decisions.obs[name] for name, stacked in self._obs]
        if decisions.legal is not None:
            shown.append(decisions.legal)
        if not self._alone:
            digest = 0
            for leaf in shown:
                if leaf.nbytes > _PART_BYTES:
                    flat = leaf.reshape(-1)
                    each = max(1, _PART_BYTES // flat.itemsize)
                    at = answer * each % flat.size
                    leaf = flat[at : at + each]
                digest = zlib.crc32(np.ascontiguousarray(leaf).data, digest)
            return [digest]
        digests = [0] * decisions.slot.size
        for leaf in shown:
            data = leaf.tobytes()
            each = len(data) // len(digests)
            digests = [zlib.crc32(data[n * each : (n + 1) * each], digest) for n, digest in enumerate(digests)]
        return digests

    def came(self, counts: Sequence[int], outcome: Sequence[bytes]) -> NDArray[np.uint32]:
        """Of rewards and ends: [rows] of each row, or [answers].

        Args:
            counts: rows of each answer.
            outcome: bytes of the float32 rewards, and of the flags terminated, truncated and first.
        """
        reward, *flags = outcome
        words = np.frombuffer(reward, np.uint32).copy()
        for flag, number in zip(flags, _FLAGS, strict=True):
            words ^= np.frombuffer(flag, np.uint8) * number
        if self._alone:
            return words
        ends = np.cumsum(counts).tolist()
        return np.array(
            [zlib.crc32(words[end - rows : end].data) for rows, end in zip(counts, ends, strict=True)], np.uint32
        )
