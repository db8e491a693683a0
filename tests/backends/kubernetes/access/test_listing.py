"""Which runs there are, and the processes of one, in how many requests."""

from __future__ import annotations

import json
import socket
from copy import deepcopy
from dataclasses import replace
from datetime import timedelta
from functools import cache
from itertools import product
from typing import Any

import pytest

from rlctl.backends.base import Process
from rlctl.backends.kubernetes.access import listing
from rlctl.backends.kubernetes.api.interface import ApiError, Object
from rlctl.backends.kubernetes.diagnose import explain
from rlctl.backends.kubernetes.run_state import record
from rlctl.errors import BackendUnreachable
from rlctl.spec import names
from tests.backends.kubernetes.fakes.reads import NOW, Reads, labelled, run_state, state_object

IMAGE = "registry.example.com/team/actor@sha256:" + "4b" * 32


def workload(kind: str, role: str, wanted: int, ready: int, *, name: str = "", shard: str = "") -> Object:
    more = {names.SHARD: shard} if shard else {}
    return {
        "kind": kind,
        "metadata": {
            "name": name or f"pong-{role}", "namespace": "team-a", "labels": labelled(role, **more),
            "creationTimestamp": "2026-11-21T04:00:00Z",
        },
        "spec": {"replicas": wanted, "template": {"metadata": {"labels": labelled(role, **more)}}},
        "status": {"replicas": wanted, "readyReplicas": ready, "updatedReplicas": wanted},
    }  # fmt: skip


def pod(role: str, name: str, *, ready: bool = True, waiting: str = "", phase: str = "", shard: str = "") -> Object:
    more = {names.SHARD: shard} if shard else {}
    state: dict[str, Any] = {"running": {"startedAt": "2026-11-21T04:00:05Z"}}
    if waiting:
        state = {"waiting": {"reason": waiting, "message": f"{IMAGE}: not found"}}
    return {
        "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "team-a", "labels": labelled(role, **more),
            "creationTimestamp": "2026-11-21T04:00:00Z",
        },
        "spec": {"nodeName": "n1", "containers": [{"name": role, "image": IMAGE}]},
        "status": {
            "phase": phase or ("Pending" if waiting else "Running"),
            "startTime": "2026-11-21T04:00:01Z",
            "conditions": [
                {"type": "PodScheduled", "status": "True"},
                {"type": "Ready", "status": "True" if ready else "False"},
            ],
            "containerStatuses": [{"name": role, "restartCount": 0, "ready": ready, "state": state, "lastState": {}}],
        },
    }  # fmt: skip


def core() -> list[Object]:
    """Manager and learner that are well."""
    return [
        workload("StatefulSet", "manager", 1, 1), pod("manager", "pong-manager-0"),
        workload("StatefulSet", "learner", 1, 1), pod("learner", "pong-learner-0"),
    ]  # fmt: skip


def actors(shards: int, unready: int, waiting: str = "ErrImagePull") -> list[Object]:
    """Shards of 1,000 actors each; the last `unready` pods of all have no image."""
    found: list[Object] = []
    for number in range(shards):
        bad = min(1000, max(0, unready - 1000 * (shards - 1 - number)))
        found += _shard(number, bad, waiting if bad else "")
    return found


@cache
def _shard(number: int, bad: int, waiting: str) -> tuple[Object, ...]:
    found = [workload("Deployment", "actor", 1000, 1000 - bad, name=f"pong-actor-{number}", shard=str(number))]
    for index in range(1000):
        ill = index >= 1000 - bad
        name = f"pong-actor-{number}-{index:04d}"
        found.append(pod("actor", name, ready=not ill, waiting=waiting if ill else "", shard=str(number)))
    return tuple(found)


def look(api: Reads, **replicas: int) -> list[Process]:
    return listing.processes(api, run_state(**replicas), now=lambda: NOW)


def brief(entries: list[Process]) -> list[tuple[str, str, int]]:
    return [(entry.role, entry.state, entry.count) for entry in entries]


def test_a_run_that_is_well_is_counted_without_reading_its_actors() -> None:
    api = Reads(*core(), *actors(10, 0))

    entries = look(api, manager=1, learner=1, actor=10_000)

    assert brief(entries) == [("manager", "running", 1), ("learner", "running", 1), ("actor", "running", 10_000)]
    assert api.requests.total == 3
    assert not [each for each in api.lists if each.startswith("Pod") and "actor" in each]


def test_actors_without_an_image_are_one_entry_with_their_number() -> None:
    api = Reads(*core(), *actors(1, 412))

    entries = look(api, manager=1, learner=1, actor=1000)

    assert brief(entries)[2:] == [("actor", "running", 588), ("actor", "failed", 412)]
    assert entries[-1].reason == f"412 of 1000 actors: image {IMAGE} does not exist in the registry"


@pytest.mark.parametrize(
    ("unready", "waiting"),
    [(0, ""), *product((3, 412, 10_000), ("ErrImagePull", "CrashLoopBackOff", "ContainerCreating"))],
)
def test_a_run_of_ten_thousand_actors_is_told_within_the_budget(unready: int, waiting: str) -> None:
    api = Reads(*core(), *actors(10, unready, waiting))

    entries = look(api, manager=1, learner=1, actor=10_000)

    assert api.requests.total <= listing.MOST_REQUESTS
    assert sum(count for role, _, count in brief(entries) if role == "actor") == 10_000
    running = sum(count for role, state, count in brief(entries) if (role, state) == ("actor", "running"))
    assert running == 10_000 - unready


def test_actors_that_crash_are_found_in_the_one_shard_that_lacks_them() -> None:
    api = Reads(*core(), *deepcopy(actors(3, 2, "CrashLoopBackOff")))
    for each in api.objects:
        if each["kind"] == "Pod" and each["status"]["containerStatuses"][0]["state"].get("waiting"):
            each["status"]["phase"] = "Running"

    entries = look(api, manager=1, learner=1, actor=3000)

    assert brief(entries)[2:] == [("actor", "running", 2998), ("actor", "backoff", 2)]
    assert any(f"{names.SHARD} in (2)" in each for each in api.lists)


def test_a_rollout_is_told_by_counting() -> None:
    api = Reads(*core(), *deepcopy(actors(2, 0)))
    for each in api.objects:
        if each["metadata"]["name"] == "pong-actor-1":
            each["status"]["updatedReplicas"] = 250

    entries = look(api, manager=1, learner=1, actor=2000)

    assert brief(entries)[2:] == [("actor", "running", 1250), ("actor", "starting", 750)]
    assert entries[-1].reason == "750 of 2000 actors: is being replaced"
    assert api.requests.total == 3


def test_old_actors_that_fail_while_they_are_replaced_cost_no_further_look() -> None:
    api = Reads(*core(), *deepcopy(actors(1, 9, "CrashLoopBackOff")))
    for each in api.objects:
        if each["kind"] == "Deployment":
            each["status"] |= {"updatedReplicas": 0, "conditions": [
                {"type": "Progressing", "message": 'Created new replica set "pong-actor-0-new"'},
            ]}  # fmt: skip
        elif "-actor-" in each["metadata"]["name"]:
            each["metadata"]["ownerReferences"] = [{"controller": True, "name": "pong-actor-0-old"}]

    entries = look(api, manager=1, learner=1, actor=1000)

    assert brief(entries)[2:] == [("actor", "starting", 1000)]
    assert not [each for each in api.lists if each.startswith("Event")]


def not_mounted(pod: str) -> Object:
    return {
        "kind": "Event", "metadata": {"name": f"{pod}.1"}, "involvedObject": {"kind": "Pod", "name": pod},
        "type": "Warning", "reason": "FailedMount", "lastTimestamp": "2026-11-21T04:09:00Z",
        "message": 'MountVolume.SetUp failed for volume "run" : configmap "c" not found',
    }  # fmt: skip


def test_what_happened_to_the_first_and_the_last_pod_stands_for_all() -> None:
    api = Reads(*core(), *actors(1, 9, "ContainerCreating"))
    api.objects += [not_mounted("pong-actor-0-0991"), not_mounted("pong-actor-0-0999")]

    entries = look(api, manager=1, learner=1, actor=1000)

    assert entries[-1].reason == "9 of 1000 actors: there is no ConfigMap c, which it mounts"


def test_what_happened_to_one_pod_only_is_not_said_of_all() -> None:
    api = Reads(*core(), *actors(1, 9, "ContainerCreating"))
    api.objects.append(not_mounted("pong-actor-0-0991"))

    entries = look(api, manager=1, learner=1, actor=1000)

    assert {(entry.count, entry.reason) for entry in entries if entry.state != "running"} == {
        (1, "there is no ConfigMap c, which it mounts"),
        (8, "8 of 1000 actors: has its node and is not started there"),
    }


def test_the_log_of_a_crash_is_read_when_kubernetes_kept_none() -> None:
    api = Reads(*core())
    learner = api.objects[-1]
    learner["status"]["conditions"][-1]["status"] = "False"
    learner["status"]["containerStatuses"][0] |= {
        "restartCount": 2, "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": {"exitCode": 1, "reason": "Error"}},
    }  # fmt: skip
    api.logs["pong-learner-0 previous"] = ["RuntimeError: CUDA error: out of memory"]

    entry = look(api, manager=1, learner=1)[-1]

    assert entry.reason == "exited 1: RuntimeError: CUDA error: out of memory"
    assert entry.first_cause_lines == ("RuntimeError: CUDA error: out of memory",)


def test_the_error_of_a_crash_is_found_after_text_without_a_line_end_of_which_kubernetes_kept_the_end() -> None:
    api = Reads(*core())
    learner = api.objects[-1]
    learner["status"]["conditions"][-1]["status"] = "False"
    said = json.dumps({"ts": "2026-11-21T04:08:00Z", "level": "ERROR", "msg": "EnvError: bad"})
    ended = {"exitCode": 1, "reason": "Error", "message": ("." * 2000 + said)[-2000:]}
    learner["status"]["containerStatuses"][0] |= {
        "restartCount": 2, "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": ended},
    }  # fmt: skip

    assert look(api, manager=1, learner=1)[-1].reason == "exited 1: EnvError: bad"


def test_a_claim_that_nobody_makes_is_the_reason_of_the_pods_that_wait_for_it() -> None:
    api = Reads(*core())
    learner = api.objects[-1]
    learner["spec"]["volumes"] = [{"name": "volume", "persistentVolumeClaim": {"claimName": "pong-volume"}}]
    learner["status"] = {
        "phase": "Pending",
        "conditions": [{
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
            "message": "0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found",
        }],
    }  # fmt: skip
    api.objects.append({
        "kind": "PersistentVolumeClaim", "metadata": {"name": "pong-volume"},
        "spec": {"storageClassName": "cfs"}, "status": {"phase": "Pending"},
    })  # fmt: skip
    api.objects.append({
        "kind": "Event", "metadata": {"name": "e"},
        "involvedObject": {"kind": "PersistentVolumeClaim", "name": "pong-volume"},
        "reason": "ProvisioningFailed", "message": 'storageclass.storage.k8s.io "cfs" not found',
    })  # fmt: skip

    entry = look(api, manager=1, learner=1)[-1]

    assert entry.reason == "claim pong-volume asks for the storage class cfs, which does not exist"
    assert entry.permanent


def test_events_that_may_not_be_read_only_explain_less() -> None:
    api = Reads(*core(), *actors(1, 2, "ContainerCreating"))
    api.refused.add("Event")

    entry = look(api, manager=1, learner=1, actor=1000)[-1]

    assert entry.reason == "2 of 1000 actors: has its node and is not started there"


def test_pods_that_may_not_be_read_are_an_error_that_says_so() -> None:
    api = Reads(*core())
    api.refused.add("Pod")

    with pytest.raises(ApiError, match="may not list Pod"):
        look(api, manager=1, learner=1)


def test_a_run_that_was_taken_down_is_told_without_a_request() -> None:
    api = Reads()

    entries = listing.processes(api, run_state("stopped", manager=1, actor=10_000))

    assert brief(entries) == [("manager", "stopped", 1), ("actor", "stopped", 10_000)]
    assert api.requests.total == 0


def test_a_finished_run_still_has_its_manager() -> None:
    released = workload("Deployment", "actor", 0, 0, name="pong-actor-0", shard="0")
    api = Reads(*core()[:2], workload("StatefulSet", "learner", 0, 0), released)

    state = replace(run_state("finished", manager=1, learner=1, actor=10), stays=True)
    entries = listing.processes(api, state, now=lambda: NOW)

    assert brief(entries) == [("manager", "running", 1), ("learner", "exited", 1), ("actor", "exited", 10)]


def killed_for_memory(name: str, role: str, ago_s: float) -> Object:
    """A pod that is well again."""
    found = pod(role, name)
    ended = (NOW - timedelta(seconds=ago_s)).isoformat()
    found["spec"]["containers"][0]["resources"] = {"limits": {"memory": "4Gi"}}
    found["status"]["containerStatuses"][0] |= {
        "restartCount": 1,
        "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": ended}},
    }
    return found


def test_a_restart_of_the_last_minutes_is_told_of_a_pod_that_is_well_again() -> None:
    names = [f"pong-actor-0-{index}" for index in range(3)]
    few = workload("Deployment", "actor", 3, 3, name="pong-actor-0", shard="0")
    pods = [killed_for_memory(name, "actor", ago_s) for name, ago_s in zip(names, (500, 240, 5000), strict=True)]

    *_, learner, entry = look(Reads(*core(), few, *pods), manager=1, learner=1, actor=3)

    assert learner.lately == ""
    assert (entry.state, entry.count, entry.reason) == ("running", 3, "")
    assert entry.lately == (
        "pong-actor-0-1 was restarted 4 min ago: actor was killed for memory: it needs more than its limit of 4Gi; "
        "1 more like it"
    )


@pytest.mark.parametrize(("ago_s", "told"), [(599, True), (601, False)])
def test_the_restart_of_a_learner_is_told_for_ten_minutes(ago_s: float, told: bool) -> None:
    api = Reads(*core()[:-1], killed_for_memory("pong-learner-0", "learner", ago_s))

    entry = look(api, manager=1, learner=1)[-1]

    assert entry.state == "running"
    assert entry.lately.startswith("pong-learner-0 was restarted 9 min ago: learner was killed for memory") == told


# runs


def test_runs_are_read_in_one_request_newest_first() -> None:
    first = run_state()
    second = replace(first, run="chess", created=first.created + timedelta(hours=1))
    others = {"kind": "ConfigMap", "metadata": {"name": "pong-actor-1f0c", "labels": labelled("actor")}, "data": {}}
    api = Reads(state_object(first), state_object(second), others)

    assert [state.run for state in listing.runs(api)] == ["chess", "pong"]
    assert api.requests.total == 1


def test_a_torn_record_is_told_and_left_out() -> None:
    torn = state_object(replace(run_state(), run="torn"))
    torn["data"]["state.json"] = "{"
    api = Reads(state_object(run_state()), torn)
    told: list[Exception] = []

    assert [state.run for state in listing.runs(api, told.append)] == ["pong"]
    assert "torn-state" in str(told[0])
    with pytest.raises(BackendUnreachable):
        listing.runs(api)


def answering(status: dict[str, Any]) -> Any:
    def serve(far: socket.socket, pod: str, port: int) -> None:
        far.recv(65536)
        body = json.dumps(status).encode()
        far.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    return serve


def test_a_run_that_trains_is_found_in_two_requests() -> None:
    api = Reads(state_object(run_state()), *core())

    found = listing.find(api, "pong")

    assert found is not None
    assert found.phase == "running"
    assert api.requests.total == 2


def test_a_run_whose_manager_has_released_the_learner_has_finished() -> None:
    api = Reads(state_object(run_state()), *core()[:2], workload("StatefulSet", "learner", 0, 0))
    api.serve = answering({"phase": "finished"})

    found = listing.find(api, "pong")

    assert found is not None
    assert (found.phase, found.stays) == ("finished", True)


FAILED = {
    "phase": "failed",
    "failure": {"process": "manager/0", "text": "nothing was learned", "at": "2026-11-21T19:00:00+00:00"},
}


def test_a_run_whose_manager_has_released_the_learner_in_vain_has_failed() -> None:
    released = workload("Deployment", "actor", 0, 0, name="pong-actor-0", shard="0")
    api = Reads(state_object(run_state()), *core()[:2], workload("StatefulSet", "learner", 0, 0), released)
    api.serve = answering(FAILED)

    found = listing.find(api, "pong")

    assert found is not None
    assert (found.phase, found.stays) == ("failed", True)
    assert found.failure is not None
    assert (found.failure.process, found.failure.text) == ("manager/0", "nothing was learned")
    reasons = {one.role: (one.state, one.reason) for one in listing.processes(api, found, now=lambda: NOW)}
    assert reasons["learner"] == ("exited", "the run has failed")
    assert reasons["manager"][0] == "running"


@pytest.mark.parametrize(
    ("final", "text"),
    [(FAILED, "nothing was learned"), ({"phase": "failed"}, None), ({"phase": "failed", "failure": {"at": 3}}, None)],
)
def test_a_run_that_had_failed_before_it_was_taken_down_says_why(final: dict[str, Any], text: str | None) -> None:
    kept = record.Record(run_state("failed"), (), "a@b", final=final)
    api = Reads({**record.document_of(kept), "kind": "ConfigMap"})

    found = listing.find(api, "pong")

    assert found is not None
    assert (found.phase, found.stays) == ("failed", False)
    assert (found.failure and found.failure.text) == text
    assert {one.reason for one in listing.processes(api, found)} == {"the run was taken down"}


def test_a_manager_that_does_not_answer_leaves_the_phase_as_recorded() -> None:
    api = Reads(state_object(run_state()), *core()[:2], workload("StatefulSet", "learner", 0, 0))

    found = listing.find(api, "pong")

    assert found is not None
    assert found.phase == "running"


def test_there_is_no_run_of_that_name() -> None:
    assert listing.find(Reads(), "pong") is None


def test_pods_beyond_the_bound_are_shared_out_by_what_was_seen() -> None:
    assert explain.shared(412, [150, 50]) == [309, 103]
    assert explain.shared(7, [1, 1, 1]) == [3, 2, 2]
    assert explain.shared(2, [3]) == [3]
