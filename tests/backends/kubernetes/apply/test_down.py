"""`down`: what goes, in which order, and what stays."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from rlctl.backends.base import LogQuery
from rlctl.backends.kubernetes.api.interface import Key
from rlctl.backends.kubernetes.apply.up import GONE_TIMEOUT_S
from rlctl.errors import Conflict, PartlyApplied
from tests.backends.kubernetes.fakes.lab import UID, Lab
from tests.backends.kubernetes.fakes.selectors import forbidden

STAYS = {
    "ConfigMap pong-state", "ConfigMap pong-revision-1", "PersistentVolumeClaim pong-volume", "Secret pong-keys-core",
    "Secret pong-keys-actor",
}  # fmt: skip


def test_what_was_learned_stays_and_everything_else_goes(lab: Lab) -> None:
    lab.up()
    lab.settle()
    lab.down()
    assert lab.there() == STAYS
    assert lab.record.state.phase == "stopped"
    assert {str(key) for key in lab.record.inventory} == STAYS - {"ConfigMap pong-state"}


def test_down_again_writes_nothing(lab: Lab) -> None:
    lab.up()
    lab.down()
    lab.api.new_command()
    assert lab.down() == []
    assert lab.api.requests.writes == 0


def test_an_absent_run_is_no_error(lab: Lab) -> None:
    assert lab.down() == []
    assert lab.down(volumes=True) == []
    assert lab.api.requests.writes == 0


def test_senders_go_before_receivers(lab: Lab) -> None:
    lab.up()
    lab.settle()
    removed = [each.object for each in lab.down()]
    workloads = ("Deployment pong-actor-0", "Deployment pong-evaluator", "StatefulSet pong-learner")
    order = [removed.index(name) for name in (*workloads, "StatefulSet pong-manager")]
    assert order == sorted(order)
    assert removed.index("StatefulSet pong-manager") < removed.index("Service pong-manager")


def test_a_wave_goes_when_the_one_before_has_gone(lab: Lab) -> None:
    lab.up(roles={"actor": {"replicas": 50}})
    lab.settle()
    lab.api.step = 10
    seen = []

    def look() -> None:
        actor = lab.api.objects.get(Key("Deployment", "pong-actor-0"))
        learner = lab.api.objects.get(Key("StatefulSet", "pong-learner"))
        seen.append((actor is not None, learner is not None and "deletionTimestamp" not in learner["metadata"]))

    lab.api.on_tick = look
    lab.down()
    assert all(learner_lives for actor_there, learner_lives in seen if actor_there)
    assert lab.there() == STAYS


def test_pods_that_do_not_end_are_waited_for_no_longer_than_asked(lab: Lab) -> None:
    lab.up()
    lab.settle()
    lab.api.stuck.add("pong-actor-0")
    began = lab.api.seconds
    lab.down(grace_s=20)
    assert lab.api.seconds - began < 60
    assert any("pods are still ending after 20 s" in note for note in lab.notes)
    assert lab.record.state.phase == "stopped"


def test_the_last_words_of_the_manager_are_kept(lab: Lab) -> None:
    lab.up()
    lab.settle()
    lab.api.manager = lambda method, path, body: (200, {"phase": "running", "updates": 7})
    lab.down()
    assert lab.backend().stored_status("pong") == {"phase": "running", "updates": 7}
    lab.up()
    assert lab.backend().stored_status("pong") is None


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ({"phase": "finished", "loss": float("nan"), "returns": [1.5, -math.inf]},
         {"phase": "finished", "loss": None, "returns": [1.5, None]}),
        ({"phase": "finished", "text": "a\ud800b"}, {"phase": "finished", "text": "a?b"}),
        ({"phase": "finished", "members": "x" * 2**20}, {"phase": "finished"}),
    ],
)  # fmt: skip
def test_last_words_that_no_record_can_hold_keep_nobody_from_going(lab: Lab, said: object, kept: object) -> None:
    lab.up()
    lab.settle()
    lab.api.manager = lambda method, path, body: (200, said)
    lab.down()
    assert lab.backend().stored_status("pong") == kept
    assert lab.there() == STAYS


def test_what_is_left_out_of_the_last_words_is_said(lab: Lab) -> None:
    lab.up()
    lab.settle()
    lab.api.manager = lambda method, path, body: (200, {"phase": "running", "members": "x" * 2**20})
    lab.down()
    assert any("members is too large to be kept" in note for note in lab.notes)


def test_an_answer_that_is_no_status_is_not_kept(lab: Lab) -> None:
    lab.up()
    lab.settle()
    lab.api.manager = lambda method, path, body: (200, ["what"])
    lab.down()
    assert lab.backend().stored_status("pong") is None


def test_a_run_that_has_finished_stays_finished(lab: Lab) -> None:
    lab.up()
    lab.settle()
    lab.api.manager = lambda method, path, body: (200, {"phase": "finished"})
    lab.down()
    assert lab.record.state.phase == "finished"


def test_a_run_that_has_failed_stays_failed_and_says_why(lab: Lab) -> None:
    lab.up()
    lab.settle()
    failure = {"process": "manager/0", "text": "nothing was learned", "at": "2026-11-21T19:00:00+00:00"}
    asked: list[str] = []

    def manager(method: str, path: str, body: object) -> tuple[int, object]:
        asked.append(f"{method} {path}")
        return 200, {"phase": "failed", "failure": failure}

    lab.api.manager = manager
    lab.down()
    assert asked == ["GET /status", "POST /reload"], "the next manager begins with all its time"
    found = lab.backend().find("pong")
    assert found is not None
    assert (found.phase, found.failure and found.failure.text) == ("failed", "nothing was learned")
    lab.up()
    assert lab.record.state.phase == "running"


def test_up_after_down_goes_on_with_the_same_run(lab: Lab) -> None:
    lab.up()
    lab.scale(actor=7)
    uid = lab.record.state.uid
    lab.down()
    lab.up()
    assert lab.record.state.uid == uid
    assert lab.record.state.revision == 1
    assert lab.record.state.phase == "running"
    assert lab.replicas("pong-actor-0") == 7


def test_up_waits_for_what_down_still_removes(lab: Lab) -> None:
    lab.up(roles={"actor": {"replicas": 50}})
    lab.settle()
    lab.api.step = 1
    lab.down(grace_s=0)
    assert "Deployment pong-actor-0" in lab.there()
    lab.up(roles={"actor": {"replicas": 50}})
    lab.api.step = 100
    lab.settle()
    assert "deletionTimestamp" not in lab.of("Deployment", "pong-actor-0")["metadata"]
    assert lab.replicas("pong-actor-0") == 50


def test_pods_that_go_slowly_are_waited_for_as_long_as_they_go(lab: Lab) -> None:
    lab.up(roles={"actor": {"replicas": 400}})
    lab.settle()
    lab.api.step = 1
    lab.down(grace_s=0)
    before = lab.api.clock()
    lab.up(roles={"actor": {"replicas": 400}})
    assert lab.api.clock() - before > 2 * GONE_TIMEOUT_S
    assert "deletionTimestamp" not in lab.of("Deployment", "pong-actor-0")["metadata"]


def test_what_is_never_removed_stops_an_up_in_words(lab: Lab) -> None:
    lab.up()
    lab.settle()
    lab.api.stuck.add("pong-actor-0")
    lab.down(grace_s=0)
    with pytest.raises(Conflict, match="Deployment pong-actor-0 is being removed, without progress for 120 s") as error:
        lab.up()
    assert error.value.hint.startswith("kubectl --context fake -n rl get deployment pong-actor-0 -o yaml")


def test_with_its_volumes_nothing_of_it_is_left(lab: Lab, home: Path) -> None:
    lab.up()
    lab.settle()
    lab.down(volumes=True)
    assert lab.there() == set()
    assert not (home / "rlctl" / "index" / "pong.json").exists()


def test_volumes_of_a_run_that_is_down_already(lab: Lab) -> None:
    lab.up()
    lab.down()
    lab.down(volumes=True)
    assert lab.there() == set()


def test_on_a_foreign_volume_only_the_folder_of_the_run_is_removed(lab: Lab) -> None:
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "shared"}, "spec": {}}
    lab.api.put(claim)
    lab.up(storage={"claim": "shared"})
    lab.settle()
    uid = lab.record.state.uid
    pods = []

    def look() -> None:
        pod = lab.api.objects.get(Key("Pod", "pong-clean"))
        if pod is not None and not pods:
            pods.append(pod)

    lab.api.on_tick = look
    lab.down(volumes=True)
    [pod] = pods
    [container] = pod["spec"]["containers"]
    assert container["command"][-1] == f"/rlctl/runs/pong-{uid[:8]}"
    assert [volume["persistentVolumeClaim"]["claimName"] for volume in pod["spec"]["volumes"]] == ["shared"]
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert lab.there() == {"PersistentVolumeClaim shared"}


def test_a_run_that_comes_back_after_a_killed_down_has_its_folder_removed_again(lab: Lab) -> None:
    lab.api.put({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "shared"}, "spec": {}})
    lab.up(storage={"claim": "shared"})
    folder = f"claim shared:/runs/pong-{UID[:8]}"

    def kill() -> None:
        if Key("Secret", "pong-keys-core") not in lab.api.objects:
            raise KeyboardInterrupt

    lab.api.on_write = kill
    with pytest.raises(KeyboardInterrupt):
        lab.down(volumes=True)
    lab.api.on_write = lambda: None
    lab.api.seconds += 60  # its lock is over
    assert folder not in [each.object for each in lab.down()]
    lab.up(storage={"claim": "shared"})
    assert folder in [each.object for each in lab.down(volumes=True)]
    assert lab.there() == {"PersistentVolumeClaim shared"}


def killed_first_up(lab: Lab, at: str) -> None:
    """One on a foreign volume that is killed when this object is there, before its revision is stored."""
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "shared"}, "spec": {}}
    lab.api.put(claim)

    def kill() -> None:
        if at in lab.there():
            raise KeyboardInterrupt

    lab.api.on_write = kill
    with pytest.raises(KeyboardInterrupt):
        lab.up(storage={"claim": "shared"})
    lab.api.on_write = lambda: None
    lab.api.seconds += 60  # its lock is over


@pytest.mark.parametrize(("at", "cleaned"), [("Deployment pong-actor-0", True), ("Service pong-manager", False)])
def test_the_folder_of_a_killed_first_up_is_cleaned_if_its_manager_has_been_there(
    lab: Lab, at: str, cleaned: bool
) -> None:  # fmt: skip
    killed_first_up(lab, at)
    assert (f"claim shared:/runs/pong-{UID[:8]}" in [each.object for each in lab.down(volumes=True)]) is cleaned
    assert lab.there() == {"PersistentVolumeClaim shared"}


def test_a_foreign_volume_that_cannot_be_reached_keeps_the_record_of_its_run(lab: Lab) -> None:
    killed_first_up(lab, "Deployment pong-actor-0")
    lab.down()
    with pytest.raises(PartlyApplied, match=r"claim shared:.* stays, and the record of run pong") as error:
        lab.down(volumes=True)
    assert error.value.hint.startswith("rlctl up SPEC makes it known, then rlctl down pong --volumes; or remove the")
    assert {"ConfigMap pong-state", "Secret pong-keys-core"} <= lab.there()
    lab.up(storage={"claim": "shared"})
    lab.down(volumes=True)
    assert lab.there() == {"PersistentVolumeClaim shared"}


def test_a_foreign_volume_of_an_unreadable_run_is_cleaned_by_the_revision_that_is_there(lab: Lab) -> None:
    lab.api.put({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "shared"}, "spec": {}})
    lab.up(storage={"claim": "shared"})
    state = lab.of("ConfigMap", "pong-state")["data"]
    state["state.json"] = state["state.json"][:-3]
    assert f"claim shared:/runs/pong-{UID[:8]}" in [each.object for each in lab.down(volumes=True)]
    assert lab.there() == {"PersistentVolumeClaim shared"}


def test_the_folder_of_an_unreadable_run_is_tried_again_after_a_cleaning_pod_that_failed(lab: Lab) -> None:
    lab.api.put({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "shared"}, "spec": {}})
    lab.up(storage={"claim": "shared"})
    state = lab.of("ConfigMap", "pong-state")["data"]
    state["state.json"] = state["state.json"][:-3]
    key = Key("Pod", "pong-clean")
    lab.api.on_tick = lambda: lab.api.report(key, {"phase": "Failed"}) if key in lab.api.objects else None
    with pytest.raises(PartlyApplied, match="has failed"):
        lab.down(volumes=True)
    lab.api.on_tick = lambda: None
    assert f"claim shared:/runs/pong-{UID[:8]}" in [each.object for each in lab.down(volumes=True)]
    assert lab.there() == {"PersistentVolumeClaim shared"}


def test_a_pod_of_the_cleaning_pods_name_that_is_not_ours_is_not_taken_for_it(lab: Lab) -> None:
    lab.api.put({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "shared"}, "spec": {}})
    lab.up(storage={"claim": "shared"})
    foreign = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pong-clean"}, "spec": {"containers": [{}]}}
    lab.api.put({**foreign, "status": {"phase": "Running"}})
    with pytest.raises(PartlyApplied, match=r"Pod pong-clean, which would remove .* is not of this run"):
        lab.down(volumes=True)
    assert "ConfigMap pong-state" in lab.there(), "the record stays, as the folder does"


def test_a_cleaning_pod_that_is_still_at_work_is_waited_for(lab: Lab) -> None:
    lab.api.put({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "shared"}, "spec": {}})
    lab.up(storage={"claim": "shared"})
    state = lab.of("ConfigMap", "pong-state")["data"]
    state["state.json"] = state["state.json"][:-3]
    key = Key("Pod", "pong-clean")

    def stop() -> None:
        if key in lab.api.objects:
            raise KeyboardInterrupt

    lab.api.on_tick = stop
    with pytest.raises(KeyboardInterrupt):
        lab.down(volumes=True)
    uid = lab.api.objects[key]["metadata"]["uid"]
    seen = set[str]()
    lab.api.on_tick = lambda: seen.update([lab.api.objects[key]["metadata"]["uid"]] if key in lab.api.objects else [])
    lab.down(volumes=True)
    assert seen <= {uid}, "no second pod removes beside it"
    assert lab.there() == {"PersistentVolumeClaim shared"}


@pytest.mark.parametrize(
    ("phase", "said"),
    [
        (None, "Pod pong-clean, which removes {folder} from the volume, was deleted by another hand"),
        ("Failed", "Pod pong-clean, which removes {folder} from the volume, has failed"),
    ],
)
def test_a_cleaning_pod_that_does_not_do_its_work_says_why(lab: Lab, phase: str | None, said: str) -> None:
    lab.api.put({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "shared"}, "spec": {}})
    lab.up(storage={"claim": "shared"})
    lab.down()
    key = Key("Pod", "pong-clean")

    def look() -> None:
        if key in lab.api.objects and phase is None:
            lab.api.remove(key)
        elif key in lab.api.objects:
            lab.api.report(key, {"phase": phase})

    lab.api.on_tick = look
    with pytest.raises(PartlyApplied) as error:
        lab.down(volumes=True)
    assert error.value.message == said.format(folder=f"/rlctl/runs/pong-{UID[:8]}")
    assert ("kubectl --context fake -n rl logs pong-clean" in error.value.hint) is (phase is not None)
    assert error.value.hint.endswith("the same command tries again.")


def test_a_right_that_is_missing_is_named_and_the_same_call_goes_on(lab: Lab) -> None:
    lab.up()
    lab.settle()
    lab.api.refuse = lambda method, key: (
        forbidden(key, "delete") if (method, key.kind) == ("DELETE", "Service") else None
    )
    with pytest.raises(PartlyApplied, match="may not delete Service") as error:
        lab.down()
    assert "An administrator grants it" in error.value.hint
    lab.api.refuse = lambda method, key: None
    lab.down()
    assert lab.there() == STAYS


def test_a_run_whose_record_cannot_be_read_goes_by_its_labels(lab: Lab) -> None:
    lab.up()
    lab.settle()
    state = lab.of("ConfigMap", "pong-state")
    state["data"]["state.json"] = "{"
    before = json.dumps(state["data"])
    lab.down()
    assert lab.there() == STAYS
    assert json.dumps(lab.of("ConfigMap", "pong-state")["data"]) == before
    lab.down(volumes=True)
    assert lab.there() == set()


def test_of_an_unreadable_run_nothing_goes_that_is_not_its(lab: Lab) -> None:
    lab.up()
    lab.settle()
    lab.of("ConfigMap", "pong-state")["data"]["state.json"] = "{"
    lab.api.edit(Key("Service", "pong-manager"), "x", lambda thing: thing["metadata"]["annotations"].clear())
    lab.down(volumes=True)
    assert lab.there() == {"Service pong-manager"}


def test_logs_of_a_run_whose_record_cannot_be_read_are_still_asked_for(lab: Lab) -> None:
    lab.up()
    lab.settle()
    lab.of("ConfigMap", "pong-state")["data"]["state.json"] = "{"
    asked = []

    def manager(method: str, path: str, body: object) -> tuple[int, object]:
        asked.append(path)
        return 200, {"records": []}

    lab.api.manager = manager
    list(lab.backend().logs("pong", LogQuery()))
    assert any(path.startswith("/logs") for path in asked)


def test_whoever_waits_is_told_for_what(lab: Lab) -> None:
    lab.up()
    lab.settle()
    lab.api.stuck.add("pong-actor-0")
    lab.down(grace_s=30)
    assert any(text.startswith("waiting for the pods of Deployment pong-actor-0 since 1") for text in lab.waited)
