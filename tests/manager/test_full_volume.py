"""A volume that takes nothing more: it is named as the cause, and what was reached is stored when space returns."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from rlctl_agents.manager.checkpoints.fencing_term import read_term, standing_term
from rlctl_agents.manager.state_store import StateStore
from rlctl_agents.runtime.process import UserFault
from rlctl_agents.runtime.storage import FULL_S, LONGEST_DELAY_S, patiently, refusal
from tests.manager.world import Run, Time, Volume, Waiting, boot, status


def test_what_is_wrong_with_the_volume_is_said_in_words_and_names_the_place() -> None:
    assert refusal(OSError(errno.ENOSPC, "x"), "/v/term") == "the volume is full: /v/term"
    assert refusal(OSError(errno.EROFS, "x", "/v/a")) == "the volume is read-only: /v/a"
    assert refusal(OSError(errno.EDQUOT, "x", "/v/a")) == "the quota of the volume is used up: /v/a"
    assert refusal(OSError(errno.EIO, "x", "/v/a")) == ""


def test_whoever_needs_the_volume_tries_again_ever_more_rarely_and_gives_up_with_its_name() -> None:
    time, tries, beats = Time(), list[float](), list[float]()
    stop = Waiting(time)

    def act() -> None:
        tries.append(time.now)
        raise OSError(errno.ENOSPC, "No space left on device", "/v/run/term")

    with pytest.raises(UserFault, match="the volume is full: /v/run/term"):
        patiently(act, stop=stop, beat=lambda: beats.append(time.now), clock=time)
    assert stop.waits[:5] == [1, 2, 4, 8, LONGEST_DELAY_S]
    assert FULL_S <= tries[-1] - tries[0] <= FULL_S + LONGEST_DELAY_S
    assert len(beats) == len(stop.waits)


def test_who_is_asked_to_stop_does_not_wait_for_space() -> None:
    stop = Waiting(Time())
    stop.set()

    def act() -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/v")

    with pytest.raises(UserFault, match="full"):
        patiently(act, stop=stop, beat=lambda: None, clock=stop.time)
    assert stop.waits == []


def test_a_fault_that_is_not_for_want_of_space_is_not_waited_for() -> None:
    def act() -> None:
        raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(OSError, match="Input"):
        patiently(act, stop=threading.Event(), beat=lambda: None)


def test_a_manager_that_starts_on_a_full_volume_goes_on_when_there_is_space_and_loses_no_evaluation(
    ended: Run, volume: Volume
) -> None:
    ended.manager.store()
    volume.error = errno.ENOSPC
    stop = Waiting(ended.time)

    def free() -> None:
        volume.error = 0 if len(stop.waits) == 3 else errno.ENOSPC

    stop.then = free
    manager = patiently(ended.start, stop=stop, beat=lambda: None, clock=ended.time)
    assert len(stop.waits) == 3
    assert manager.life.term == read_term(ended.layout.run)
    assert manager.state.progress.evaluation is not None
    assert manager.state.progress.evaluation.mean == 8


def test_a_learner_that_asks_again_waits_for_no_volume_unless_its_lineage_is_not_stored_yet(
    tmp_path: Path, volume: Volume
) -> None:
    run = Run(tmp_path)
    assert run.join("learner", 1).next_lineage == 1
    volume.error = errno.ENOSPC
    assert run.join("learner", 1).next_lineage == 1
    for _ in range(2):
        with pytest.raises(ValueError, match="the lineage of learner 0 cannot be stored: the volume is full"):
            run.join("learner", 2)
    volume.error = 0
    assert run.join("learner", 2).next_lineage == 2
    assert StateStore(run.layout.results).progress.lineage_of == {boot(1): 1, boot(2): 2}


def test_a_manager_that_cannot_count_its_start_names_the_volume(ended: Run, volume: Volume) -> None:
    volume.error = errno.EROFS
    with pytest.raises(UserFault, match=f"the volume is read-only: {ended.layout.run}/term"):
        patiently(ended.start, stop=Waiting(ended.time), beat=lambda: None, clock=ended.time)


def test_a_torn_counter_that_cannot_be_written_anew_does_not_end_the_manager(tmp_path: Path, volume: Volume) -> None:
    (tmp_path / "term").write_bytes(b"\0")
    volume.error = errno.ENOSPC
    assert standing_term(tmp_path, 7) == 7


def test_what_was_not_stored_stays_a_problem_although_something_else_could_be(ended: Run, volume: Volume) -> None:
    volume.error = errno.ENOSPC
    ended.manager.store()  # the ledger need not be durable
    (problem,) = (one for one in status(ended)["problems"] if "volume" in one["text"])
    assert problem["text"] == f"the volume is full: {ended.layout.results}/progress.json.1"
    assert problem["next"] == "df -h; df -i"
    volume.error = 0
    ended.manager.store()
    assert StateStore(ended.layout.results).progress.evaluation is not None
    assert not any("volume" in one["text"] for one in status(ended)["problems"])
