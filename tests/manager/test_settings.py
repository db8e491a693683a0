"""Live settings of a manager that is started again: what it was told holds until live.json says otherwise."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rlctl_agents.manager.settings import SCALED, LiveSettings
from tests.manager.world import UID


def mounted(folder: Path, **replicas: int) -> None:
    live = {"stop": {"agent_steps": 5000}, "roles": {role: {"replicas": count} for role, count in replicas.items()}}
    (folder / "live.json").write_text(json.dumps(live))


def told(**replicas: int) -> dict[str, Any]:
    return {"roles": {role: {"replicas": count} for role, count in replicas.items()}}


@pytest.fixture
def make(tmp_path: Path) -> Callable[[], LiveSettings]:
    """Settings of another life of the manager."""
    spec = {"run": "r", "env": {"id": "-"}, "algorithm": {"name": "apex_dqn"}}
    run_file = tmp_path / "run.json"
    run_file.write_text(json.dumps({"format": 1, "run": "r", "uid": UID, "role": "manager", "spec": spec}))
    mounted(tmp_path, replay=2, evaluator=1)
    return partial(LiveSettings, run_file, tmp_path / "live.json", tmp_path / SCALED)


def counts(make: Callable[[], LiveSettings]) -> tuple[int, int]:
    """Shards and evaluators, as a manager that begins reads them."""
    roles = make().read().roles
    assert roles.replay is not None
    return roles.replay.replicas, roles.evaluator.replicas


def test_numbers_that_were_given_hold_until_those_of_the_file_change(
    tmp_path: Path, make: Callable[[], LiveSettings]
) -> None:
    assert counts(make) == (2, 1)
    settings = make()
    settings.read()
    settings.reload(told(replay=4, evaluator=1))
    assert counts(make) == (4, 1)
    mounted(tmp_path, replay=2, evaluator=3)  # `up` of a spec in which only that has changed
    assert counts(make) == (4, 3)
    mounted(tmp_path, replay=3, evaluator=3)
    assert counts(make) == (3, 3)
    settings.reload(told(replay=3, evaluator=3))
    mounted(tmp_path, replay=2, evaluator=3)
    assert counts(make) == (2, 3), "what the file says again is no longer what was given over"


def test_a_number_that_the_file_has_replaced_does_not_come_back_with_the_file(
    tmp_path: Path, make: Callable[[], LiveSettings]
) -> None:
    """A spec that changes twice while the run is down reaches the manager by live.json alone."""
    make().reload(told(replay=4, evaluator=1))
    for replay, expected in ((2, 4), (3, 3), (2, 2)):
        mounted(tmp_path, replay=replay, evaluator=1)
        assert counts(make) == (expected, 1)


def test_a_number_that_cannot_be_stored_is_not_taken(tmp_path: Path, make: Callable[[], LiveSettings]) -> None:
    settings, stored = make(), tmp_path / SCALED
    stored.mkdir()
    with pytest.raises(ValueError, match=r"replicas\.json"):
        settings.reload(told(replay=4))
    stored.rmdir()
    assert settings.read().roles.replay.replicas == 2  # type: ignore[union-attr]


def test_a_damaged_file_is_told_and_the_next_scale_mends_it(
    tmp_path: Path, make: Callable[[], LiveSettings], caplog: pytest.LogCaptureFixture
) -> None:
    stored = tmp_path / SCALED
    stored.write_text("{")
    assert counts(make) == (2, 1)
    assert f"{stored}: " in caplog.text
    assert "`rlctl scale` again" in caplog.text
    make().reload(told(replay=4, evaluator=1))
    assert counts(make) == (4, 1)


def test_what_the_run_refuses_is_taken_back_and_what_held_before_holds_whatever_the_file_says_by_now(
    tmp_path: Path, make: Callable[[], LiveSettings]
) -> None:
    settings = make()
    settings.read()
    settings.reload({"stop": {"agent_steps": 9000}, **told(replay=4, evaluator=1)})
    settings.take_back()
    (tmp_path / "live.json").write_text(json.dumps({"stop": {"agent_steps": 9000}}))  # mounted late
    assert settings.read().stop.agent_steps == 5000
    mounted(tmp_path, replay=2, evaluator=1)
    assert counts(make) == (2, 1), "the next manager has not heard of them"


def test_numbers_that_hold_outlive_others_that_the_run_refuses(make: Callable[[], LiveSettings]) -> None:
    settings = make()
    settings.reload(told(replay=4, evaluator=1))
    settings.reload(told(replay=3, evaluator=2))
    settings.take_back()
    assert settings.read().roles.replay.replicas == 4  # type: ignore[union-attr]
    assert counts(make) == (4, 1)
