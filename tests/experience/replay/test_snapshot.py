"""A shard is saved as it was at one instant, whatever comes meanwhile, and is bit for bit that when it is restored."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rlctl_agents.checkpoint.parts import Corrupt, Part, PartError, write_part
from rlctl_agents.checkpoint.state import StateError, pack_state
from rlctl_agents.checkpoint.streamed import StoredRows
from rlctl_agents.experience.replay import snapshot as module
from rlctl_agents.experience.replay.priorities import ReplaySettings, masses
from rlctl_agents.experience.replay.ring import FLAGS, as_bytes
from rlctl_agents.experience.replay.shard import DrawnRows, Shard
from rlctl_agents.experience.replay.snapshot import ShardSnapshot, restore
from rlctl_agents.types.experience import Field, Schema, SegmentBlock
from tests.experience.replay.reference import Stream, block
from tests.experience.replay.test_sequences import Sequenced
from tests.experience.replay.test_shard import FATES, World

NAME = "main-000001-replay0.safetensors"
FORMS: dict[str, Callable[..., World]] = {
    "windows": lambda **more: World(3, 4, 9, **more),
    "windows of stacked frames": lambda **more: World(3, 2, 9, frames=4, **more),
    "even windows": lambda **more: World(3, 1, 9, settings={"prioritized": False}, **more),
    "sequences": lambda **more: Sequenced(2, 2, 4, 14, **more),
    "sequences of stacked frames": lambda **more: Sequenced(2, 2, 4, 14, frames=3, **more),
}


class Busy:
    """Lock of a shard that others hold in turn: something happens each time before it is had."""

    def __init__(self, *turns: Callable[[], object]) -> None:
        self._turns = list(turns)

    def __enter__(self) -> None:
        if self._turns:
            self._turns.pop(0)()

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def left(self) -> int:
        return len(self._turns)


def state(shard: Shard) -> dict[str, bytes]:
    """All that a shard holds, as bytes."""
    ring, tree = shard._ring, shard._tree
    arrays: dict[str, Any] = {
        **{name: one for name, one in shard.by_column.items() if name != "records"},
        **{f"record {name}": ring.records[name] for name in ring.records.dtype.names or ()},  # not what aligns them
        "generation": ring.generation, "before": ring._before, "after": ring._after,
        "stream": ring._stream, "row0": ring._row0, "boot": ring._boot, "drawable": shard._units.drawable,
        "running": tree._sums(), **{f"level {at}": level for at, level in enumerate(tree._levels)},
    }  # fmt: skip
    found = {name: np.ascontiguousarray(array).tobytes() for name, array in arrays.items()}
    newest = sorted(ring._newest.items())
    plain = (shard.totals, newest, ring._head, shard._rng.bit_generator.state)
    return found | {"plain": repr(plain).encode()}


def changes(world: World, seed: int = 1) -> Callable[[], None]:
    """One of insertions, priority updates and draws."""
    rng = np.random.default_rng(seed)

    def change() -> None:
        world.next(sorted({*rng.integers(0, len(world.streams), 2).tolist()}))
        drawn = world.shard.draw(4)
        if drawn.count:
            update(world.shard, drawn, rng.normal(size=4))

    return change


def update(shard: Shard, drawn: DrawnRows, delta: NDArray[np.float64]) -> None:
    """The errors of what was drawn."""
    shard.update(drawn.fields["slot"].astype(np.int64), drawn.fields["generation"].astype(np.uint32), delta)


def save(shard: Shard, folder: Path, lock: Any = None, name: str = NAME) -> Part:
    return ShardSnapshot(shard, lock or threading.Lock()).write(folder, name)


def like(shard: Shard, columns: int = 0, **settings: Any) -> Shard:
    """An empty one of the same experience."""
    told = {**{name: getattr(shard.settings, name) for name in shard.settings.__struct_fields__}, **settings}
    capacity = (columns or shard.columns) * shard.schema.unroll_length
    return Shard(shard.schema, ReplaySettings(**told), capacity=capacity, seed=99)


def restored(part: Part, folder: Path, empty: Shard) -> Shard:
    restore(empty, folder, *part)
    return empty


def follows(twin: Shard, one: Shard, world: World) -> None:
    """Whether two shards are the same and stay so, whatever is done to both."""
    assert state(one) == state(twin)
    for at in range(2 * twin.columns):
        segments = block(twin.schema, [world.streams[at % len(world.streams)].segment(twin.schema.unroll_length)])
        drawn, other = twin.draw(5), one.draw(5)
        for name, values in drawn.fields.items():
            np.testing.assert_array_equal(values, other.fields[name], name)
        for shard in (twin, one):
            shard.insert(segments)
            if drawn.count:
                update(shard, drawn, np.arange(5.0) + at)
    assert state(one) == state(twin)


@pytest.mark.parametrize("inserted", [0, 1, 3, 40], ids=lambda rows: f"after {rows}")
@pytest.mark.parametrize("form", FORMS)
def test_what_is_restored_is_bit_for_bit_what_it_was_and_goes_on_alike(
    form: str, inserted: int, tmp_path: Path
) -> None:
    world = FORMS[form]()
    change = changes(world)
    for _ in range(inserted):
        change()
    twin = copy.deepcopy(world.shard)
    follows(twin, restored(save(world.shard, tmp_path), tmp_path, like(world.shard)), world)


@pytest.mark.parametrize("piece", [1, 700, 1 << 22], ids=lambda size: f"pieces of {size} bytes")
@pytest.mark.parametrize("inserted", [2, 40], ids=lambda rows: f"after {rows}")
@pytest.mark.parametrize("form", FORMS)
def test_what_comes_while_it_is_written_changes_nothing_of_it(
    form: str, inserted: int, piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", piece)
    world = FORMS[form]()
    change = changes(world)
    for _ in range(inserted):
        change()
    twin = copy.deepcopy(world.shard)
    begun = ShardSnapshot(world.shard, Busy(*[change] * 30))  # type: ignore[arg-type]
    change()
    part = begun.write(tmp_path, NAME)
    assert world.compare() or inserted < 3, "and the shard itself goes on as ever"
    follows(twin, restored(part, tmp_path, like(world.shard)), world)


@given(
    sequenced=st.booleans(),
    steps=st.integers(1, 4),
    length=st.integers(1, 3),
    frames=st.sampled_from([0, 1, 2, 4]),
    columns=st.integers(1, 12),
    seed=st.integers(0, 1000),
    piece=st.integers(1, 3000),
    before=st.lists(st.tuples(st.sampled_from(FATES), st.sets(st.integers(0, 2), min_size=1)), max_size=10),
    meanwhile=st.lists(st.tuples(st.sampled_from(FATES), st.sets(st.integers(0, 2), min_size=1)), max_size=10),
)
def test_any_shard_is_saved_as_it_was_whatever_comes_meanwhile(
    sequenced: bool, steps: int, length: int, frames: int, columns: int, seed: int, piece: int,
    before: list[tuple[str, set[int]]], meanwhile: list[tuple[str, set[int]]],
) -> None:  # fmt: skip
    world = (
        Sequenced(steps, 0, length * steps, columns, frames=frames, seed=seed)
        if sequenced
        else World(steps, length, columns, frames=frames, seed=seed)
    )
    for fate, chosen in before:
        world.next(sorted(chosen), fate)
    twin = copy.deepcopy(world.shard)
    turns = [lambda fate=fate, chosen=chosen: world.next(sorted(chosen), fate) for fate, chosen in meanwhile]
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PIECE_BYTES", piece)
        part = save(world.shard, Path(folder), Busy(*turns))
        one = restored(part, Path(folder), like(world.shard))
    assert state(one) == state(twin)


def test_threads_that_insert_and_draw_at_full_speed_change_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 2000)
    monkeypatch.setattr(module, "WAITING_BYTES", 10**9)
    world = World(3, 4, 300)
    change, lock, stop, turns = changes(world), threading.Lock(), threading.Event(), [0]
    for _ in range(300):
        change()

    def work() -> None:
        while not stop.is_set():
            with lock:
                change()
            turns[0] += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(3):
            with lock:
                twin = copy.deepcopy(world.shard)
                begun = ShardSnapshot(world.shard, lock)
            turns[0] = 0
            part = begun.write(tmp_path, NAME)
            assert turns[0] > 0, "it went on meanwhile"
            assert state(restored(part, tmp_path, like(twin))) == state(twin)
    finally:
        stop.set()
        thread.join()


def test_the_next_one_is_of_its_own_instant(tmp_path: Path) -> None:
    world = World(3, 4, 9)
    change = changes(world)
    for _ in range(3):
        for _ in range(5):
            change()
        twin = copy.deepcopy(world.shard)
        part = save(world.shard, tmp_path, Busy(change, change))
        assert state(restored(part, tmp_path, like(twin))) == state(twin)
    with pytest.raises(AssertionError, match="one snapshot at a time"):
        [ShardSnapshot(world.shard, threading.Lock()) for _ in range(2)]


def few(monkeypatch: pytest.MonkeyPatch, shard: Shard) -> None:
    """Chunks of one column, of which one is copied at once, and four may wait."""
    column = sum(as_bytes(one).shape[1] for one in shard.by_column.values())
    for name, most in (("PIECE_BYTES", 1), ("AT_ONCE_BYTES", 1), ("WAITING_BYTES", 4 * column)):
        monkeypatch.setattr(module, name, most)


def test_insertions_that_the_disk_cannot_keep_up_with_do_not_wait_the_part_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(3, 4, 40)
    few(monkeypatch, world.shard)
    change = changes(world)
    for _ in range(40):
        change()

    def storm() -> None:
        for _ in range(20):
            change()

    with pytest.raises(PartError, match="overwritten faster than they can be written"):
        save(world.shard, tmp_path, Busy(lambda: None, storm))
    assert list(tmp_path.iterdir()) == []
    twin = copy.deepcopy(world.shard)
    assert state(restored(save(world.shard, tmp_path), tmp_path, like(twin))) == state(twin), "the next one is whole"


def test_whatever_ends_a_part_leaves_no_file_and_the_shard_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(3, 4, 9)
    few(monkeypatch, world.shard)
    change = changes(world)
    for _ in range(20):
        change()

    def fail() -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        save(world.shard, tmp_path, Busy(lambda: None, fail))
    assert list(tmp_path.iterdir()) == []
    assert world.shard.before_overwriting is None
    with pytest.raises(PartError, match="No such file"):
        save(world.shard, tmp_path / "no")
    assert world.shard.before_overwriting is None


# -- into a shard of another form ----------------------------------------------------------------------------------


def by_version(shard: Shard) -> dict[int, dict[str, Any]]:
    """Number of the first row -> arrays and mass of every unit that may be drawn."""
    units = np.flatnonzero(shard._tree.mass)
    assert units.tolist() == np.flatnonzero(shard._units.drawable).tolist()
    assert shard.totals.size == units.size
    assert shard.totals.mass == pytest.approx(shard._tree.mass.astype(np.float64).sum())
    if not units.size:
        return {}
    arrays, found = shard._units.gather(units, {}), {}
    versions = arrays["version"] if arrays["version"].ndim == 1 else arrays["version"][0]
    for at, version in enumerate(versions.tolist()):
        shown = {name: values.take(at, _axis(shard, name)) for name, values in arrays.items()}
        assert version not in found
        found[version] = shown | {"mass": shard._tree.mass[units[at]]}
    return found


def _axis(shard: Shard, name: str) -> int:
    """Of the units, in what `gather` gives."""
    if shard.settings.sequence:
        return int(name not in shard._ring.segments)
    return int(name in ("rewards", "legal") or name.startswith("obs"))


def same(found: Mapping[int, dict[str, Any]], wanted: Mapping[int, dict[str, Any]], *, mass: bool = True) -> None:
    assert found.keys() == wanted.keys()
    for version, arrays in wanted.items():
        for name in arrays.keys() - (set() if mass else {"mass"}):
            np.testing.assert_array_equal(found[version][name], arrays[name], f"{name} of {version}")


def windows(world: World, columns: int, n_step: int) -> set[int]:
    """Numbers of the first rows of windows, or sequences, over the newest columns."""
    reference = copy.copy(world.reference)
    reference._columns, reference._n_step = columns, n_step
    if isinstance(world, Sequenced):
        return {rows[0].number for rows in reference.sequences(world.length).values()}
    return {window.rows[0].number for window in reference.windows().values()}


@pytest.mark.parametrize("columns", [1, 4, 8, 13, 15, 40])
@pytest.mark.parametrize("inserted", [3, 40], ids=lambda rows: f"after {rows}")
@pytest.mark.parametrize("form", FORMS)
def test_another_capacity_keeps_the_newest_rows_with_their_masses_and_what_follows_what(
    form: str, inserted: int, columns: int, tmp_path: Path
) -> None:
    world = FORMS[form]()
    change, rng = changes(world), np.random.default_rng(inserted)
    for at in range(inserted):
        change()
        world.next([at % 3], str(rng.choice(["sent", "lost", "restarted", "late"])))
    before, totals = by_version(world.shard), world.shard.totals
    one = restored(save(world.shard, tmp_path), tmp_path, like(world.shard, columns))
    kept = min(columns, world.shard.columns)
    wanted = windows(world, kept, world.settings.n_step)
    same(by_version(one), {version: before[version] for version in wanted})
    assert one.filled == min(world.shard.filled, one.capacity)
    assert (one.totals.inserted, one.totals.sampled, one.totals.highest) == (
        totals.inserted, totals.sampled, totals.highest,
    )  # fmt: skip


def test_a_stream_goes_on_in_a_shard_of_another_capacity(tmp_path: Path) -> None:
    world = World(3, 4, 9, streams=1)
    for _ in range(5):
        world.next([0])
    one = restored(save(world.shard, tmp_path), tmp_path, like(world.shard, 20))
    before = len(by_version(one))
    world.shard = one
    world.next([0])
    assert len(by_version(one)) > before
    assert by_version(one).keys() == windows(world, 9, 4)


def second(form: str) -> World:
    """A world with other senders and rows than `FORMS[form]()`."""
    world = FORMS[form](seed=7)
    world.boots, world._numbers = 1000, count(100_000)
    world.streams = [world.stream(50 + at) for at in range(3)]
    return world


@pytest.mark.parametrize("form", FORMS)
def test_the_rows_of_two_shards_lie_side_by_side_with_their_masses_and_counts(form: str, tmp_path: Path) -> None:
    worlds = [FORMS[form](), second(form)]
    for world in worlds:
        change = changes(world)
        for _ in range(30):
            change()
    parts = [save(world.shard, tmp_path, name=f"{at}.safetensors") for at, world in enumerate(worlds)]
    first, other = (by_version(world.shard) for world in worlds)
    one = like(worlds[0].shard, 60)
    for part in parts:
        restore(one, tmp_path, *part)
    same(by_version(one), first | other)
    for name in ("inserted", "sampled", "rows"):
        assert getattr(one.totals, name) == sum(getattr(world.shard.totals, name) for world in worlds)
    assert one.totals.highest == max(world.shard.totals.highest for world in worlds)
    same_form = like(worlds[0].shard)
    for part in parts:
        restore(same_form, tmp_path, *part)
    assert by_version(same_form).keys() == other.keys(), "where there is room for one, the rows that came last"


@pytest.mark.parametrize("now", [1, 2, 6])
def test_another_n_step_has_windows_of_its_own(now: int, tmp_path: Path) -> None:
    world = World(3, 4, 9)
    change = changes(world)
    for _ in range(30):
        change()
    before = by_version(world.shard)
    one = restored(save(world.shard, tmp_path), tmp_path, like(world.shard, n_step=now))
    found = by_version(one)
    assert found.keys() == windows(world, 9, now)
    for version, arrays in found.items():
        assert arrays["steps"] <= now
        wanted = before[version]["mass"] if version in before else np.float32(world.shard.totals.highest)
        assert arrays["mass"] == wanted
    assert one.draw(50).count == 50


def test_under_another_alpha_masses_are_those_of_the_same_errors(tmp_path: Path) -> None:
    world = World(3, 4, 9, settings={"alpha": 0.5})
    for _ in range(30):
        world.next([0, 1])
    units = np.flatnonzero(world.shard._tree.mass)
    error, steps = np.arange(1.0, units.size + 1), world.schema.unroll_length
    world.shard.update(units, world.shard._ring.generation[units // steps], error)
    one = restored(save(world.shard, tmp_path), tmp_path, like(world.shard, alpha=1.0))
    wanted = {version: arrays["mass"] for version, arrays in by_version(world.shard).items()}
    for version, arrays in by_version(one).items():
        assert arrays["mass"] == pytest.approx(float(wanted[version]) ** 2, rel=1e-4)
    assert one.totals.highest == pytest.approx(float(masses(error[-1:], one.settings)[0]), rel=1e-4)
    even = restored(save(world.shard, tmp_path), tmp_path, like(world.shard, alpha=0.0))
    assert {float(arrays["mass"]) for arrays in by_version(even).values()} == {1.0}


def anonymous_bytes() -> int:
    """Memory of this process that no file can give back."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Anonymous:"))


def test_a_part_of_a_larger_shard_takes_no_memory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard of four is given what was one shard's: its pod has room for a quarter."""
    fields = tuple(Field(name, "bool", (), "row+1" if name == "first" else "row") for name in FLAGS)
    images = Schema(16, (Field("obs", "uint8", (64, 64), "row+1"), Field("reward", "float32", (), "row"), *fields))
    settings, whole = ReplaySettings(1), 16 * 512
    shard = Shard(images, settings, capacity=whole, seed=0)
    streams = [Stream(at, "boot", np.random.default_rng(at)) for at in range(64)]
    columns = [one.segment(16) for one in streams]
    narrow = block(Schema(16, images.fields[1:]), columns)
    for at in range(8):
        obs = np.full(images.block_shape(images.fields[0], 64), at, np.uint8)
        header = msgspec.structs.replace(narrow.header, row0=[16 * at] * 64)
        shard.insert(SegmentBlock(header, narrow.version, {**narrow.fields, "obs": obs}))
    part = save(shard, tmp_path)
    size = (tmp_path / part.file).stat().st_size
    assert size > 32 << 20
    del shard
    quarter = Shard(images, settings, capacity=whole // 4, seed=0)
    before, meanwhile, looked = anonymous_bytes(), list[int](), quarter._units.update

    def measured(placed: Any) -> Any:
        meanwhile.append(anonymous_bytes() - before)
        return looked(placed)

    monkeypatch.setattr(quarter._units, "update", measured)
    restore(quarter, tmp_path, *part)
    assert quarter.filled == whole // 4
    assert np.unique(quarter.by_column["obs"]).tolist() == [6, 7], "the newest"
    assert max(meanwhile) < size // 2


# -- what is no part of this shard ---------------------------------------------------------------------------------


def saved(folder: Path) -> tuple[World, Part, Shard]:
    """A world of two streams, the part of its shard, and an empty shard of the same form."""
    world = World(3, 4, 9)
    for _ in range(12):
        world.next([0, 1])
    return world, save(world.shard, folder), like(world.shard)


def refused(shard: Shard, folder: Path, part: Part, kind: type[Exception], said: str) -> None:
    """And nothing of the shard has changed."""
    before = state(shard)
    with pytest.raises(kind, match=said):
        restore(shard, folder, *part)
    assert state(shard) == before


def test_a_part_that_is_damaged_of_others_or_not_whole_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    _, part, empty = saved(tmp_path)
    data = bytearray((tmp_path / part.file).read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "flipped").write_bytes(data)
    refused(empty, tmp_path, Part("flipped", part.sha256), Corrupt, "is damaged")
    refused(empty, tmp_path, Part("absent", part.sha256), Corrupt, "is missing")
    learner = write_part(tmp_path, "learner", pack_state({"w": np.zeros(2)}, {}))
    refused(empty, tmp_path, learner, StateError, "experience of another kind")
    for other in (World(3, 4, 9, frames=2), World(2, 4, 9), Sequenced(3, 3, 6, 9), World(3, 4, 9, recorded=False)):
        refused(other.shard, tmp_path, part, StateError, "experience of another kind")
    assert restored(part, tmp_path, empty).filled


def test_a_disk_that_fails_while_rows_are_read_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, part, empty = saved(tmp_path)
    *_, last = empty.by_column.values()
    read = StoredRows.read

    def failing(rows: StoredRows, first: int, out: NDArray[np.uint8]) -> None:
        read(rows, first, out)
        if np.shares_memory(out, last):
            raise PartError("cannot read: Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(StoredRows, "read", failing)
        refused(empty, tmp_path, part, PartError, "Input/output error")
    assert not any(as_bytes(column).any() for column in empty.by_column.values())
    assert restored(part, tmp_path, empty).filled == world.shard.filled


@pytest.mark.parametrize("lacking", ["records", "obs.big", "mass", "core.h"])
def test_a_part_that_lacks_an_array_changes_nothing(lacking: str, tmp_path: Path) -> None:
    world = World(3, 4, 9)
    for _ in range(12):
        world.next([0, 1])
    arrays, plain = world.shard.order()
    whole = {**arrays, **world.shard.by_column}
    stored = {name: np.ascontiguousarray(array).reshape(len(array), -1).view(np.uint8) for name, array in whole.items()}
    stored.pop(lacking)
    part = write_part(tmp_path, NAME, pack_state(stored, plain))
    refused(like(world.shard), tmp_path, part, StateError, f"holds no {lacking}")
    short = {name: values[:-1] if name == "records" else values for name, values in stored.items()}
    if lacking == "mass":
        part = write_part(tmp_path, NAME, pack_state(short, plain))
        refused(like(world.shard), tmp_path, part, StateError, "holds records of another form")


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"filled": None}, "is of another form, or larger than this memory"),
        ({"columns": None}, "is of another form, or larger than this memory"),
        ({"columns": 1}, "holds .* of another form"),
    ],
)
def test_a_part_whose_counts_make_no_sense_changes_nothing(told: dict[str, Any], said: str, tmp_path: Path) -> None:
    world = World(3, 4, 9)
    for _ in range(12):
        world.next([0, 1])
    arrays, plain = world.shard.order()
    whole = {**arrays, **world.shard.by_column}
    stored = {name: np.ascontiguousarray(array).reshape(len(array), -1).view(np.uint8) for name, array in whole.items()}
    part = write_part(tmp_path, NAME, pack_state(stored, {**plain, **told}))
    refused(like(world.shard), tmp_path, part, StateError, said)
