"""Parts written piece by piece: whole and on the disk, or not there; read back as they were."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from rlctl_agents.checkpoint import parts, streamed
from rlctl_agents.checkpoint.parts import Corrupt, NoRoom, Part, PartError, write_part
from rlctl_agents.checkpoint.state import StateError, pack_state, unpack_state
from rlctl_agents.checkpoint.streamed import LEFT_BYTES, StoredArrays, StreamedPart
from tests.checkpoint.test_parts import files_of_at_most
from tests.support.power import Disk

NAME = "main-000007-replay0.safetensors"
ARRAYS = {"rows": (6, 5), "none": (0, 4), "flags": (3, 1)}
ROWS = np.arange(30, dtype=np.uint8).reshape(6, 5)
FLAGS = np.array([[7], [8], [9]], np.uint8)
PLAIN = {"columns": 6, "rng": {"state": 2**127}, "newest": [[-1, 2]]}


def part_of(folder: Path, name: str = NAME) -> StreamedPart:
    return StreamedPart(folder, name, ARRAYS, PLAIN)


def written(folder: Path) -> Any:
    """A whole part, its pieces put out of order."""
    part = part_of(folder)
    part.put("flags", 1, FLAGS[1:].tobytes())
    part.put("rows", 4, ROWS[4:].tobytes())
    part.put("rows", 0, memoryview(ROWS[:4].tobytes()))
    part.put("flags", 0, FLAGS[:1].tobytes())
    return part.finish()


def read(folder: Path, part: Part, name: str = "rows") -> Any:
    """All rows of an array."""
    with contextlib.closing(StoredArrays(folder, *part)) as stored:
        return stored.rows(name).all()


def handles(folder: Path) -> set[str]:
    """Files of a folder that this process has open."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            continue
    return {one for one in found if one.startswith(str(folder))}


def test_what_was_put_in_any_order_is_read_as_it_was(tmp_path: Path) -> None:
    with contextlib.closing(StoredArrays(tmp_path, *written(tmp_path))) as stored:
        np.testing.assert_array_equal(stored.rows("rows").all(), ROWS)
        np.testing.assert_array_equal(stored.rows("flags").all(), FLAGS)
        assert stored.rows("none").shape == stored.rows("none").all().shape == (0, 4)
        assert stored.plain == PLAIN
        with pytest.raises(StateError, match="holds no mass"):
            stored.rows("mass")
    assert not handles(tmp_path)


@pytest.mark.parametrize("at", [[], [3], [0, 1, 2], [5, 0, 1, 1, 4, 5], [2, 1, 0]])
def test_some_rows_are_read_in_the_order_in_which_they_are_asked_for(tmp_path: Path, at: list[int]) -> None:
    with contextlib.closing(StoredArrays(tmp_path, *written(tmp_path))) as stored:
        np.testing.assert_array_equal(stored.rows("rows").take(np.array(at, np.int64)), ROWS[at])


def test_a_volume_that_fails_while_rows_are_read_is_an_error_of_the_part(tmp_path: Path) -> None:
    with contextlib.closing(StoredArrays(tmp_path, *(part := written(tmp_path)))) as stored:
        os.truncate(tmp_path / part.file, (tmp_path / part.file).stat().st_size - 20)
        with pytest.raises(Corrupt, match="is cut short"):
            stored.rows("flags").all()
        stored.close()
        with pytest.raises(ValueError, match="closed"):
            stored.rows("flags").all()


def test_a_streamed_part_is_a_safetensors_file_named_by_its_checksum(tmp_path: Path) -> None:
    file, sha256 = written(tmp_path)
    data = (tmp_path / file).read_bytes()
    assert sha256 == hashlib.sha256(data).hexdigest()
    assert file == f"main-000007-replay0-{sha256[:12]}.safetensors"
    np.testing.assert_array_equal(load_file(tmp_path / file)["rows"], ROWS)
    assert unpack_state(data)[1] == PLAIN, "the header is that of every part"
    assert [path.name for path in tmp_path.iterdir()] == [file]
    assert not handles(tmp_path)


def test_what_was_put_nowhere_is_zeros(tmp_path: Path) -> None:
    part = part_of(tmp_path)
    part.put("rows", 2, ROWS[2:3].tobytes())
    rows = read(tmp_path, part.finish())
    np.testing.assert_array_equal(rows[2], ROWS[2])
    assert not rows[[0, 1, 3, 4, 5]].any()


def test_until_it_is_finished_there_is_no_part_and_an_abandoned_one_leaves_nothing(tmp_path: Path) -> None:
    part = part_of(tmp_path)
    part.put("rows", 0, ROWS.tobytes())
    assert [path.name.partition(".tmp.")[0] for path in tmp_path.iterdir()] == [NAME]
    part.abandon()
    part.abandon()
    assert list(tmp_path.iterdir()) == []
    assert not handles(tmp_path)


def test_a_finished_part_outlasts_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    disk = Disk(folder, monkeypatch)
    part = written(folder)
    np.testing.assert_array_equal(read(disk.lose_power(tmp_path / "after"), part), ROWS)


def test_a_part_that_is_being_written_is_not_there_after_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    disk = Disk(folder, monkeypatch)
    part_of(folder).put("rows", 0, ROWS.tobytes())
    assert list(disk.lose_power(tmp_path / "after").iterdir()) == []


def test_a_disk_without_room_is_noticed_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streamed, "LEFT_BYTES", 1 << 62)
    with pytest.raises(NoRoom, match=r"cannot write .*replay0.* bytes are free, it needs"):
        part_of(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_others_are_going_to_write_is_not_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mib, names = 1 << 20, [f"main-000001-replay{index}.safetensors" for index in range(3)]
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2 * 64 * mib + 2 * mib + LEFT_BYTES))
    first, _ = (StreamedPart(tmp_path, name, {"rows": (64, mib)}, PLAIN) for name in names[:2])
    with pytest.raises(NoRoom, match=r"stay free for others and \d+ of parts that are being written"):
        StreamedPart(tmp_path, names[2], {"rows": (64, mib)}, PLAIN)
    first.abandon()
    StreamedPart(tmp_path, names[2], {"rows": (64, mib)}, PLAIN)


def test_a_file_that_may_not_grow_leaves_nothing_half_written(tmp_path: Path) -> None:
    """As where a quota is reached: the kernel refuses the length of the file, before its first byte."""
    with files_of_at_most(100), pytest.raises(NoRoom):
        part_of(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert not handles(tmp_path)


@pytest.mark.parametrize("fails_at", [1, 2, 3])
def test_a_disk_that_fills_in_the_middle_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    really, calls = os.pwrite, [0]

    def pwrite(handle: int, data: Any, offset: int) -> int:
        calls[0] += 1
        if calls[0] == fails_at:
            raise OSError(28, "No space left on device")
        return really(handle, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(NoRoom, match="No space left"):
        written(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert not handles(tmp_path)


def test_a_write_that_takes_less_than_it_was_given_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda handle, data, offset: really(handle, data[:3], offset))
    np.testing.assert_array_equal(read(tmp_path, written(tmp_path)), ROWS)


def test_a_sync_that_fails_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(handle: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(PartError, match="Input/output error"):
        written(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_a_predecessor_of_our_number_left_is_in_nobodys_way(tmp_path: Path) -> None:
    """In a container each is process 1, of the same host name."""
    (tmp_path / f"{NAME}.tmp.{socket.gethostname()}.{os.getpid()}").write_bytes(b"half")
    np.testing.assert_array_equal(read(tmp_path, written(tmp_path)), ROWS)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_file_system_that_refuses_for_a_moment_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part, faults = written(tmp_path), [OSError(116, "Stale file handle")] * 2
    really = hashlib.file_digest

    def stale(*of: Any) -> Any:
        if faults:
            raise faults.pop()
        return really(*of)

    monkeypatch.setattr(hashlib, "file_digest", stale)
    monkeypatch.setattr(parts, "READ_AGAIN_S", 0.0)
    np.testing.assert_array_equal(read(tmp_path, part), ROWS)
    faults += [OSError(116, "Stale file handle")] * parts.READS
    with pytest.raises(PartError, match="Stale file handle"):
        read(tmp_path, part)


def test_rows_are_read_again_from_their_begin_where_the_file_system_refuses_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stale:
        """A file that refuses after its first bytes, once."""

        def __init__(self, file: Any) -> None:
            self.file, self.reads = file, 0

        def seek(self, offset: int) -> None:
            self.file.seek(offset)

        def fileno(self) -> int:
            return int(self.file.fileno())

        def readinto(self, into: memoryview) -> int:
            self.reads += 1
            if self.reads == 2:
                raise OSError(116, "Stale file handle")
            return int(self.file.readinto(into[:3] if self.reads == 1 else into))

    part = written(tmp_path)
    monkeypatch.setattr(parts, "READ_AGAIN_S", 0.0)
    stored = StoredArrays(tmp_path, part.file, part.sha256)
    rows = stored.rows("rows")
    rows._file = Stale(rows._file)  # type: ignore[assignment]
    np.testing.assert_array_equal(rows.all(), ROWS)
    stored.close()


def test_a_folder_that_is_not_there_is_an_error_of_parts(tmp_path: Path) -> None:
    with pytest.raises(PartError, match="No such file"):
        part_of(tmp_path / "no")


@pytest.mark.parametrize("name", ["../a", "a/b", "/etc/passwd", "", ".", ".."])
def test_a_name_cannot_leave_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="plain file name"):
        part_of(tmp_path, name)
    with pytest.raises(ValueError, match="plain file name"):
        StoredArrays(tmp_path, name, "")


@pytest.mark.parametrize("position", [0, 9, 200, -1])
def test_one_flipped_bit_is_noticed(tmp_path: Path, position: int) -> None:
    file, sha256 = written(tmp_path)
    damaged = bytearray((tmp_path / file).read_bytes())
    damaged[position] ^= 4
    (tmp_path / file).write_bytes(damaged)
    with pytest.raises(Corrupt, match="is damaged"):
        StoredArrays(tmp_path, file, sha256)


def test_a_part_cut_short_or_missing_is_noticed(tmp_path: Path) -> None:
    file, sha256 = written(tmp_path)
    (tmp_path / file).write_bytes((tmp_path / file).read_bytes()[:-1])
    with pytest.raises(Corrupt, match="is damaged"):
        StoredArrays(tmp_path, file, sha256)
    (tmp_path / file).unlink()
    with pytest.raises(Corrupt, match="is missing"):
        StoredArrays(tmp_path, file, sha256)


def with_header(header: Any) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text


FOREIGN = {
    "empty": b"",
    "no JSON": (4).to_bytes(8, "little") + b"abcd",
    "a list": with_header([]),
    "no metadata": with_header({"a": {}}),
    "metadata of others": with_header({"__metadata__": {"format": "pt"}}),
    "no plain data": with_header({"__metadata__": {"rlctl": '{"format": 1}'}}),
    "another format": with_header({"__metadata__": {"rlctl": '{"format": 2, "plain": {}}'}}),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_a_file_that_is_no_such_part_is_said_to_be_none(tmp_path: Path, what: str) -> None:
    part = write_part(tmp_path, NAME, FOREIGN[what])
    with pytest.raises(StateError, match=r"holds no stored arrays|reads format 1"):
        StoredArrays(tmp_path, *part)
    assert not handles(tmp_path)


def test_the_part_of_a_learner_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    part = write_part(tmp_path, NAME, pack_state({"w": np.zeros(3)}, {"kind": "learner"}))
    with contextlib.closing(StoredArrays(tmp_path, *part)) as stored:
        assert stored.plain == {"kind": "learner"}
