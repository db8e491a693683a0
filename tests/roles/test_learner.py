"""Resuming of a learner from the generations of its run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from rlctl_agents.checkpoint.state import StateError
from rlctl_agents.roles.learner import go_on, main
from rlctl_agents.runtime.health import UPDATE_S, Pulse
from rlctl_agents.runtime.process import UserFault
from tests.training.test_checkpoint_writer import saved
from tests.wire.pair import Clock


def test_a_learner_is_alive_during_an_update_of_minutes() -> None:
    clock, threads = Clock(), torch.get_num_threads()
    process = SimpleNamespace(pulse=Pulse(clock), arguments=SimpleNamespace(volume=None))
    with pytest.raises(UserFault, match="needs --volume"):
        main(cast(Any, process))
    torch.set_num_threads(threads)
    process.pulse.beat()
    clock.now += 600.0
    assert process.pulse.alive
    clock.now += UPDATE_S
    assert not process.pulse.alive


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
