"""Numbers of replicas: which owner decides them, and how many are asked for at once."""

from __future__ import annotations

from typing import Any

import pytest

from rlctl.backends.base import Applied, Process, RunState
from rlctl.backends.kubernetes.api.interface import Key, Object
from rlctl.backends.kubernetes.apply import ramp
from rlctl.backends.kubernetes.diagnose import rollout
from rlctl.backends.kubernetes.run_state.session import Session
from rlctl.errors import Conflict, Left, RlctlError, TimedOut, WorkloadFailed
from tests.backends.kubernetes.fakes.lab import ALICE, Lab, spec_of

ACTORS = Key("Deployment", "pong-actor-0")


def owners_of_replicas(thing: Object) -> set[str]:
    entries = thing["metadata"]["managedFields"]
    return {each["manager"] for each in entries if "f:replicas" in each["fieldsV1"].get("f:spec", {})}


def set_replicas(lab: Lab, number: int, manager: str, subresource: str = "scale") -> None:
    def change(thing: Object) -> None:
        thing["spec"]["replicas"] = number

    lab.api.edit(ACTORS, manager, change, subresource)


def test_scale_changes_the_number_and_nothing_else(lab: Lab) -> None:
    lab.up()
    lab.settle()
    template = lab.of(*ACTORS)["spec"]["template"]
    lab.scale(actor=9)
    assert lab.replicas("pong-actor-0") == 9
    assert lab.of(*ACTORS)["spec"]["template"] == template
    assert lab.record.state.replicas["actor"] == 9
    assert lab.record.state.spec_replicas["actor"] == 4


def test_modelpools_are_added_and_removed_without_a_restart(lab: Lab) -> None:
    lab.up()
    lab.settle()
    template = lab.of("StatefulSet", "pong-modelpool")["spec"]["template"]
    for count in (9, 1):
        lab.scale(modelpool=count)
        assert lab.replicas("pong-modelpool", "StatefulSet") == count
    assert lab.of("StatefulSet", "pong-modelpool")["spec"]["template"] == template


def test_up_keeps_what_scale_has_set_while_the_spec_says_what_it_said(lab: Lab) -> None:
    lab.up()
    lab.scale(actor=9)
    lab.settle()
    lab.api.new_command()
    lab.up()
    assert lab.api.requests.writes == 0
    assert lab.replicas("pong-actor-0") == 9
    lab.up(algorithm={"name": "impala", "lr": 0.001})
    assert lab.replicas("pong-actor-0") == 9
    lab.up(algorithm={"name": "impala", "lr": 0.001}, roles={"actor": {"replicas": 5}})
    assert lab.replicas("pong-actor-0") == 5


def test_up_keeps_what_an_autoscaler_has_set(lab: Lab) -> None:
    lab.up()
    lab.settle()
    set_replicas(lab, 77, "kube-controller-manager")
    lab.api.new_command()
    applied = lab.up()
    assert lab.api.requests.writes == 0
    assert any("keeping 77 replicas, set by kube-controller-manager" in each.why for each in applied)
    lab.up(images={"actor": "registry.example/actor@sha256:" + "cd" * 32})
    assert lab.replicas("pong-actor-0") == 77
    assert owners_of_replicas(lab.of(*ACTORS)) == {"kube-controller-manager"}


def test_a_number_that_an_autoscaler_sets_while_the_lock_is_taken_is_not_taken_from_it(lab: Lab) -> None:
    lab.up()
    lab.settle()

    def autoscale() -> None:
        lab.api.on_write = lambda: None
        lab.api.edit(
            Key("Deployment", "pong-evaluator"), "keda", lambda thing: thing["spec"].update(replicas=3), "scale"
        )

    lab.api.on_write = autoscale  # the lock is the first write
    with pytest.raises(Conflict, match="a field belongs to other field managers") as error:
        lab.scale(evaluator=2)
    assert "keda" in error.value.message
    assert lab.replicas("pong-evaluator") == 3
    assert lab.record.state.replicas["evaluator"] == 1


def test_a_number_that_an_autoscaler_owns_is_not_taken_from_it(lab: Lab) -> None:
    lab.up()
    lab.settle()
    set_replicas(lab, 77, "kube-controller-manager")
    lab.api.new_command()
    for act in (lambda: lab.up(roles={"actor": {"replicas": 6}}), lambda: lab.scale(actor=6)):
        with pytest.raises(Conflict) as error:
            act()
        row = next(line for line in error.value.message.splitlines() if "pong-actor-0" in line)
        assert row.split() == ["Deployment", "pong-actor-0", ".spec.replicas", "kube-controller-manager", "77", "6"]
    assert not lab.api.writes
    lab.up(roles={"actor": {"replicas": 6}}, force=True)
    assert lab.replicas("pong-actor-0") == 6


def test_a_run_that_was_released_at_its_end_comes_back_with_up(lab: Lab) -> None:
    lab.up()
    lab.settle()
    set_replicas(lab, 0, "rlctl-scale")
    lab.up(stop={"eval_return": 400})
    assert lab.replicas("pong-actor-0") == 4


def test_actors_that_a_run_gives_back_at_its_end_are_not_asked_for_again(lab: Lab) -> None:
    lab.up(roles={"actor": {"replicas": 64}})
    lab.settle()
    set_replicas(lab, 0, "rlctl-scale")
    lab.api.manager = lambda method, path, body: (200, {"phase": "finished", "changes": [], "resumed": False})
    lab.api.on_tick = lambda: set_replicas(lab, 0, "rlctl-scale")
    lab.up(roles={"actor": {"replicas": 64}}, algorithm={"name": "impala", "lr": 0.002})
    assert lab.replicas("pong-actor-0") == 0


def test_a_ramp_of_actors_can_be_left(lab: Lab) -> None:
    spec = spec_of(roles={"actor": {"replicas": 64}})
    plan, rendered = lab.plan(spec)
    backend = lab.backend()
    backend.leave = lambda: True
    with pytest.raises(Left, match="10 of 64 actors of run pong are asked for"):
        list(backend.apply(plan, rendered, spec.model_dump(mode="json")))
    lab.up(roles={"actor": {"replicas": 64}})
    assert lab.replicas("pong-actor-0") == 64


def test_what_is_released_while_up_writes_comes_back_when_the_manager_goes_on(lab: Lab) -> None:
    lab.up()
    lab.settle()
    workloads = {
        key: thing["spec"]["replicas"] for key, thing in lab.api.objects.items()
        if key.kind in ("Deployment", "StatefulSet") and key.name != "pong-manager"
    }  # fmt: skip

    def manager(method: str, path: str, body: object) -> tuple[int, object]:
        """It was about to give the pods back, and has just done so."""
        for key in workloads:
            lab.api.edit(key, "rlctl-scale", lambda thing: thing["spec"].update(replicas=0), "scale")
        return 200, {"changes": [], "resumed": True}

    lab.api.manager = manager
    applied = lab.up(stop={"eval_return": 400})
    assert {key: lab.replicas(key.name, key.kind) for key in workloads} == workloads
    assert Applied("StatefulSet pong-learner", "changed", "replicas: 0 -> 1") in applied
    why = "live fields changed, and the run that was over goes on"
    assert Applied("StatefulSet pong-manager", "reloaded", why) in applied
    before = lab.api.requests.writes
    lab.up(stop={"eval_return": 400})
    assert lab.api.requests.writes == before


def test_the_manager_of_a_run_that_has_failed_hears_of_the_same_up_again(lab: Lab) -> None:
    lab.up()
    lab.settle()
    for role in ("learner", "modelpool"):
        lab.api.edit(
            Key("StatefulSet", f"pong-{role}"), "rlctl-scale", lambda thing: thing["spec"].update(replicas=0), "scale"
        )
    told: list[tuple[str, str]] = []

    def manager(method: str, path: str, body: object) -> tuple[int, object]:
        if path == "/status":
            return 200, {"phase": "failed"}
        told.append((method, path))
        return 200, {"changes": [], "resumed": True}

    lab.api.manager = manager
    applied = lab.up()
    assert told == [("POST", "/reload")]
    assert lab.replicas("pong-learner", "StatefulSet") == 1
    assert Applied("StatefulSet pong-manager", "reloaded", "the run that was over goes on") in applied
    before = lab.api.requests.writes
    lab.up()
    assert (lab.api.requests.writes, len(told)) == (before, 1)


def test_a_released_run_that_goes_on_has_all_its_actors_again(lab: Lab) -> None:
    lab.up(roles={"actor": {"replicas": 1500}})
    lab.settle()
    shards = ["pong-actor-0", "pong-actor-1"]
    for shard in shards:
        lab.api.edit(Key("Deployment", shard), "rlctl-scale", lambda thing: thing["spec"].update(replicas=0), "scale")
    lab.settle()
    lab.api.manager = lambda method, path, body: (200, {"changes": [], "resumed": True})
    lab.up(stop={"eval_return": 400}, roles={"actor": {"replicas": 1500}})
    assert [lab.replicas(shard) for shard in shards] == [1000, 500]


def test_replicas_are_never_reset_to_one(lab: Lab) -> None:
    """What kubernetes/kubernetes#25238 tells of: a field that is dropped falls back to its default."""
    lab.up()
    lab.settle()
    seen = set()

    def watch() -> None:
        for key, thing in lab.api.objects.items():
            if key.kind == "Deployment" and key.name.startswith("pong-actor"):
                seen.add(thing["spec"]["replicas"])

    for number in range(3):
        lab.up(algorithm={"name": "impala", "lr": 0.001 * (number + 1)})
        watch()
    assert seen == {4}


def test_shards_are_filled_in_order(lab: Lab) -> None:
    lab.up(roles={"actor": {"replicas": 2300}})
    assert [lab.replicas(f"pong-actor-{shard}") for shard in range(3)] == [1000, 1000, 300]
    lab.scale(actor=1200)
    assert [lab.replicas(f"pong-actor-{shard}") for shard in range(3)] == [1000, 200, 0]


def test_more_actors_than_there_are_objects_for_are_refused(lab: Lab) -> None:
    lab.up(roles={"actor": {"replicas": 1500, "max_replicas": 2000}})
    with pytest.raises(RlctlError, match="2500 replicas do not fit into 2 objects"):
        lab.scale(actor=2500)


def test_scale_again_writes_nothing(lab: Lab) -> None:
    lab.up()
    lab.scale(actor=9)
    lab.settle()
    lab.api.new_command()
    assert {each.what for each in lab.scale(actor=9)} == {"unchanged"}
    assert lab.api.requests.writes == 0


@pytest.mark.parametrize(
    ("counts", "said"),
    [({"replay": 2}, "has no role replay"), ({"manager": 2}, "exactly 1"), ({"actor": -1}, "0 replicas or more")],
)
def test_scale_refuses_what_cannot_be(lab: Lab, counts: dict[str, int], said: str) -> None:
    lab.up()
    with pytest.raises(Conflict, match=said):
        lab.scale(**counts)


def test_a_run_that_is_down_or_unknown_cannot_be_scaled(lab: Lab) -> None:
    with pytest.raises(Conflict, match="there is no run pong in namespace rl"):
        lab.scale(actor=3)
    lab.up()
    lab.down()
    with pytest.raises(Conflict, match="run pong is stopped"):
        lab.scale(actor=3)


A, B, C = (Key("Deployment", name) for name in "abc")


@pytest.mark.parametrize(
    ("now", "ready", "wanted", "step"),
    [
        ((0, 0), (0, 0), (4, 0), {A: 4}),  # fewer than ten: at once
        ((0, 0), (0, 0), (1000, 1000), {A: 10}),
        ((10, 0), (9, 0), (1000, 1000), {}),
        ((10, 0), (10, 0), (1000, 1000), {A: 1000, B: 1000}),
        ((10, 0), (10, 0), (1000, 5000), {A: 1000, B: 1010}),  # 2,000 beyond those that are ready
        ((1000, 1010), (1000, 1000), (1000, 5000), {B: 3000}),
        ((1000, 1010), (0, 300), (1000, 5000), {B: 1300}),
        ((1000, 1010), (0, 200), (1000, 5000), {}),  # too few to be worth a request
        ((1000, 4990), (1000, 3000), (1000, 5000), {B: 5000}),  # the last ten
        ((500, 0), (500, 0), (100, 0), {A: 100}),  # fewer never waits
    ],
)
def test_the_next_step(now: Any, ready: Any, wanted: Any, step: dict[Key, int]) -> None:
    found = ramp.next_step(*(dict(zip((A, B), numbers, strict=True)) for numbers in (now, ready, wanted)))
    assert found == step


def test_never_more_than_two_thousand_wait_and_the_first_ten_go_ahead(lab: Lab) -> None:
    waiting = []
    asked = []

    def look() -> None:
        shards = [
            thing
            for key, thing in lab.api.objects.items()
            if key.name.startswith("pong-actor-") and key.kind == "Deployment"
        ]
        wanted = sum(thing["spec"]["replicas"] for thing in shards)
        up = sum((thing.get("status") or {}).get("readyReplicas", 0) for thing in shards)
        asked.append(wanted)
        waiting.append(wanted - up)

    lab.api.step = 40  # of each Deployment and second
    lab.api.on_tick = look
    lab.up(roles={"actor": {"replicas": 10_000}})
    assert asked[0] == 10
    assert max(waiting) <= ramp.OUTSTANDING
    assert sum(lab.replicas(f"pong-actor-{shard}") for shard in range(10)) == 10_000


NEW_IMAGE = {"actor": "registry.example/actor@sha256:" + "cd" * 32}


def forty(lab: Lab) -> None:
    lab.up(roles={"actor": {"replicas": 40, "max_replicas": 1000}})
    lab.settle()


def test_actors_of_the_old_image_do_not_vouch_for_the_new_one(lab: Lab) -> None:
    forty(lab)
    lab.api.stuck.add("pong-actor-0")  # none of the new image ever becomes ready; the old ones stay
    with pytest.raises(TimedOut, match="0 of 400 actors of run pong are ready, 40 are asked for"):
        lab.up(roles={"actor": {"replicas": 400, "max_replicas": 1000}}, images=NEW_IMAGE)
    assert lab.replicas("pong-actor-0") == 40
    lab.api.stuck.clear()
    lab.up(roles={"actor": {"replicas": 400, "max_replicas": 1000}}, images=NEW_IMAGE)
    assert lab.replicas("pong-actor-0") == 400


def test_more_are_asked_for_as_soon_as_ten_of_the_new_image_are_ready(lab: Lab) -> None:
    forty(lab)
    seen: list[tuple[int, int]] = []  # asked for, ready of the new template

    def look() -> None:
        seen.append((lab.replicas("pong-actor-0"), rollout.new_ready(lab.of(*ACTORS))))

    lab.api.step = 4
    lab.api.on_tick = look
    lab.up(roles={"actor": {"replicas": 400, "max_replicas": 1000}}, images=NEW_IMAGE)
    assert {ready for asked, ready in seen if asked == 40} == {0, 4, 8}
    assert lab.replicas("pong-actor-0") == 400


def test_ready_actors_vouch_for_more_of_their_kind_at_once(lab: Lab) -> None:
    forty(lab)
    lab.api.stuck.add("pong-actor-0")
    lab.up(roles={"actor": {"replicas": 400, "max_replicas": 1000}})
    assert lab.replicas("pong-actor-0") == 400


@pytest.mark.parametrize(
    ("generation", "status", "ready"),
    [
        (1, {}, 0),
        (2, {"observedGeneration": 1, "replicas": 40, "updatedReplicas": 40, "readyReplicas": 40}, 0),  # not seen yet
        (2, {"observedGeneration": 2, "replicas": 44, "readyReplicas": 40}, 0),  # none made yet
        (2, {"observedGeneration": 2, "replicas": 44, "updatedReplicas": 14, "readyReplicas": 30}, 0),
        (2, {"observedGeneration": 2, "replicas": 44, "updatedReplicas": 24, "readyReplicas": 30}, 10),
        (2, {"observedGeneration": 2, "replicas": 40, "updatedReplicas": 40, "readyReplicas": 39}, 39),  # rolled out
        (3, {"observedGeneration": 3, "replicas": 400, "updatedReplicas": 400, "readyReplicas": 40}, 40),  # scaled
    ],
)
def test_only_replicas_of_the_present_template_count_as_ready(
    generation: int, status: dict[str, int], ready: int
) -> None:
    assert rollout.new_ready({"metadata": {"generation": generation}, "status": status}) == ready


def test_the_lock_is_not_held_while_we_wait(lab: Lab) -> None:
    held = []
    lab.api.step = 40
    lab.api.on_tick = lambda: held.append(Key("Lease", "pong-lock") in lab.api.objects)
    lab.up(roles={"actor": {"replicas": 5000}})
    assert held
    assert not any(held)


def test_first_actors_that_cannot_run_end_it(lab: Lab) -> None:
    lab.up(roles={"actor": {"replicas": 5}})
    lab.settle()
    lab.api.stuck.add("pong-actor-0")
    broken = Process("actor", 0, "failed", reason="image not found", permanent=True, next="rlctl image push")
    session = Session(
        lab.api, "pong", lambda path, body: {}, me=ALICE, clock=lab.api.clock, sleep=lab.api.sleep, now=lab.api.now,
        trouble=lambda state: [broken],
    )  # fmt: skip
    state: RunState = lab.record.state
    lab.api.report(ACTORS, {})
    with pytest.raises(WorkloadFailed, match="no more were asked for: image not found"):
        list(ramp.go_on(session, "pong", state, {ACTORS: 500}, "scale"))


def test_actors_that_do_not_become_ready_end_it_after_a_while(lab: Lab) -> None:
    lab.api.stuck.add("pong-actor-0")
    with pytest.raises(TimedOut, match="0 of 3000 actors of run pong are ready, 10 are asked for"):
        lab.up(roles={"actor": {"replicas": 3000}})
    assert lab.record.state.revision == 1
    lab.api.stuck.clear()
    lab.up(roles={"actor": {"replicas": 3000}})
    assert sum(lab.replicas(f"pong-actor-{shard}") for shard in range(3)) == 3000


def test_a_watch_that_expires_is_begun_again(lab: Lab) -> None:
    lab.api.step = 40
    lab.api.on_tick = lab.api.forget
    lab.up(roles={"actor": {"replicas": 3000}})
    assert sum(lab.replicas(f"pong-actor-{shard}") for shard in range(3)) == 3000


def test_another_number_wanted_meanwhile_ends_it(lab: Lab) -> None:
    lab.api.step = 5
    done = []

    def interfere() -> None:
        if lab.api.seconds > 3 and not done:
            done.append(True)
            before, lab.api.on_tick = lab.api.on_tick, lambda: None
            lab.scale(actor=20)
            lab.api.on_tick = before

    lab.api.on_tick = interfere
    with pytest.raises(Conflict, match="another command wants 20 actors of run pong") as error:
        lab.up(roles={"actor": {"replicas": 3000}})
    assert lab.replicas("pong-actor-0") == 20
    assert error.value.hint == "rlctl status pong shows them; the same command again asks for yours."


def test_restart_replaces_the_pods_of_a_role_and_survives_the_next_up(lab: Lab) -> None:
    lab.up()
    lab.settle()
    applied = list(lab.backend().restart("pong", "learner"))
    assert [(each.object, each.what) for each in applied] == [("StatefulSet pong-learner", "restarted")]
    notes = lab.of("StatefulSet", "pong-learner")["spec"]["template"]["metadata"]["annotations"]
    assert notes["rlctl.dev/restarted-at"].startswith("2026-01-02T")
    lab.settle()
    lab.api.new_command()
    lab.up()
    assert lab.api.requests.writes == 0
    lab.up(algorithm={"name": "impala", "lr": 0.001})
    assert lab.of("StatefulSet", "pong-learner")["spec"]["template"]["metadata"]["annotations"] == notes


def test_a_restart_that_another_field_manager_stands_in_the_way_of_names_another_way(lab: Lab) -> None:
    lab.up()
    note = {"rlctl.dev/restarted-at": "by another hand"}
    lab.api.edit(
        Key("StatefulSet", "pong-learner"), "x",
        lambda thing: thing["spec"]["template"]["metadata"].setdefault("annotations", {}).update(note),
    )  # fmt: skip
    with pytest.raises(Conflict) as error:
        list(lab.backend().restart("pong", "learner"))
    assert error.value.hint == "kubectl --context fake -n rl rollout restart statefulset pong-learner"


def test_actors_are_restarted_one_deployment_after_the_other(lab: Lab) -> None:
    lab.up(roles={"actor": {"replicas": 2500}})
    lab.settle()
    lab.api.step = 100
    seen = []

    def look() -> None:
        shards = [thing for key, thing in lab.api.objects.items() if key.kind == "Deployment" and "actor" in key.name]
        notes = [thing["spec"]["template"]["metadata"].get("annotations") or {} for thing in shards]
        seen.append(sum("rlctl.dev/restarted-at" in each for each in notes))

    lab.api.on_tick = look
    applied = list(lab.backend().restart("pong", "actor"))
    assert len(applied) == 3
    assert seen == sorted(seen)
    assert {1, 2} <= set(seen)


def test_restart_of_a_role_that_is_not_there_is_refused(lab: Lab) -> None:
    lab.up()
    with pytest.raises(Conflict, match="has no role replay"):
        list(lab.backend().restart("pong", "replay"))
