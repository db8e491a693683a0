"""Resuming of a learner from the generations of its run."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlctl_agents.checkpoint.state import StateError
from rlctl_agents.roles.learner import go_on
from rlctl_agents.runtime.process import UserFault
from tests.training.test_checkpoint_writer import saved


def of_another_network(state: bytes) -> str:
    raise StateError("stored weights are of another network: policy.weight")


def test_generations_of_another_network_are_the_users_fault(tmp_path: Path) -> None:
    with pytest.raises(UserFault, match=r"of another network: policy\.weight.*start another run, or undo what"):
        go_on(tmp_path, saved(tmp_path, 1, 2), of_another_network)


def test_a_volume_that_cannot_be_read_may_be_readable_in_another_life(tmp_path: Path) -> None:
    generations = saved(tmp_path, 1)
    (tmp_path / generations[0].parts["learner"]).unlink()
    with pytest.raises(RuntimeError, match="is missing"):
        go_on(tmp_path, generations, of_another_network)


def test_a_run_without_generations_begins(tmp_path: Path) -> None:
    assert go_on(tmp_path, (), of_another_network) is None
