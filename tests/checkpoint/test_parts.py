"""Parts on the disk: whole or not there."""

from __future__ import annotations

import contextlib
import hashlib
import os
import resource
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlctl_agents.checkpoint import parts
from rlctl_agents.checkpoint.parts import (
    Corrupt,
    NoRoom,
    PartError,
    generation_of,
    name_of,
    read_part,
    remove_leftovers,
    write_part,
)


@contextlib.contextmanager
def files_of_at_most(limit_bytes: int) -> Iterator[None]:
    """As on a full disk: the kernel refuses to write more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_part_is_read_as_it_was_written(tmp_path: Path) -> None:
    data = bytes(range(256)) * 1000
    part = write_part(tmp_path, "main-7-learner.safetensors", data)
    assert part.file == f"main-7-learner-{hashlib.sha256(data).hexdigest()[:12]}.safetensors"
    assert read_part(tmp_path, part.file, part.sha256) == data
    assert [path.name for path in tmp_path.iterdir()] == [part.file]


def test_the_same_part_may_be_written_again(tmp_path: Path) -> None:
    assert write_part(tmp_path, "a.bin", b"x") == write_part(tmp_path, "a.bin", memoryview(b"x"))
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("position", [0, 500, 999])
def test_one_flipped_bit_is_noticed(tmp_path: Path, position: int) -> None:
    part = write_part(tmp_path, "a.bin", bytes(1000))
    damaged = bytearray(1000)
    damaged[position] ^= 4
    (tmp_path / part.file).write_bytes(damaged)
    with pytest.raises(Corrupt, match="is damaged"):
        read_part(tmp_path, part.file, part.sha256)


def test_a_part_cut_short_or_missing_is_noticed(tmp_path: Path) -> None:
    part = write_part(tmp_path, "a.bin", bytes(1000))
    (tmp_path / part.file).write_bytes(bytes(999))
    with pytest.raises(Corrupt, match="999 bytes"):
        read_part(tmp_path, part.file, part.sha256)
    (tmp_path / part.file).unlink()
    with pytest.raises(Corrupt, match="is missing"):
        read_part(tmp_path, part.file, part.sha256)


def test_a_file_system_that_refuses_for_a_moment_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part, refused = write_part(tmp_path, "a.bin", b"x"), [OSError(116, "Stale file handle")] * 2
    read = Path.read_bytes

    def stale(path: Path) -> bytes:
        if refused:
            raise refused.pop()
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", stale)
    monkeypatch.setattr(parts, "READ_AGAIN_S", 0.0)
    assert read_part(tmp_path, part.file, part.sha256) == b"x"
    refused += [OSError(116, "Stale file handle")] * parts.READS
    with pytest.raises(PartError, match="Stale file handle"):
        read_part(tmp_path, part.file, part.sha256)


def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path) -> None:
    before = write_part(tmp_path, "a.bin", b"before")
    with files_of_at_most(10_000), pytest.raises(NoRoom, match="100000 bytes"):
        write_part(tmp_path, "b.bin", bytes(100_000))
    assert [path.name for path in tmp_path.iterdir()] == [before.file]


def test_a_folder_that_is_not_there_is_an_error_of_parts(tmp_path: Path) -> None:
    with pytest.raises(PartError, match="No such file"):
        write_part(tmp_path / "no", "a.bin", b"")


@pytest.mark.parametrize("name", ["../a", "a/b", "/etc/passwd", "", ".", ".."])
def test_a_name_cannot_leave_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="plain file name"):
        read_part(tmp_path, name, "")
    with pytest.raises(ValueError, match="plain file name"):
        write_part(tmp_path, name, b"")


def test_leftovers_of_dead_processes_are_removed_and_those_of_live_ones_stay(tmp_path: Path) -> None:
    def leftover(host: str, pid: int) -> Path:
        path = tmp_path / f"a.bin.tmp.{host}.{pid}"
        path.touch()
        return path

    with subprocess.Popen(["sleep", "20"]) as other:
        leftover(socket.gethostname(), 2**22 + 1)
        leftover(socket.gethostname(), os.getpid())  # of a predecessor: in a container each is process 1
        kept = [leftover(socket.gethostname(), other.pid), leftover("another-host", 12)]
        removed = remove_leftovers(tmp_path)
        other.kill()
    assert removed == 2
    assert sorted(tmp_path.iterdir()) == sorted(kept)


def test_the_name_of_a_part_says_for_which_generation_it_was_written(tmp_path: Path) -> None:
    part = write_part(tmp_path, name_of("main", 7, "learner"), b"x")
    assert generation_of(part.file) == ("main", 7)
    longest = write_part(tmp_path, name_of("main-000001", 1234567, "learner"), b"x")
    assert generation_of(longest.file) == ("main-000001", 1234567)
    numbered = write_part(tmp_path, name_of("main", 7, "replay12"), b"x")
    assert generation_of(numbered.file) == ("main", 7)


@pytest.mark.parametrize(
    "file",
    [
        "main-000007-learner.safetensors",
        "main-000007-learner-e3b0c44298fc.safetensors.tmp.host.1",
        "generation-000007.json",
        "notes-7.txt",
    ],
)
def test_a_file_that_is_no_part_is_of_no_generation(file: str) -> None:
    assert generation_of(file) is None
