"""The processes of a run out of its workloads and pods: the well ones counted, the others by cause."""

from __future__ import annotations

import copy
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from rlctl.backends.kubernetes.diagnose import explain
from tests.backends.kubernetes.fakes.failures import ACTOR, read


def many(name: str, count: int) -> list[dict[str, Any]]:
    whole, _ = read(name)
    pods = []
    for number in range(count):
        pod = copy.deepcopy(whole["pods"][0])
        pod["metadata"]["name"] = f"pong-actor-0-7d9f8c6b54-{number:05d}"
        pods.append(pod)
    return pods


def shard(wanted: int, existing: int, ready: int, *, updated: int | None = None, seen: int = 2) -> dict[str, Any]:
    whole, _ = read("quota")
    found: dict[str, Any] = whole["workloads"][0]
    found["spec"]["replicas"] = wanted
    found["status"] = {
        "observedGeneration": seen, "replicas": existing, "readyReplicas": ready,
        "updatedReplicas": existing if updated is None else updated,
        "conditions": [{
            "type": "Progressing", "status": "True", "reason": "ReplicaSetUpdated",
            "message": 'ReplicaSet "pong-actor-0-7d9f8c6b54" is progressing.',
        }],
    }  # fmt: skip
    return found


def test_many_pods_with_one_cause_are_one_sentence_with_their_number() -> None:
    _, related = read("image_not_found")
    groups = explain.groups(many("image_not_found", 412), related)

    entries = explain.elastic("actor", 1000, [shard(1000, 1000, 588)], groups, related)

    assert [(entry.state, entry.count, entry.index) for entry in entries] == [
        ("running", 588, 0),
        ("failed", 412, 588),
    ]
    assert entries[1].reason == f"412 of 1000 actors: image {ACTOR} does not exist in the registry"
    assert entries[1].permanent


def test_crashes_that_differ_in_a_seed_are_one_cause() -> None:
    _, related = read("crash")
    pods = many("crash", 3)
    for number, pod in enumerate(pods):
        ended = pod["status"]["containerStatuses"][0]["lastState"]["terminated"]
        ended["message"] = ended["message"].replace("seed 41", f"seed {number}")

    assert [len(group.pods) for group in explain.groups(pods, related)] == [3]


@pytest.mark.parametrize(
    ("name", "lacks"), [("unschedulable_gpu", "node"), ("readiness_failing", "readiness"), ("out_of_memory", "")]
)
def test_what_a_pod_lacks_says_whether_others_wait_for_it(name: str, lacks: str) -> None:
    _, related = read(name)

    groups = explain.groups(many(name, 2), related)

    assert [entry.lacks for entry in explain.elastic("actor", 2, [shard(2, 2, 0)], groups, related)] == [lacks]


def test_the_figures_come_from_the_workload_when_only_some_pods_were_read() -> None:
    _, related = read("image_not_found")
    pods = [*many("image_not_found", 150), *many("out_of_memory", 50)]

    entries = explain.elastic("actor", 1000, [shard(1000, 1000, 588)], explain.groups(pods, related), related)

    assert [entry.count for entry in entries] == [588, 309, 103]


def test_pods_that_were_evicted_are_told_of_beside_those_that_took_their_places() -> None:
    _, related = read("evicted_memory")
    groups = explain.groups(many("evicted_memory", 3), related)

    entries = explain.elastic("actor", 10, [shard(10, 10, 10)], groups, related)

    assert [(entry.state, entry.count) for entry in entries] == [("running", 10), ("exited", 3)]
    assert entries[1].reason == "3 of 10 actors: was evicted: its node ran short of memory"


def test_pods_that_were_evicted_long_ago_are_not_told_of() -> None:
    _, related = read("evicted_memory")
    later = replace(related, now=related.now + timedelta(hours=2))

    assert explain.groups(many("evicted_memory", 3), later) == []


def test_pods_that_a_quota_forbids_are_explained_by_their_owner() -> None:
    whole, related = read("quota_of_replicaset_event")

    entries = explain.elastic("actor", 1000, whole["workloads"], [], related)

    assert [(entry.state, entry.count) for entry in entries] == [("running", 12), ("backoff", 988)]
    assert entries[1].reason == ("988 of 1000 actors: quota team-quota is used up: pods 12 used + 1 for one pod > 12")


def test_a_replica_of_a_stateful_role_has_the_index_of_its_name() -> None:
    whole, related = read("unschedulable_gpu")
    second = copy.deepcopy(whole["pods"][0])
    second["metadata"]["name"] = "pong-learner-1"

    entries = explain.stateful("learner", 2, {"kind": "StatefulSet"}, [second, whole["pods"][0]], related)

    assert [(entry.role, entry.index, entry.name) for entry in entries] == [
        ("learner", 0, "pong-learner-0"),
        ("learner", 1, "pong-learner-1"),
    ]


def test_replicas_that_somebody_else_took_away_are_theirs() -> None:
    _, related = read("quota")
    workload = shard(wanted=3, existing=3, ready=3)
    workload["metadata"]["managedFields"] = [
        {"manager": "kubectl", "operation": "Update", "subresource": "scale", "fieldsType": "FieldsV1",
         "fieldsV1": {"f:spec": {"f:replicas": {}}}},
    ]  # fmt: skip

    entries = explain.elastic("actor", 10, [workload], [], related)

    assert entries[1].state == "stopped"
    assert entries[1].reason == "7 of 10 actors: kubectl has scaled it to 3"
    assert entries[1].next == "rlctl scale actor=10  (or rlctl scale actor=3, to agree)"


def test_replicas_that_are_asked_for_by_and_by_are_on_their_way() -> None:
    _, related = read("quota")

    entries = explain.elastic("actor", 1000, [shard(wanted=10, existing=10, ready=10)], [], related)

    assert [(entry.state, entry.count) for entry in entries] == [("running", 10), ("starting", 990)]


def test_a_workload_that_is_gone_is_made_again_by_up() -> None:
    _, related = read("crash")

    assert explain.stateful("manager", 1, None, [], related)[0].next == "rlctl up SPEC  (makes it again)"


def test_a_replica_that_is_well_again_tells_why_its_life_before_ended() -> None:
    whole, related = read("crash")
    pod = whole["pods"][0]
    pod["metadata"]["name"] = "pong-learner-0"
    pod["status"]["containerStatuses"][0]["state"] = {"running": {"startedAt": "2026-11-21T03:00:00Z"}}
    for each in pod["status"]["conditions"]:
        each["status"] = "True"

    entry = explain.stateful("learner", 1, {"kind": "StatefulSet"}, [pod], related)[0]

    assert (entry.state, entry.restarts) == ("running", 5)
    assert entry.started == datetime.fromisoformat("2026-11-21T03:00:00Z")
    assert "step returned NaN reward" in entry.evidence
    assert len(entry.first_cause_lines) == 5


# rollouts


@pytest.mark.parametrize(
    ("existing", "ready", "updated", "told"),
    [
        (10, 10, 0, [("starting", 10)]),  # nothing is updated yet
        (11, 8, 4, [("running", 1), ("starting", 7), ("starting", 3)]),  # 7 old; new ones that come up
        (10, 10, 10, [("running", 10)]),  # done
        (11, 11, 10, [("running", 10), ("starting", 1)]),  # all new ones are ready, an old one ends
    ],
)
def test_ready_replicas_that_are_not_updated_yet_do_not_run_what_was_asked_for(
    existing: int, ready: int, updated: int, told: list[tuple[str, int]]
) -> None:
    _, related = read("quota")
    related = replace(related, events={})
    workload = shard(10, existing, ready, updated=updated)

    entries = explain.elastic("actor", 10, [workload], [], related)

    assert [(entry.state, entry.count) for entry in entries] == told
    reasons = [entry.reason for entry in entries if entry.state == "starting"]
    assert not reasons or reasons[0].endswith("is being replaced")


def test_no_replica_counts_while_the_controller_has_not_seen_the_change() -> None:
    _, related = read("quota")
    related = replace(related, events={})

    entries = explain.elastic("actor", 20, [shard(10, 10, 10, seen=1), shard(10, 10, 10)], [], related)

    assert [(entry.state, entry.count) for entry in entries] == [("running", 10), ("starting", 10)]
    assert entries[1].reason == (
        "10 of 20 actors: is being replaced, or kept: its controller has not looked at the last change yet"
    )


def test_what_is_wrong_with_a_replica_that_is_being_replaced_no_longer_counts() -> None:
    _, related = read("image_not_found")
    pods = many("image_not_found", 4)
    for pod in pods[:3]:
        pod["metadata"]["ownerReferences"][0]["name"] = "pong-actor-0-5c4d7b8f99"
    workload = shard(4, 4, 0, updated=1)

    entries = explain.elastic("actor", 4, [workload], explain.groups(pods, related, [workload]), related)

    assert [(entry.state, entry.count, entry.permanent) for entry in entries] == [
        ("starting", 3, False),
        ("failed", 1, True),
    ]
    assert entries[0].reason == "3 of 4 actors: is being replaced"


def test_a_replica_whose_successor_is_refused_says_why() -> None:
    _, related = read("quota")
    workload = shard(3, 3, 3, updated=0)
    said = 'pods "pong-actor-0-x" is forbidden: exceeded quota: team, requested: pods=1, used: pods=3, limited: pods=3'
    workload["status"]["conditions"].append(
        {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": said}
    )

    (entry,) = explain.elastic("actor", 3, [workload], [], related)

    assert (entry.state, entry.count) == ("backoff", 3)
    assert entry.reason == (
        "3 of 3 actors: is being replaced, but its successor cannot be made: "
        "quota team is used up: pods 3 used + 1 for one pod > 3"
    )


def ready_learner(made_from: str) -> dict[str, Any]:
    whole, _ = read("crash")
    pod: dict[str, Any] = whole["pods"][0]
    pod["metadata"] |= {"name": "pong-learner-0", "labels": {"controller-revision-hash": made_from}}
    for each in pod["status"]["conditions"]:
        each["status"] = "True"
    return pod


@pytest.mark.parametrize(
    ("made_from", "seen", "state"),
    [("pong-learner-1", 2, "starting"), ("pong-learner-2", 2, "running"), ("pong-learner-2", 1, "starting")],
)
def test_a_pod_of_a_stateful_role_runs_once_it_is_made_from_the_newest_description(
    made_from: str, seen: int, state: str
) -> None:
    _, related = read("crash")
    status = {"observedGeneration": seen, "updateRevision": "pong-learner-2", "readyReplicas": 1, "replicas": 1}
    workload = {"kind": "StatefulSet", "metadata": {"name": "pong-learner", "generation": 2}, "status": status}

    (entry,) = explain.stateful("learner", 1, workload, [ready_learner(made_from)], related)

    assert (entry.state, entry.name) == (state, "pong-learner-0")
    assert entry.reason.startswith("is being replaced") == (state == "starting")


def test_an_old_pod_of_a_stateful_role_that_cannot_run_is_no_reason_to_give_up() -> None:
    whole, related = read("unschedulable_gpu")
    pod = whole["pods"][0]
    pod["metadata"]["labels"]["controller-revision-hash"] = "pong-learner-1"
    workload = {"kind": "StatefulSet", "metadata": {}, "status": {"updateRevision": "pong-learner-2"}}

    (entry,) = explain.stateful("learner", 1, workload, [pod], related)

    assert (entry.state, entry.reason, entry.permanent) == ("starting", "is being replaced", False)


def test_an_old_pod_on_its_way_out_is_told_as_such() -> None:
    _, related = read("crash")
    pod = ready_learner("pong-learner-1")
    pod["metadata"] |= {"deletionTimestamp": related.now.isoformat(), "deletionGracePeriodSeconds": 30}
    workload = {"kind": "StatefulSet", "metadata": {}, "status": {"updateRevision": "pong-learner-2"}}

    assert explain.stateful("learner", 1, workload, [pod], related)[0].state == "stopping"
