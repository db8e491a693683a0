"""A shard between actors and learners: what comes is taken, limited or refused, and it goes on."""

from __future__ import annotations

import threading
import time
from typing import Any

import msgspec
import numpy as np
import pytest

from rlctl_agents.experience.replay import messages
from rlctl_agents.experience.replay.messages import (
    MAX_UNITS,
    Draw,
    Drawn,
    changes,
    drawn_schema,
    from_buffers,
    layout,
    to_buffers,
    unit_bytes,
)
from rlctl_agents.experience.replay.server import FairLock, Inserter
from rlctl_agents.types.experience import Arrays, Field, Schema, SegmentBlock
from rlctl_agents.wire.classes import REPLAY, refusal
from rlctl_agents.wire.keys import ACTOR, CORE
from rlctl_agents.wire.rpc.client import MAX_BUFFERS, RemoteError
from rlctl_agents.wire.sockets import MAX_MESSAGE_BYTES
from tests.experience.replay.reference import Stream, block
from tests.experience.replay.shards import AGREED, SETTINGS, Place, T


def filled(**settings: Any) -> Place:
    """A shard of 400 rows."""
    place = Place(0, **settings)
    place.feed(400)
    return place


def ask(place: Place, request: Draw, buffers: Any = ()) -> tuple[Drawn, list[memoryview]]:
    return place.call(request, Drawn, buffers, deadline_s=1.0)


def update(slot: Any, generation: Any, delta: Any) -> list[bytes]:
    """Buffers of a priority update."""
    parts = (np.asarray(slot, np.int64), np.asarray(generation, np.uint32), np.asarray(delta, np.float32))
    return [part.tobytes() for part in parts]


def test_arrays_travel_as_they_are() -> None:
    place = filled()
    drawn, buffers = ask(place, Draw(30))
    arrays = from_buffers(buffers, layout(AGREED, SETTINGS, 30))
    assert drawn.count == 30
    fields = {one.name for one in drawn_schema(AGREED, SETTINGS).fields} - {"valid", "weight"}
    assert set(arrays) == fields | {"version", "slot", "generation", "mass"}
    again: Arrays = place.shard._units.gather(arrays["slot"], {})
    for name in fields:
        np.testing.assert_array_equal(arrays[name], again[name])
        assert not arrays[name].flags.writeable


@pytest.mark.parametrize("piece", [messages.PIECE_BYTES, 1 << 12])
def test_images_of_a_large_draw_travel_in_frames_that_arrive(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two Atari observations of each of 700 rows: 39 MB, and a frame may have 16 MiB."""
    monkeypatch.setattr(messages, "PIECE_BYTES", piece)
    images = 700
    schema = Schema(1, (Field("obs", "uint8", (4, 84, 84), "row+1"), *AGREED.fields[2:]))
    shapes = layout(schema, SETTINGS, images)
    rng = np.random.default_rng(1)
    arrays = {name: rng.integers(0, 99, shape).astype(dtype) for name, (dtype, shape) in shapes.items()}
    frames = to_buffers(arrays, list(arrays))
    assert max(one.nbytes for one in frames) <= MAX_MESSAGE_BYTES
    assert len(frames) <= MAX_BUFFERS
    assert sum(one.nbytes for one in frames) == unit_bytes(schema, SETTINGS) * images > 2 * MAX_MESSAGE_BYTES
    found = from_buffers(frames, shapes)
    for name, values in arrays.items():
        np.testing.assert_array_equal(found[name], values)
    assert not found["obs"].flags.writeable, "joined from several frames"
    with pytest.raises(ValueError, match=r"frames instead of the \d+ of"):
        from_buffers([*frames, frames[0]], shapes)
    with pytest.raises(ValueError, match="instead of"):
        from_buffers([frames[0], *frames[2:]], shapes)


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (0, "slot: 0 bytes instead of int64"),
        (1, "1 arrays instead of 3"),  # the three frames are as long as the first array
        (7, "slot: 84 bytes instead of int64"),
    ],
)
def test_arrays_of_other_sizes_are_none(count: int, said: str) -> None:
    shapes = changes(count)
    arrays = {name: np.zeros(shape, dtype) for name, (dtype, shape) in shapes.items()}
    whole = to_buffers(arrays, list(arrays))
    assert set(from_buffers(whole, shapes)) == {"slot", "generation", "delta"}
    with pytest.raises(ValueError, match="2 arrays instead of 3"):
        from_buffers(whole[:2], shapes)
    with pytest.raises(ValueError, match=said):
        from_buffers(whole, changes(count + 1))


GARBAGE: dict[str, tuple[Draw, Any]] = {
    "buffers that nobody announced": (Draw(0, "0-1"), [b"12345678"]),
    "no buffers": (Draw(4, "0-1", changes=3), []),
    "fewer bytes": (Draw(4, "0-1", changes=3), [b"", b"", b""]),
    "more bytes": (Draw(4, "0-1", changes=1), update([0, 1], [1, 1], [1, 1])),
    "a buffer too many": (Draw(4, "0-1", changes=1), [*update([0], [1], [1]), b"x"]),
}


@pytest.mark.parametrize("case", GARBAGE)
def test_garbage_is_refused_and_nothing_of_it_is_done(case: str) -> None:
    place = filled()
    before, mass = place.shard.totals, place.shard._tree.mass.copy()
    with pytest.raises(RemoteError, match="instead of"):
        ask(place, *GARBAGE[case])
    assert place.shard.totals == before
    np.testing.assert_array_equal(place.shard._tree.mass, mass)
    assert ask(place, Draw(10))[0].count == 10


@pytest.mark.parametrize("fields", [{"count": -1}, {"count": MAX_UNITS + 1}, {"count": 1, "changes": MAX_UNITS + 1}])
def test_counts_beyond_what_one_message_may_ask_are_not_read(fields: dict[str, int]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(fields, Draw)
    assert msgspec.convert({"count": MAX_UNITS}, Draw).count == MAX_UNITS


def test_priorities_of_places_that_there_are_not_change_nothing() -> None:
    place = filled()
    drawn, _ = ask(place, Draw(0))
    mass, slots = place.shard._tree.mass.copy(), place.shard._ring.slots
    for slot, generation, delta in (
        (slots, 1, 9.0), (-1, 1, 9.0), (2**62, 1, 9.0), (-(2**62), 1, 9.0), (0, 7, 9.0), (0, 1, np.nan),
    ):  # fmt: skip
        ask(place, Draw(0, drawn.boot, changes=1), update([slot], [generation], [delta]))
    np.testing.assert_array_equal(place.shard._tree.mass, mass)
    assert place.shard.totals.highest == 1.0
    ask(place, Draw(0, drawn.boot, changes=1), update([0], place.shard._ring.generation[:1], [np.inf]))
    assert np.isfinite(place.shard.totals.mass)
    values = place.shared._metrics.values().counters
    assert (values["priorities"], values["stale_priorities"]) == (1, 6)


def test_learners_alone_may_draw() -> None:
    assert refusal(REPLAY, ACTOR, Draw, Draw(1))
    assert refusal(REPLAY, "", Draw, Draw(1))
    assert not refusal(REPLAY, CORE, Draw, Draw(1))


def test_an_empty_shard_answers_that_it_is() -> None:
    drawn, buffers = ask(Place(0), Draw(10))
    assert (drawn.count, buffers, drawn.standing.mass, drawn.standing.size) == (0, [], 0.0, 0)


def test_the_mass_of_an_answer_is_that_which_its_rows_were_drawn_with() -> None:
    place = filled()
    drawn, buffers = ask(place, Draw(0))
    slot = np.arange(50)
    told = update(slot, place.shard._ring.generation[slot // T], np.full(50, 30.0))
    drawn, buffers = ask(place, Draw(100, drawn.boot, changes=50), told)
    arrays = from_buffers(buffers, layout(AGREED, SETTINGS, 100))
    assert drawn.standing.mass == place.shard.totals.mass, "priorities first"
    np.testing.assert_array_equal(arrays["mass"], place.shard._tree.mass[arrays["slot"]])


class Receiver:
    """Gives what has `arrived`, and remembers what was settled."""

    def __init__(self) -> None:
        self.arrived: list[SegmentBlock] = []
        self.settled: list[tuple[SegmentBlock, str]] = []
        self.woken, self.closed = 0, False
        self.least_version = 0

    def poll(self, timeout_s: float) -> list[SegmentBlock]:
        arrived, self.arrived = self.arrived, []
        return arrived

    def wake(self) -> None:
        self.woken += 1

    def settle(self, block: SegmentBlock, outcome: str, rows: int | None = None) -> None:
        self.settled.append((block, outcome))

    def resize(self, budget_rows: int, batch_size: int, queue_rows: int) -> None:
        raise AssertionError("a replay's budget stays")

    def close(self) -> None:
        self.closed = True


def blocks(count: int) -> list[SegmentBlock]:
    """Of 20 rows each."""
    streams = [Stream(at, "actor", np.random.default_rng(at)) for at in range(4)]
    return [block(AGREED, [one.segment(T) for one in streams]) for _ in range(count)]


def test_blocks_beyond_the_limit_are_held_unsettled_and_go_in_in_their_order_when_more_is_granted() -> None:
    place, receiver = Place(0, starts=100, ratio=8.0), Receiver()
    inserter = Inserter(place.shared, receiver, lambda: None)  # type: ignore[arg-type]
    sent = blocks(10)
    receiver.arrived = sent[:8]
    inserter.step(0.0)
    assert [one for one, _ in receiver.settled] == sent[:5]
    receiver.arrived = sent[8:]
    inserter.step(0.0)
    assert len(receiver.settled) == 5, "and none overtakes"
    ask(place, Draw(0, place.boot, may_insert=90))
    assert receiver.woken == 0, "nothing more"
    ask(place, Draw(0, "another", may_insert=10_000))
    assert receiver.woken == 0, "of a life before"
    ask(place, Draw(0, place.boot, may_insert=150))
    assert receiver.woken == 1
    inserter.step(0.0)
    assert [one for one, _ in receiver.settled] == sent[:8]
    assert {outcome for _, outcome in receiver.settled} == {"consumed"}
    assert place.shard.totals.inserted == 160


def test_who_waits_for_a_shard_is_not_overtaken_by_who_has_just_used_it() -> None:
    """A thread that answers draw after draw would have it again before one that saves it has woken."""
    lock, turns = FairLock(), list[str]()

    def wait() -> None:
        with lock:
            turns.append("waited")

    for _ in range(20):
        thread = threading.Thread(target=wait)
        with lock:
            thread.start()
            while not lock._next.locked():
                time.sleep(0)
            turns.append("had it")
        with lock:
            turns.append("again")
        thread.join()
    assert turns == ["had it", "waited", "again"] * 20


def test_what_ends_the_thread_that_receives_is_raised_where_the_shard_serves() -> None:
    place, receiver = Place(0), Receiver()

    def broken() -> None:
        raise OSError("no space")

    inserter = Inserter(place.shared, receiver, broken)  # type: ignore[arg-type]
    inserter.require_life()
    inserter._run()
    assert receiver.closed
    with pytest.raises(OSError, match="no space"):
        inserter.require_life()
