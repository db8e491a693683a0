"""A cluster that changes what it is given: no `up` writes for ever, and what others change is seen all the same."""

from __future__ import annotations

from typing import Any

import pytest

from rlctl.backends.kubernetes.api.interface import Key, Object
from rlctl.errors import Conflict
from tests.backends.kubernetes.fakes.lab import Lab, spec_of

ACTORS = Key("Deployment", "pong-actor-0")


def container(thing: Object) -> Any:
    return thing["spec"]["template"]["spec"]["containers"][0]


def at_least_a_core(thing: Object) -> None:
    """A webhook that raises what is asked for, and takes a field away."""
    if thing["kind"] in ("Deployment", "StatefulSet") and "template" in thing["spec"]:
        requests = container(thing).get("resources", {}).get("requests") or {}
        if requests.get("cpu") not in (None, "9"):
            requests["cpu"] = "9"
        thing["spec"]["template"]["spec"].pop("enableServiceLinks", None)


@pytest.fixture
def hooked(lab: Lab) -> Lab:
    """A run that is up, where a webhook changes every pod template."""
    lab.api.mutate = at_least_a_core
    lab.up()
    lab.settle()
    assert container(lab.of(*ACTORS))["resources"]["requests"]["cpu"] == "9"
    lab.api.new_command()
    return lab


def changes(lab: Lab, **more: Any) -> set[str]:
    plan, rendered = lab.plan(spec_of(**more))
    return {each.object for each in lab.backend().differences(plan, rendered) if each.what != "same"}


def test_the_second_up_writes_nothing_and_diff_agrees(hooked: Lab) -> None:
    assert changes(hooked) == set()
    assert {each.what for each in hooked.up()} == {"unchanged"}
    assert hooked.api.requests.writes == 0


def test_a_webhook_that_comes_later_costs_one_up_and_is_no_restart(lab: Lab) -> None:
    lab.up()
    lab.settle()
    lab.api.mutate = at_least_a_core
    lab.up(force=True, algorithm={"name": "impala", "lr": 0.001})
    lab.settle()
    lab.api.new_command()
    lab.up(algorithm={"name": "impala", "lr": 0.001})
    assert lab.api.requests.writes == 0


def test_what_somebody_else_makes_of_such_a_field_is_seen(hooked: Lab) -> None:
    def less(thing: Object) -> None:
        container(thing)["resources"]["requests"]["cpu"] = "100m"

    hooked.api.edit(ACTORS, "kubectl-edit", less)
    assert changes(hooked) == {"Deployment pong-actor-0"}
    with pytest.raises(Conflict, match=r"resources\.requests\.cpu"):
        hooked.up()


def test_what_somebody_else_removes_beside_it_is_put_back(hooked: Lab) -> None:
    def without(thing: Object) -> None:
        del thing["spec"]["template"]["spec"]["securityContext"]["runAsNonRoot"]

    hooked.api.edit(ACTORS, "kubectl-edit", without)
    hooked.up()
    assert hooked.of(*ACTORS)["spec"]["template"]["spec"]["securityContext"]["runAsNonRoot"] is True
    hooked.settle()
    hooked.api.new_command()
    hooked.up()
    assert hooked.api.requests.writes == 0


def test_a_new_value_of_such_a_field_is_sent(hooked: Lab) -> None:
    hooked.up(roles={"actor": {"cpu": 2}})
    assert any(each == "PATCH Deployment pong-actor-0" for each in hooked.api.writes)


def test_only_a_template_that_changed_is_called_a_restart(hooked: Lab) -> None:
    def forget(thing: Object) -> None:
        thing["data"].pop("admitted.json")

    hooked.api.edit(Key("ConfigMap", "pong-state"), "somebody", forget)
    applied = hooked.up()
    assert "PATCH Deployment pong-actor-0" in hooked.api.writes
    assert {each.what for each in applied} == {"unchanged"}


def test_a_status_that_moves_meanwhile_is_no_restart(lab: Lab) -> None:
    lab.up()
    lab.settle()

    def team(thing: Object) -> None:
        if thing["kind"] == "Deployment":
            thing["metadata"]["labels"]["team"] = "a"

    lab.change = team
    lab.api.mutate = lambda thing: lab.api.report(ACTORS, {"readyReplicas": 3})
    applied = {each.object: each.what for each in lab.up()}
    assert applied["Deployment pong-actor-0"] == "changed"
