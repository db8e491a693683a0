"""Recorded episode: a line of JSON that describes it, then, in MessagePack, actions and digests of the answers.

An answer is what a reset or a step of the environment returns. Answer 0 is that of the reset with seeds, answer n that
of the n-th step after it, to which action n leads. Where the environment raised, the last action has no answer.
"""

from __future__ import annotations

import functools
import hashlib
import math
import zlib
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlctl_agents.types.experience import Arrays, Decisions, ModelRef
from rlctl_agents.types.spaces import Box, Discrete, MultiDiscrete, Spaces, leaf_array, leaves

FORMAT = 1
CHUNK_STEPS = 256
"""Steps of a chunk, at most."""
_LARGEST_CHUNK_BYTES = 1 << 28
"""Most bytes of an unpacked chunk: a malicious record takes no more memory."""
_MOST_SLOTS = 1 << 24
"""Most seats of all environments together."""
Kind = Literal["crash", "worst", "best"]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class RecordError(ValueError):
    """A record that cannot be used; the text says why."""


class ActionLeaf(msgspec.Struct, frozen=True):
    """One leaf of the actions."""

    name: str
    dtype: str  # as the environment takes it
    stored: str  # the narrowest that holds all of its values
    shape: tuple[Count, ...]
    options: tuple[Count, ...]  # of each choice; (): a real number, or a bit


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
    why_not: str = ""  # why it cannot be played
    opening: tuple[Count, Count] | None = None  # digests of answer 0
    error: str = ""  # of a crash
    traceback: str = ""  # the part that is of the user's own code
    returned: float | None = None  # of an episode of an evaluation
    model: ModelRef | None = None  # the weights that acted last
    sha256: str = ""  # of these
    mode: str = ""  # of an evaluation
    provenance: Provenance = Provenance()
    body: str = ""  # sha256 of the body

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
    data: bytes  # zlib: unless whole, int32 rows of each step and int32 slots; then each leaf, as stored
    digests: bytes  # uint32 [answers, 2]: of observations, of rewards and ends


_CHUNKS = msgspec.msgpack.Decoder(list[Chunk])
_HEADER = msgspec.json.Decoder(Header)


def action_leaves(spaces: Spaces) -> list[ActionLeaf]:
    """Leaves of the actions of an environment."""
    found = []
    for name, leaf in leaves(spaces.action, "action"):
        dtype, shape = leaf_array(leaf)
        options = tuple(np.ravel(leaf.n).tolist()) if isinstance(leaf, Discrete | MultiDiscrete) else ()
        stored = np.min_scalar_type(max(options) - 1).name if options else dtype
        found.append(ActionLeaf(name, dtype, stored, shape, options))
    return found


def pack(header: Header, chunks: list[Chunk]) -> tuple[bytes, bytes]:
    """Encode a record: the line of JSON without its newline, and the body that follows."""
    body = msgspec.msgpack.encode(chunks)
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
        chunks = _CHUNKS.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RecordError(f"it is damaged: {error}") from error
    if len(header.seeds) != header.envs or (header.index is not None and not 0 <= header.index < header.envs):
        raise RecordError("it is damaged: seeds and environments do not fit")
    if header.envs * header.seats > _MOST_SLOTS or any(len(chunk.digests) % 8 for chunk in chunks):
        raise RecordError("it is damaged: too many slots, or digests that are cut short")
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
    """One step: slots, actions, and the digest of the answer."""

    number: int
    slot: NDArray[np.int64]
    action: Arrays
    digest: tuple[int, int] | None  # of observations, and of rewards and ends; None: it raised then


def steps_of(header: Header, chunks: list[Chunk], after: int) -> Iterator[Step]:
    """Steps in order, from the one that follows an answer.

    Raises:
        RecordError: they cannot be read.
    """
    slots = np.arange(1 if header.alone else header.envs * header.seats)
    for chunk in chunks:
        if chunk.first + chunk.steps <= after + 1:
            continue
        counts, slot, action = opened(header.leaves, chunk, slots)
        digests: list[list[int]] = np.frombuffer(chunk.digests, np.uint32).reshape(-1, 2).tolist()
        ends = np.cumsum(counts).tolist()
        for n in range(max(0, after + 1 - chunk.first), chunk.steps):
            part = slice(ends[n] - int(counts[n]), ends[n])
            known = (digests[n][0], digests[n][1]) if n < len(digests) else None
            yield Step(chunk.first + n, slot[part], {name: all_[part] for name, all_ in action.items()}, known)


def opened(
    shapes: Sequence[ActionLeaf], chunk: Chunk, slots: NDArray[np.int64]
) -> tuple[NDArray[np.integer[Any]], NDArray[np.int64], Arrays]:
    """Rows of each step, slot of each row, and actions as the environment takes them.

    Args:
        shapes: of the actions.
        slots: slots of a step in which all act.

    Raises:
        RecordError: they cannot be read.
    """
    try:
        data = zlib.decompressobj().decompress(chunk.data, _LARGEST_CHUNK_BYTES)
        # numbers that are too large would ask for as much memory; a row has a byte at least
        most = chunk.steps * slots.size
        if chunk.steps > CHUNK_STEPS or chunk.rows > min(most, len(data)) or (chunk.whole and chunk.rows != most):
            raise ValueError("rows are missing")
        counts: NDArray[np.integer[Any]] = np.full(chunk.steps, slots.size)
        slot, at = np.tile(slots, chunk.steps), 0
        if not chunk.whole:
            counts = np.frombuffer(data, np.int32, chunk.steps)
            slot = np.frombuffer(data, np.int32, chunk.rows, counts.nbytes).astype(np.int64)
            at = 4 * (chunk.steps + chunk.rows)
        if not slot.size == chunk.rows == counts.sum():
            raise ValueError("rows are missing")
        action: Arrays = {}
        for leaf in shapes:
            values = np.frombuffer(data, leaf.stored, chunk.rows * math.prod(leaf.shape), at)
            action[leaf.name] = values.reshape(chunk.rows, *leaf.shape).astype(leaf.dtype)
            at += values.nbytes
    except (ValueError, TypeError, OverflowError, MemoryError, zlib.error) as error:
        raise RecordError(f"it is damaged: actions {chunk.first} and on cannot be read") from error
    return counts, slot, action


class Digests:
    """Digests of answers, to find the first one that differs.

    Of stacked frames only the last is hashed: each is the last once. Where environments are stepped together, an answer
    has one digest.

    Args:
        spaces: of the environment.
        alone: each row of an answer has a digest of its own.
    """

    def __init__(self, spaces: Spaces, *, alone: bool) -> None:
        self._obs = [(name, isinstance(leaf, Box) and leaf.stack > 1) for name, leaf in leaves(spaces.obs, "obs")]
        self._alone = alone

    def copy(self, decisions: Decisions, to: list[bytes]) -> None:
        """Copy the hashed arrays of an answer; a digest of many answers together takes a tenth of the time."""
        obs = decisions.obs
        for name, last in self._obs:
            to.append((obs[name][:, -1] if last else obs[name]).tobytes())
        if decisions.legal is not None:
            to.append(decisions.legal.tobytes())
        to += decisions.reward.tobytes(), decisions.terminated.tobytes(), decisions.truncated.tobytes()

    def of(self, copies: Sequence[bytes], width: int) -> NDArray[np.uint32]:
        """Digests of answers: of observations and masks, and of rewards and ends.

        Args:
            copies: of answers, one after the other.
            width: copies of each.

        Returns:
            [rows, 2], or [answers, 2] where environments are stepped together.
        """
        if not self._alone:
            parts = [copies[n : n + width] for n in range(0, len(copies), width)]
            crc = zlib.crc32
            return np.array([(crc(b"".join(one[:-3])), crc(b"".join(one[-3:]))) for one in parts], np.uint32)
        columns = [b"".join(copies[n::width]) for n in range(width)]
        rows = len(columns[-1])
        return np.stack([_hashed(columns[:-3], rows), _hashed(columns[-3:], rows)], axis=-1)


def _hashed(columns: Sequence[bytes], rows: int) -> NDArray[np.uint32]:
    """Hashes [rows] of the rows of the columns side by side: the upper half of the sum of the 32-bit words of a row,
    each times an odd number of 64 bits.

    Source: multilinear hashing, Lemire and Kaser 2014, arXiv:1202.4961; its numbers are those of SplitMix64.
    """
    total = np.zeros(rows, np.uint64)
    for number, column in enumerate(columns):
        each = len(column) // rows
        if each % 4:
            filled = np.zeros((rows, -(-each // 4) * 4), np.uint8)
            filled[:, :each] = np.frombuffer(column, np.uint8).reshape(rows, each)
            column = filled.tobytes()
        words = np.frombuffer(column, np.uint32).reshape(rows, -1)
        total += words @ _factors(words.shape[1], number)
    return (total >> np.uint64(32)).astype(np.uint32)


@functools.cache
def _factors(count: int, number: int) -> NDArray[np.uint64]:
    """Odd 64-bit factors [count] for the words of a column."""
    z = (np.arange(1, count + 1, dtype=np.uint64) + (np.uint64(number) << np.uint64(32))) * np.uint64(
        0x9E3779B97F4A7C15
    )
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (z ^ (z >> np.uint64(31))) | np.uint64(1)
