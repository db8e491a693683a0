"""Fields of others: found before anything is written, told all at once, taken over only when asked to."""

from __future__ import annotations

import pytest

from rlctl.backends.kubernetes.api.interface import ApiError, Key, Object
from rlctl.errors import Conflict, PartlyApplied
from tests.backends.kubernetes.fakes.lab import Lab

ACTORS = Key("Deployment", "pong-actor-0")
LEARNER = Key("StatefulSet", "pong-learner")


def interfere(lab: Lab) -> None:
    def grace(thing: Object) -> None:
        thing["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 99

    def image(thing: Object) -> None:
        thing["spec"]["template"]["spec"]["containers"][0]["image"] = "theirs"

    lab.api.edit(ACTORS, "kubectl-edit", grace)
    lab.api.edit(LEARNER, "kubectl-set", image)


def test_all_conflicts_of_all_objects_are_one_table_and_nothing_is_written(lab: Lab) -> None:
    lab.up()
    lab.settle()
    interfere(lab)
    lab.api.new_command()
    with pytest.raises(Conflict) as error:
        lab.up(stop={"eval_return": 400})
    assert not lab.api.writes
    table = [line.split() for line in error.value.message.splitlines()[1:]]
    assert table[0] == ["object", "field", "owner", "theirs", "ours"]
    rows = {row[1]: row for row in table[1:]}
    assert rows["pong-actor-0"][2:] == [".spec.template.spec.terminationGracePeriodSeconds", "kubectl-edit", "99", "25"]
    assert rows["pong-learner"][2] == '.spec.template.spec.containers[name="learner"].image'
    assert rows["pong-learner"][3:5] == ["kubectl-set", "theirs"]
    assert error.value.objects == ("StatefulSet pong-learner", "Deployment pong-actor-0")
    assert "--force-conflicts" in error.value.hint


def test_forced_they_are_taken_over_and_stay_ours(lab: Lab) -> None:
    lab.up()
    lab.settle()
    interfere(lab)
    lab.up(force=True)
    assert lab.of(*ACTORS)["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 25
    lab.settle()
    lab.api.new_command()
    lab.up()
    assert lab.api.requests.writes == 0


def test_a_conflict_that_comes_up_only_while_writing_is_told_the_same_way(lab: Lab) -> None:
    lab.up()
    lab.settle()

    def late(method: str, key: Key) -> ApiError | None:
        if (method, key.kind) == ("POST", "Lease"):
            interfere(lab)
        return None

    lab.api.refuse = late
    with pytest.raises(PartlyApplied, match=r"terminationGracePeriodSeconds|image"):
        lab.up(images={"actor": "registry.example/actor@sha256:" + "cd" * 32})


def test_a_field_that_others_agree_on_is_no_conflict(lab: Lab) -> None:
    lab.up()
    lab.settle()
    lab.api.apply(
        {**_name(ACTORS), "spec": {"template": {"spec": {"terminationGracePeriodSeconds": 25}}}}, manager="policy"
    )
    lab.api.new_command()
    lab.up()
    assert lab.api.requests.writes == 0


def test_a_change_that_the_object_cannot_take_is_told_before_anything_is_written(lab: Lab) -> None:
    lab.up()
    lab.settle()
    lab.api.new_command()

    def other_service(thing: Object) -> None:
        if thing["kind"] == "StatefulSet" and thing["metadata"]["name"] == "pong-learner":
            thing["spec"]["serviceName"] = "another"

    lab.change = other_service
    with pytest.raises(Conflict, match="StatefulSet pong-learner: this change is not possible while the object exists"):
        lab.up()
    assert not lab.api.writes


def _name(key: Key) -> Object:
    return {"apiVersion": "apps/v1", "kind": key.kind, "metadata": {"name": key.name}}
