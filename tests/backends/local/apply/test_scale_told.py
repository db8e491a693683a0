"""Numbers that `scale` has set: the manager hears of those it reckons with, and `live.json` keeps them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rlctl.backends.local.apply import up
from rlctl.errors import Conflict, PartlyApplied
from rlctl.plan import RolePlan
from tests.backends.local.machine import Machine, role_plan, until, whats

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]


def roles(shards: int = 2, **behaviour: Any) -> tuple[RolePlan, ...]:
    return role_plan("manager", 1, behaviour), role_plan("replay", shards), role_plan("actor", 2)


def live(shards: int = 2, **stop: int) -> dict[str, Any]:
    """The manager's live fields: a number of actors is none of its business."""
    return {"stop": stop, "roles": {"replay": {"replicas": shards}}}


def heard(machine: Machine) -> Any:
    """Live values as the manager has read them."""
    return machine.backend.control("one", "GET", "/status")["live"]


def begun(machine: Machine, **behaviour: Any) -> None:
    machine.up("one", *roles(**behaviour), live=live())
    until(lambda: heard(machine) == live(), "the manager")


def written(machine: Machine) -> Any:
    return json.loads((machine.backend.place("one").layout.run / "live.json").read_text())


def test_the_manager_hears_of_another_number_of_shards_and_an_up_of_the_same_spec_keeps_it(machine: Machine) -> None:
    begun(machine)
    before = machine.pids("one")
    for count in (3, 1):
        list(machine.backend.scale("one", {"replay": count}))
        assert heard(machine) == written(machine) == live(count)
        until(lambda: len(machine.pids("one")) == 3 + count, "the shards")  # noqa: B023
        assert set(whats(machine.up("one", *roles(), live=live())).values()) == {"unchanged"}
        assert heard(machine) == written(machine) == live(count)
    after = machine.pids("one")
    assert {name for name in before if before[name] != after.get(name)} == {"replay/1"}

    machine.up("one", *roles(), live=live(2, agent_steps=7))
    assert heard(machine) == live(1, agent_steps=7), "what else changes live comes with the scaled number"
    machine.up("one", *roles(4), live=live(4, agent_steps=7))
    assert heard(machine) == live(4, agent_steps=7), "another number in the spec wins"


def test_a_manager_that_is_started_again_reads_the_scaled_number(machine: Machine) -> None:
    begun(machine)
    list(machine.backend.scale("one", {"replay": 3}))
    list(machine.backend.restart("one", "manager"))
    until(lambda: heard(machine) == live(3), "the manager again")
    list(machine.backend.delete("one", volumes=False, grace_s=5))
    machine.up("one", *roles(), live=live())
    until(lambda: heard(machine) == live(3), "the manager after a down and an up")


def test_the_number_of_actors_is_none_of_its_business(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(machine)
    monkeypatch.setattr(up, "_post_reload", lambda *_: pytest.fail("the manager was told"))
    list(machine.backend.scale("one", {"actor": 3}))
    list(machine.backend.scale("one", {"replay": 2}))
    assert written(machine) == live()


def test_a_manager_that_does_not_answer_is_no_reason_not_to_scale_and_the_same_command_tells_it(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(machine)

    def silent(*_: object) -> None:
        raise PartlyApplied("the changed live fields did not reach the manager: no answer")

    with monkeypatch.context() as patched:
        patched.setattr(up, "_post_reload", silent)
        with pytest.raises(PartlyApplied, match="did not reach the manager"):
            list(machine.backend.scale("one", {"replay": 3}))
    until(lambda: "replay/2" in machine.pids("one"), "the third shard")
    assert heard(machine) == live(2)
    list(machine.backend.scale("one", {"replay": 3}))
    assert heard(machine) == live(3)


def test_a_run_that_is_ending_is_not_scaled(machine: Machine) -> None:
    begun(machine, refuses="the run is ending; run the same command again when it has ended")
    before = machine.backend.find("one"), machine.pids("one")
    with pytest.raises(Conflict, match="the run is ending"):
        list(machine.backend.scale("one", {"replay": 3}))
    assert (machine.backend.find("one"), machine.pids("one")) == before
    assert written(machine) == live(2)
