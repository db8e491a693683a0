"""Saving and resuming generations."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from rlctl_agents.checkpoint import parts
from rlctl_agents.checkpoint.parts import PartError
from rlctl_agents.checkpoint.state import StateError, unpack_state
from rlctl_agents.training.checkpoint_writer import CheckpointWriter, Job, NothingReadable, resume
from rlctl_agents.training.learner_state import LearnerState
from rlctl_agents.types.control import Commit, Generation, Reply
from rlctl_agents.types.experience import ModelRef

ANSWER = Reply(ok=True)


def job(number: int) -> Job:
    state = LearnerState({"weights/w": np.full(3, float(number))}, {"counters": {}})
    return Job(number, state, ModelRef("main", 2, number * 10), steps=number * 100, term=5)


def saved(folder: Path, *numbers: int) -> tuple[Generation, ...]:
    """Newest first."""
    commits: list[Commit] = []

    def commit(one: Commit) -> Reply:
        commits.append(one)
        return ANSWER

    writer = CheckpointWriter(folder, "boot", commit=commit, count=lambda seconds: None, now=lambda: 1234.5)
    for number in numbers:
        writer.write(job(number))
    return tuple(one.generation for one in reversed(commits))


def number_in(data: bytes) -> int:
    return int(unpack_state(data)[0]["weights/w"][0])


def test_a_generation_is_committed_when_its_part_lies_on_the_disk(tmp_path: Path) -> None:
    (generation,) = saved(tmp_path, 3)
    assert (generation.number, generation.policy, generation.term, generation.steps) == (3, "main", 5, 300)
    assert generation.ref == ModelRef("main", 2, 30)
    assert generation.created == 1234.5
    assert (tmp_path / generation.parts["learner"]).is_file()


def test_a_learner_goes_on_from_the_newest_generation(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found: list[int] = []
    with caplog.at_level(logging.INFO):
        resumed = resume(tmp_path, saved(tmp_path, 1, 2, 3), lambda data: found.append(number_in(data)) or "")  # type: ignore[func-returns-value]
    assert found == [3]
    assert resumed is not None
    assert resumed.number == 3
    assert "resumed from generation 3: version 30, 300 steps" in caplog.text


def test_a_damaged_generation_is_passed_over_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    generations = saved(tmp_path, 1, 2, 3)
    part = tmp_path / generations[0].parts["learner"]
    data = bytearray(part.read_bytes())
    data[-1] ^= 1
    part.write_bytes(data)
    (tmp_path / generations[1].parts["learner"]).unlink()
    resumed = resume(tmp_path, generations, lambda data: "")
    assert resumed is not None
    assert resumed.number == 1
    assert "generation 3 cannot be used" in caplog.text
    assert "is damaged" in caplog.text
    assert "is missing" in caplog.text


def test_a_volume_that_refuses_is_no_reason_to_go_on_from_an_older_generation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generations, asked, read = saved(tmp_path, 1, 2), list[Path](), Path.read_bytes
    refuses = 0

    def stale(path: Path) -> bytes:
        asked.append(path)
        if len(asked) <= refuses:
            raise OSError(116, "Stale file handle")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", stale)
    monkeypatch.setattr(parts, "READ_AGAIN_S", 0.0)
    refuses = parts.READS - 1
    resumed = resume(tmp_path, generations, lambda data: "")
    assert resumed is not None
    assert resumed.number == 2
    asked.clear()
    refuses = parts.READS
    with pytest.raises(PartError, match="Stale file handle"):
        resume(tmp_path, generations, lambda data: "")


def test_nothing_to_go_on_from_is_no_error_but_nothing_readable_is(tmp_path: Path) -> None:
    assert resume(tmp_path, (), lambda data: "") is None

    def refuse(data: bytes) -> str:
        raise StateError("of another network")

    with pytest.raises(NothingReadable, match="generation 2: of another network; generation 1: of another network"):
        resume(tmp_path, saved(tmp_path, 1, 2), refuse)


def test_what_could_not_be_taken_over_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    resume(tmp_path, saved(tmp_path, 1), lambda data: "the averages begin anew")
    assert "the averages begin anew" in caplog.text


def test_a_full_disk_costs_a_generation_and_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert saved(tmp_path / "missing", 1) == ()
    assert "generation 1 was not saved" in caplog.text


def test_the_thread_outlives_an_error_of_any_kind(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def commit(one: Commit) -> Reply:
        if one.generation.number == 1:
            raise MemoryError
        return ANSWER

    writer = CheckpointWriter(tmp_path, "boot", commit=commit, count=lambda seconds: None)
    writer.start()
    for number in (1, 2):
        writer.save(job(number))
        assert writer.settle(10.0)
    assert (writer.failed, writer.committed) == (1, 2)
    assert "MemoryError" in caplog.text
    writer.close()


def test_a_thread_writes_the_newest_order_while_the_learner_goes_on(tmp_path: Path) -> None:
    numbers: list[int] = []

    def commit(one: Commit) -> Reply:
        numbers.append(one.generation.number)
        return ANSWER

    writer = CheckpointWriter(tmp_path, "boot", commit=commit, count=lambda seconds: None)
    writer.start()
    for number in range(1, 30):
        writer.save(job(number))
    assert writer.settle(10.0)
    assert numbers == sorted(numbers)
    assert numbers[-1] == 29
    assert writer.committed == 29
    writer.close()
