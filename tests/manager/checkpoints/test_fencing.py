"""Order of a manager's pods: processes of an older one take no term, and the newest is never left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlctl_agents.manager.checkpoints.fencing_term import PodOrder, next_term


class Pod:
    """A pod with its own /tmp; `start` is a process of it, which takes a term unless it stands aside."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.own = folder / "run", folder / name / "own"
        self.own.parent.mkdir()
        self.folder.mkdir(exist_ok=True)

    def start(self, *, rests: bool = False) -> bool:
        pods = PodOrder(self.folder, self.own)
        pods.begin()
        if pods.superseded():
            return False
        if not rests:
            next_term(self.folder, 0)
            pods.enter()
        return True


@pytest.mark.parametrize("rests", [False, True])
def test_a_pod_that_was_replaced_stands_aside_and_its_successor_goes_on(tmp_path: Path, rests: bool) -> None:
    """The first may only have answered for a finished run, and have taken no term."""
    Pod(tmp_path, "zeroth").start()
    first, second = Pod(tmp_path, "first"), Pod(tmp_path, "second")
    assert first.start(rests=rests)
    assert second.start()
    assert second.start()
    if not rests:
        assert not first.start()
    assert second.start(), "whatever the first has tried"
    assert Pod(tmp_path, "third").start()
    assert not second.start()
    assert not first.start()


def test_a_pod_without_room_for_its_number_supersedes_none(tmp_path: Path) -> None:
    first, second = Pod(tmp_path, "first"), Pod(tmp_path, "second")
    first.own.parent.rmdir()  # what is written there fails
    assert first.start()
    assert second.start()
    assert first.start()
    assert second.start()


def test_a_newer_pod_is_above_all_before_it_though_the_counter_of_terms_is_lost(tmp_path: Path) -> None:
    for name in ("first", "second"):
        assert Pod(tmp_path, name).start()
    (tmp_path / "run" / "term").unlink()
    third = Pod(tmp_path, "third")
    assert third.start()
    assert third.start()
