"""History, going back, and telling what would change."""

from __future__ import annotations

from typing import Any

import pytest

from rlctl.backends.kubernetes.api.interface import Key, Object
from rlctl.errors import Conflict
from tests.backends.kubernetes.fakes.lab import Lab, spec_of

FAST: dict[str, Any] = {"algorithm": {"name": "impala", "lr": 0.001}}


def learning_rate(lab: Lab) -> float:
    [document] = [each for each in lab.backend().documents("pong") if each.name.startswith("configmap-pong-learner-")]
    return float(document.text.partition('\\"lr\\": ')[2].partition(",")[0])


def test_revisions_are_counted_from_one_and_the_newest_comes_first(lab: Lab) -> None:
    lab.up()
    lab.up(**FAST)
    lab.up(**FAST)
    found = lab.backend().revisions("pong")
    assert [each.number for each in found] == [2, 1]
    assert {each.by for each in found} == {"alice@desk"}
    assert found[0].spec["algorithm"]["lr"] == 0.001
    assert set(found[0].images) == {"core", "actor", "learner"}


def test_rollback_applies_the_documents_of_a_revision_as_a_new_one(lab: Lab) -> None:
    lab.up()
    first = {each.name: each.text for each in lab.backend().documents("pong")}
    lab.up(**FAST)
    lab.settle()
    applied = list(lab.backend().rollback("pong", 1))
    assert "restarted" in {each.what for each in applied}
    assert {each.name: each.text for each in lab.backend().documents("pong")} == first
    newest, *_ = lab.backend().revisions("pong")
    assert (newest.number, newest.note) == (3, "rollback to 1")


def test_rollback_to_what_runs_changes_nothing(lab: Lab) -> None:
    lab.up()
    lab.settle()
    lab.api.new_command()
    assert {each.what for each in lab.backend().rollback("pong", 1)} == {"unchanged"}
    assert lab.api.requests.writes == 0


def test_rollback_keeps_the_volume_that_has_grown_since(lab: Lab) -> None:
    lab.up(storage={"size": "50Gi"})
    lab.up(storage={"size": "100Gi"}, **FAST)
    lab.settle()
    applied = list(lab.backend().rollback("pong", 1))
    claim = lab.api.objects[Key("PersistentVolumeClaim", "pong-volume")]
    assert claim["spec"]["resources"]["requests"]["storage"] == "100Gi"
    assert "restarted" in {each.what for each in applied}, "what else was changed is gone back to"
    state = lab.record.state
    assert (state.spec["storage"]["size"], state.spec["algorithm"]) == ("100Gi", None)


def test_rollback_keeps_what_scale_has_set(lab: Lab) -> None:
    lab.up()
    lab.up(**FAST)
    lab.scale(actor=9)
    list(lab.backend().rollback("pong", 1))
    assert lab.replicas("pong-actor-0") == 9


def test_a_revision_that_is_not_there_is_refused_with_those_that_are(lab: Lab) -> None:
    lab.up()
    lab.up(**FAST)
    with pytest.raises(Conflict, match="run pong has no revision 7; kept: 2, 1"):
        list(lab.backend().rollback("pong", 7))


def test_a_field_that_cannot_change_is_not_gone_back_to(lab: Lab) -> None:
    lab.up()
    found = lab.api.objects[Key("ConfigMap", "pong-revision-1")]
    found["data"]["revision.json"] = found["data"]["revision.json"].replace("CartPole-v1", "Acrobot-v1")
    lab.up(**FAST)
    with pytest.raises(Conflict, match=r"cannot go back to revision 1: env\.id"):
        list(lab.backend().rollback("pong", 1))


def differences(lab: Lab, **more: Any) -> dict[str, tuple[str, tuple[str, ...]]]:
    plan, rendered = lab.plan(spec_of(**more))
    return {each.object: (each.what, each.lines) for each in lab.backend().differences(plan, rendered)}


def test_before_the_first_up_everything_is_added_and_nothing_written(lab: Lab) -> None:
    found = differences(lab)
    assert {what for what, _ in found.values()} == {"add"}
    assert not lab.api.writes
    assert lab.there() == set()
    assert "+kind: Service" in found["Service pong-manager"][1]


def test_right_after_up_nothing_differs(lab: Lab) -> None:
    lab.up()
    lab.settle()
    lab.api.new_command()
    assert {what for what, _ in differences(lab).values()} == {"same"}
    assert lab.api.requests.writes == 0


def test_only_what_differs_is_shown_without_what_the_server_filled_in(lab: Lab) -> None:
    lab.up()
    lab.settle()
    lab.api.new_command()

    def patched(thing: Object) -> None:
        if thing["kind"] == "Deployment" and "actor" in thing["metadata"]["name"]:
            thing["spec"]["template"]["spec"]["containers"][0]["args"].append("--more")

    lab.change = patched
    found = differences(lab)
    what, lines = found["Deployment pong-actor-0"]
    assert what == "change"
    changed = [line for line in lines if line.startswith(("+", "-")) and not line.startswith(("+++", "---"))]
    assert changed == ["+        - --more"]
    assert not any("terminationMessagePath" in line or "dnsPolicy" in line for line in lines)
    assert found["StatefulSet pong-learner"][0] == "same"
    assert not lab.api.writes


def test_another_number_of_replicas_is_a_difference(lab: Lab) -> None:
    lab.up()
    lab.settle()
    found = differences(lab, roles={"actor": {"replicas": 7}})
    assert found["Deployment pong-actor-0"] == ("change", ("-  replicas: 4", "+  replicas: 7"))


def test_what_goes_is_told(lab: Lab) -> None:
    lab.up(roles={"actor": {"replicas": 1500, "max_replicas": 2000}})
    lab.settle()
    found = differences(lab, roles={"actor": {"replicas": 800, "max_replicas": 1000}})
    assert found["Deployment pong-actor-1"][0] == "remove"
    assert not any(what == "remove" for name, (what, _) in found.items() if name.startswith("ConfigMap"))


def test_a_field_of_somebody_else_is_told_as_a_conflict(lab: Lab) -> None:
    lab.up()
    lab.settle()

    def change(thing: Object) -> None:
        thing["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 99

    lab.api.edit(Key("Deployment", "pong-actor-0"), "kubectl-edit", change)
    what, lines = differences(lab)["Deployment pong-actor-0"]
    assert what == "change"
    assert "# conflict: .spec.template.spec.terminationGracePeriodSeconds belongs to kubectl-edit" in lines
