"""A shard's part of the generations: one for each order, told whatever came of it, and read by its present owner."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rlctl_agents.checkpoint import streamed
from rlctl_agents.checkpoint.parts import Corrupt, PartError, generation_of
from rlctl_agents.experience.replay.messages import Draw, Drawn
from rlctl_agents.experience.replay.ring import as_bytes
from rlctl_agents.experience.replay.saving import ShardSaver, restore_newest
from rlctl_agents.types.control import Contribute, Generation, Reply
from rlctl_agents.types.experience import ModelRef
from rlctl_agents.wire.rpc.client import RemoteError
from tests.experience.replay.reference import schema
from tests.experience.replay.shards import Place
from tests.experience.replay.test_snapshot import state


class Manager:
    """Hears what came of parts."""

    def __init__(self) -> None:
        self.told: list[Contribute] = []
        self.answer: Reply | Exception = Reply(True)
        self.seconds: list[tuple[float, int]] = []

    def tell(self, told: Contribute, going: Callable[[], bool]) -> Reply:
        self.told.append(told)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def saver(place: Place, folder: Path, manager: Manager, index: int = 0) -> ShardSaver:
    return ShardSaver(
        place.shared, folder, policy="main", index=index, boot=place.boot, tell=manager.tell,
        count=lambda seconds, size: manager.seconds.append((seconds, size)),
    )  # fmt: skip


def saved(folder: Path, number: int, *places: Place, absent: tuple[int, ...] = ()) -> Generation:
    """A generation of these shards."""
    parts, sha256 = {"learner": "x"}, {"learner": "x"}
    for index, place in enumerate(places):
        if index not in absent:
            part = place.shared.snapshot().write(folder, f"main-{number:06d}-replay{index}.safetensors")
            parts[f"replay{index}"], sha256[f"replay{index}"] = part
    missing = {f"replay{index}": "no process" for index in absent}
    return Generation(number, "main", 1, ModelRef("main", 1, number), number, 0.0, parts, sha256, missing)


def fed(number: int, rows: int = 200, **settings: Any) -> Place:
    place = Place(number, **settings)
    place.feed(rows, 1.0)
    return place


def versions(place: Place) -> set[int]:
    """Of the rows that may be drawn, with the number of the shard whose streams they are of."""
    rows = place.shard._ring.records[:-1][np.flatnonzero(place.shard._tree.mass)]
    streams = place.shard._ring._stream[np.flatnonzero(place.shard._tree.mass) // place.shard.schema.unroll_length]
    return {10**6 * int(stream // 100) + int(row["version"]) for stream, row in zip(streams, rows, strict=True)}


# -- orders --------------------------------------------------------------------------------------------------------


def test_the_part_of_an_order_lies_on_the_volume_and_the_manager_is_told_its_name(tmp_path: Path) -> None:
    place, manager = fed(3), Manager()
    one = saver(place, tmp_path, manager, index=12)
    one.obey(7, 2)
    one.close()
    (told,) = manager.told
    assert (told.boot, told.term, told.number, told.fault) == (place.boot, 2, 7, "")
    assert generation_of(told.file) == ("main", 7)
    assert told.file.startswith("main-000007-replay12-")
    ((_, size),) = manager.seconds
    assert size == (tmp_path / told.file).stat().st_size
    again = Place(3)
    again.shared.restore(tmp_path, told.file, told.sha256)
    assert state(again.shard) == state(place.shard)


def test_an_order_is_obeyed_once_and_the_newest_after_one_that_is_being_written(tmp_path: Path) -> None:
    place, manager = fed(0), Manager()
    one, go_on, began = saver(place, tmp_path, manager), threading.Event(), threading.Event()
    tell = manager.tell

    def slowly(told: Contribute, going: Callable[[], bool]) -> Reply:
        began.set()
        assert go_on.wait(10.0)
        return tell(told, going)

    one._tell = slowly
    one.obey(0, 1)
    assert one._thread is None, "none is ordered"
    one.obey(3, 1)
    assert began.wait(10.0)
    for number in (3, 4, 5, 5):
        one.obey(number, 1)
    go_on.set()
    one.close()
    for number in (5, 5, 3, 0):
        one.obey(number, 1)
        one.close()
    assert [told.number for told in manager.told] == [3, 5]


@pytest.mark.parametrize("what", ["folder", "room", "memory"])
def test_a_part_that_cannot_be_written_is_told_with_the_reason_and_the_shard_goes_on(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> int:
        raise MemoryError

    place, manager = fed(0), Manager()
    if what == "room":
        monkeypatch.setattr(streamed, "LEFT_BYTES", 1 << 62)
    elif what == "memory":
        monkeypatch.setattr(os, "pwrite", refuse)
    said = {"folder": "No such file", "room": "bytes are free, it needs", "memory": "MemoryError"}[what]
    one = saver(place, tmp_path / "no" if what == "folder" else tmp_path, manager)
    one.write(7, 1)
    (told,) = manager.told
    assert said in told.fault
    assert (told.file, told.sha256, manager.seconds) == ("", "", [])
    assert list(tmp_path.iterdir()) == []
    place.feed(40)
    monkeypatch.undo()
    saver(place, tmp_path, manager).write(8, 1)
    assert manager.told[-1].fault == ""


@pytest.mark.parametrize("answer", [TimeoutError("no answer"), RemoteError("over"), Reply(False, "of another term")])
def test_a_manager_that_does_not_hear_or_does_not_take_it_ends_nothing(
    answer: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place, manager = fed(0), Manager()
    manager.answer = answer
    with caplog.at_level(logging.INFO):
        saver(place, tmp_path, manager).write(7, 1)
    assert str(answer.why if isinstance(answer, Reply) else answer) in caplog.text
    assert place.shard.before_overwriting is None
    assert len(list(tmp_path.iterdir())) == 1, "the manager removes what no generation names"


# -- what it begins with -------------------------------------------------------------------------------------------


def begin(place: Place, folder: Path, *generations: Generation, shards: int = 2) -> set[int]:
    """Another life of a shard; what may be drawn then."""
    place.start()
    found = restore_newest(place.shared, folder, generations, index=place.number, shards=shards)
    assert found.rows == place.shard.filled == place.shared.rows
    return versions(place)


def test_a_shard_begins_with_its_part_of_the_newest_generation(tmp_path: Path) -> None:
    places = [fed(0), fed(1)]
    older = saved(tmp_path, 1, *places)
    for place in places:
        place.feed(100, 2.0)
    newer, wanted = saved(tmp_path, 2, *places), [state(place.shard) for place in places]
    for place in places:
        place.feed(60)
        begin(place, tmp_path, newer, older)
    assert [state(place.shard) for place in places] == wanted


@pytest.mark.parametrize("how", ["missing", "cut short", "flipped", "absent", "a learner's"])
def test_where_the_newest_part_cannot_be_read_the_one_before_it_is_taken(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    places = [fed(0), fed(1)]
    older, wanted = saved(tmp_path, 1, *places), versions(places[0])
    for place in places:
        place.feed(100)
    newer = saved(tmp_path, 2, *places, absent=(0,) if how == "absent" else ())
    if how != "absent":
        part = tmp_path / newer.parts["replay0"]
        data = part.read_bytes()
        if how == "missing":
            part.unlink()
        elif how == "a learner's":
            newer.parts["replay0"] = "../escape"
        else:
            part.write_bytes(data[:-1] if how == "cut short" else bytes([*data[:900], data[900] ^ 1, *data[901:]]))
    other = versions(places[1])
    assert begin(places[0], tmp_path, newer, older) == wanted
    assert "its rows are filled anew" not in caplog.text
    assert restore_newest(places[0].shared, tmp_path, [newer], index=0, shards=2).unreadable == (how != "absent")
    assert "no generation holds a part of replay0 that can be used: its rows are filled anew" in caplog.text
    assert begin(places[1], tmp_path, newer, older) == other
    assert ("replay0 of generation 2 cannot be used" in caplog.text) == (how != "absent")


def test_what_came_before_a_read_error_of_a_second_part_is_drawn_like_any_other_row() -> None:
    place, other = fed(0), fed(1)
    arrays, plain = other.shard.order()
    columns, reads = other.shard.by_column, count()

    def take(name: str) -> Callable[[NDArray[np.int64]], NDArray[np.uint8]]:
        def taken(wanted: NDArray[np.int64]) -> NDArray[np.uint8]:
            if next(reads) > 3 * len(columns):
                raise OSError("stale file handle")
            return as_bytes(columns[name])[wanted]

        return taken

    before = place.shard.totals
    with pytest.raises(OSError, match="stale"):
        place.shard.insert_from(arrays, plain, {name: take(name) for name in columns})
    now, drawable = place.shard.totals, place.shard._units.drawable
    assert now.rows > before.rows
    assert now.inserted == before.inserted, "the part counts as a whole or not at all"
    assert now.size == np.count_nonzero(drawable) == np.count_nonzero(place.shard._tree.mass)


@pytest.mark.parametrize("damaged", [True, False])
def test_no_older_part_follows_one_that_failed_midway_or_that_the_volume_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: bool
) -> None:
    generations = [saved(tmp_path, number, fed(0)) for number in (2, 1)]
    place, tried = Place(0), list[str]()

    def restore(folder: Path, file: str, sha256: str) -> int:
        tried.append(file)
        if not damaged:
            raise PartError("stale file handle")
        place.feed(40)
        raise Corrupt("is cut short")

    monkeypatch.setattr(place.shared, "restore", restore)
    if damaged:
        assert restore_newest(place.shared, tmp_path, generations, index=0, shards=1) == (40, 1)
    else:
        with pytest.raises(PartError, match="stale file handle; look at the volume"):
            restore_newest(place.shared, tmp_path, generations, index=0, shards=1)
    assert tried == [generations[0].parts["replay0"]]


def test_parts_of_other_experience_are_left_and_the_shard_begins_empty(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    generation = saved(tmp_path, 1, fed(0), fed(1))
    other = Place(0, agreed=schema(5, recorded=True))
    assert restore_newest(other.shared, tmp_path, [generation], index=0, shards=2) == (0, 1)
    assert "schema or sequences have changed" in caplog.text
    assert other.feed(40) == 40


def test_a_shard_that_the_newest_generation_did_not_have_begins_empty(tmp_path: Path) -> None:
    places = [fed(0), fed(1)]
    older, newer = saved(tmp_path, 1, *places), saved(tmp_path, 2, places[0])
    assert begin(places[1], tmp_path, newer, older) == set(), "it was scaled away meanwhile"
    assert begin(places[0], tmp_path, newer, older) != set()


def test_without_a_generation_a_shard_begins_empty(tmp_path: Path) -> None:
    assert begin(fed(0), tmp_path) == set()


def test_fewer_shards_take_over_the_parts_of_those_that_are_no_more(tmp_path: Path) -> None:
    places = [fed(at) for at in range(5)]
    generation, held = saved(tmp_path, 1, *places), [versions(place) for place in places]
    for place in places[:2]:
        place._columns = 250
    assert begin(places[0], tmp_path, generation) == held[0] | held[2] | held[4]
    assert begin(places[1], tmp_path, generation) == held[1] | held[3]


@pytest.mark.parametrize("newest", ["absent", "damaged"])
def test_rows_of_a_shard_that_is_no_more_come_from_the_newest_generation_that_has_them(
    newest: str, tmp_path: Path
) -> None:
    places = [fed(0, columns=120), fed(1)]
    older, gone = saved(tmp_path, 1, *places), versions(places[1])
    places[0].feed(100)
    newer, own = saved(tmp_path, 2, *places, absent=(1,) if newest == "absent" else ()), versions(places[0])
    if newest == "damaged":
        (tmp_path / newer.parts["replay1"]).write_bytes(b"")
    assert begin(places[0], tmp_path, newer, older, shards=1) == own | gone


def test_more_shards_leave_the_new_ones_empty(tmp_path: Path) -> None:
    places = [fed(at) for at in range(2)]
    generation, held = saved(tmp_path, 1, *places), [versions(place) for place in places]
    assert [begin(Place(at), tmp_path, generation, shards=4) for at in range(4)] == [*held, set(), set()]


def test_rows_of_a_generation_before_the_newest_are_not_taken_twice(tmp_path: Path) -> None:
    """There were four shards, and there are two, which have saved what they had taken over."""
    places = [fed(at, columns=160) for at in range(4)]
    older = saved(tmp_path, 1, *places)
    begin(places[0], tmp_path, older)
    newer, held = saved(tmp_path, 2, *places[:2]), versions(places[0])
    assert begin(places[0], tmp_path, newer, older) == held


def test_what_a_dead_process_left_half_written_is_removed(tmp_path: Path) -> None:
    for pid in (os.getpid(), 2**22 + 1):
        (tmp_path / f"main-000003-replay0.safetensors.tmp.{socket.gethostname()}.{pid}").touch()
    begin(fed(0), tmp_path)
    assert list(tmp_path.iterdir()) == []


# -- counts --------------------------------------------------------------------------------------------------------


def ask(place: Place, **request: Any) -> Drawn:
    return place.call(Draw(0, place.boot, **request), Drawn, deadline_s=1.0)[0]


def test_what_was_restored_is_counted_and_told_apart_from_what_came_since(tmp_path: Path) -> None:
    place = fed(0, 200, ratio=8.0, starts=400)
    ask(place, counted=120)
    place.call(Draw(50), Drawn, deadline_s=1.0)
    generation = saved(tmp_path, 1, place)
    begin(place, tmp_path, generation, shards=1)
    told = ask(place).standing
    assert (told.inserted, told.sampled, told.rows) == (200, 50, 200)
    assert (told.began_inserted, told.began_sampled) == (200, 50)
    assert told.counted == told.began_steps == told.steps < 200, "what only ends an episode is no agent step"
    counters = place.shared._metrics.values().counters
    assert (counters["restored"], counters["inserted"], counters["overwritten"]) == (200, 0, 0)
    place.feed(40)
    now = ask(place).standing
    assert (now.inserted, now.began_inserted, now.counted) == (240, 200, told.steps)
    assert now.steps > now.began_steps == told.steps


def test_a_restored_shard_takes_no_more_than_a_learner_grants(tmp_path: Path) -> None:
    place = fed(0, 200, ratio=8.0, starts=200)
    begin(place, tmp_path, saved(tmp_path, 1, place), shards=1)
    assert place.feed(20) == 0, "its part of learning_starts is there"
    ask(place, may_insert=240)
    assert place.feed(100) == 40
