"""Failures as the API server tells them, in words as a person would: one fixture for each."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any, NamedTuple

import pytest

from rlctl.backends.kubernetes.diagnose import explain
from rlctl.backends.kubernetes.diagnose.causes.base import Cause
from tests.backends.kubernetes.fakes.failures import ACTOR, FIXTURES, HOST, LOCAL, read


class Told(NamedTuple):
    """Sentence that a fixture leads to."""

    kind: str
    state: str
    text: str
    permanent: bool = False


def wrong(kind: str, text: str) -> Told:
    """It stays so."""
    return Told(kind, "failed", text, True)


def tried(kind: str, text: str) -> Told:
    """The cluster goes on trying."""
    return Told(kind, "backoff", text)


def coming(kind: str, text: str) -> Told:
    """Nothing is wrong yet."""
    return Told(kind, "starting", text)


TOLD = {
    # images
    "image_not_found": wrong("image-not-found", f"image {ACTOR} does not exist in the registry"),
    "image_back_off": wrong("image-not-found", f"image {ACTOR} does not exist in the registry"),
    "image_not_mirrored": wrong(
        "image-not-found", f"image {LOCAL} does not exist in the registry that the nodes use for 127.0.0.1:5000"
    ),
    "image_mirror_down": tried(
        "image-unreachable", "the nodes cannot reach the registry 127.0.0.1:5000; the cluster goes on trying"
    ),
    "image_denied": wrong("image-denied", f"the registry {HOST} does not let the cluster pull image {ACTOR}"),
    "image_denied_or_missing": wrong(
        "image-denied", f"image {ACTOR} does not exist, or the registry {HOST} wants a login"
    ),
    "image_rate_limited": tried(
        "image-rate-limited", f"the registry {HOST} limits how often images are pulled; the cluster goes on trying"
    ),
    "image_tls": wrong("image-tls", f"the nodes do not trust the registry {HOST} (TLS)"),
    "image_plain_http": wrong("image-tls", f"the nodes do not trust the registry {HOST} (TLS)"),
    "image_dns": tried("image-dns", f"the nodes cannot look up the registry {HOST} (DNS)"),
    "image_dns_unreachable": tried("image-dns", f"the nodes cannot look up the registry {HOST} (DNS)"),
    "image_no_space": tried("image-no-space", f"the node has no room left on its disk for image {ACTOR}"),
    "image_invalid_name": wrong("image-invalid", "'Registry.example.com/Team/Actor@sha256:12' is no image name"),
    "image_never_pulled": wrong(
        "image-never-pulled", f"image {ACTOR} is not on the node, and imagePullPolicy Never forbids to fetch it"
    ),
    "image_platform": wrong("image-platform", f"image {ACTOR} does not exist for the processor of this node"),
    "image_unreachable": tried(
        "image-unreachable", f"the nodes cannot reach the registry {HOST}; the cluster goes on trying"
    ),
    "image_unknown": tried("image", f"image {ACTOR} cannot be pulled"),
    "pulling": coming("pulling", f"its node fetches image {ACTOR}"),
    # nodes that do not take it
    "unschedulable_cpu": tried("unschedulable-cpu", "no node fits: 3 of 3 have too little cpu left (it asks for 4)"),
    "unschedulable_gpu": tried(
        "unschedulable-nvidia.com/gpu",
        "no node fits: 1 of 3 keep it off with the taint node-role.kubernetes.io/control-plane; "
        "2 of 3 have too little nvidia.com/gpu left (it asks for 8)",
    ),
    "unschedulable_taint": tried(
        "unschedulable-taint", "no node fits: 3 of 3 keep it off with the taint dedicated: simulators"
    ),
    "unschedulable_affinity": tried(
        "unschedulable-affinity", "no node fits: 3 of 3 are not what its node selector asks for (pool=spot)"
    ),
    "unschedulable_volume_zone": tried(
        "unschedulable-volume-zone",
        "no node fits: 1 of 3 have too little memory left (it asks for 64Gi); "
        "2 of 3 are in another zone than its volume",
    ),
    "unschedulable_node_lost": tried("unschedulable-node", "no node fits: 2 of 2 do not answer"),
    "unschedulable_new": coming(
        "unschedulable-cpu", "waits for a node: 3 of 3 have too little cpu left (it asks for 4)"
    ),
    "unschedulable_node_added": coming("scale-up", "a node is being added for it"),
    "unschedulable_no_node_helps": tried(
        "unschedulable-nvidia.com/gpu",
        "no node fits: 3 of 3 have too little nvidia.com/gpu left (it asks for 8); "
        "and no node that the autoscaler could add would fit",
    ),
    "gang_kueue": coming("gang-waiting", "waits in queue gpu-queue of Kueue until the whole group is admitted"),
    "gang_volcano": tried("gang-waiting", "waits until the whole group fits on the nodes (gang scheduling)"),
    # volumes
    "claim_missing": wrong("claim-missing", "there is no PersistentVolumeClaim team-volume"),
    "class_missing": wrong(
        "class-missing", "claim pong-volume asks for the storage class cfs-turbo, which does not exist"
    ),
    "class_default_missing": wrong(
        "class-missing", "claim pong-volume names no storage class, and the cluster has no default one"
    ),
    "class_not_shared": wrong(
        "class-not-shared",
        "storage class gp3 cannot share a volume between nodes (ReadWriteMany), and a run needs that",
    ),
    "claim_pending": tried(
        "claim-pending", "no provisioner makes the volume of claim pong-volume (class shared, ReadWriteMany)"
    ),
    "mount_config_missing": wrong(
        "mount-object-missing", "there is no ConfigMap pong-actor-1f0c22aa91bd, which it mounts"
    ),
    "mount_key_missing": wrong("mount-key-missing", "the Secret of its volume keys has no key server.pub"),
    "volume_held": tried(
        "volume-held",
        "its volume is attached to another node: the storage class does not share volumes between nodes",
    ),
    "volume_unreachable": tried("volume-unreachable", "its node cannot reach the file server of the volume"),
    "mount_not_synced": coming("creating", "is being made"),
    "network": tried("sandbox", "its node cannot give it a network"),
    # containers
    "crash": wrong("crash", "exited 1: actor ends: EnvError: step returned NaN reward (pong, seed 41, step 20184)"),
    "crash_first": coming(
        "crash", "exited 1: actor ends: EnvError: step returned NaN reward (pong, seed 41, step 20184)"
    ),
    "crash_user_fault": wrong(
        "crash", "exited 3: roles.actor.envs: 32 environments need 12 GiB, the process may use 6 GiB"
    ),
    "crash_without_words": tried("crash", "exited 1: ModuleNotFoundError: No module named 'my_project'"),
    "out_of_memory": tried("oom", "was killed for memory: it needs more than its limit of 6Gi"),
    "segmentation_fault": tried(
        "signal-11",
        "was ended by signal 11 (SIGSEGV: a fault in native code): Fatal Python error: Segmentation fault",
    ),
    "terminated": tried("signal-15", "was ended by signal 15 (SIGTERM: it was told to end)"),
    "liveness_kill": tried("probe-killed", "was killed: its liveness probe is not answered in time"),
    "exited_by_itself": wrong("ends", "ends by itself in good order, again and again"),
    "config_key_missing": wrong("config-key-missing", "the Secret pong-keys-actor has no key server.pub"),
    "config_object_missing": wrong("config-object-missing", "there is no Secret pong-keys-actor, which it reads"),
    "config_root": wrong(
        "config-root", "its image runs as root, or names its user by a word, and the pod must not run as root"
    ),
    "command_missing": wrong("start-command", "the command python is not in its image"),
    "arguments_too_long": wrong("start-too-long", "its arguments and environment are larger than the kernel takes"),
    "arguments_too_long_for_exec": wrong(
        "start-too-long", "its arguments and environment are larger than the kernel takes"
    ),
    "wrong_processor": wrong("image-platform", "its image is for another processor"),
    "liveness_ended": tried("probe-killed", "was killed: its liveness probe is answered with 503"),
    "ended_in_good_order": coming("ends", "has ended in good order, and is started again"),
    "readiness_failing": tried("probe", "runs, but its readiness probe is answered with 503"),
    "startup_refused": coming("probe", "runs, but nothing listens where its startup probe asks"),
    "not_ready_yet": coming("not-ready", "runs, and is not ready yet"),
    # nodes that are left
    "evicted_memory": Told("evicted-memory", "exited", "was evicted: its node ran short of memory"),
    "evicted_disk_limit": Told(
        "evicted-disk-limit", "exited", "was evicted: it wrote more to its own disk than its limit of 2Gi"
    ),
    "preempted": Told("preempted", "exited", "made room for pods of a higher priority"),
    "node_shutdown": Told("node-shutdown", "exited", "its node n1 was shut down"),
    "node_not_ready": tried("node-lost", "its node n1 does not answer"),
    "stuck_on_lost_node": tried(
        "node-lost", "should have ended 3 min ago: its node n1 does not answer, or cannot stop it"
    ),
    # pods that were never made
    "quota": tried("quota", "quota team-quota is used up: requests.cpu 45 used + 4 for one pod > 48"),
    "quota_of_replicaset_event": tried("quota", "quota team-quota is used up: pods 12 used + 1 for one pod > 12"),
    "quota_too_small": wrong(
        "quota",
        "one pod asks for more than all of quota gpu: requests.nvidia.com/gpu 0 used + 8 for one pod > 4",
    ),
    "quota_unstated": wrong("quota-unstated", "quota team-quota demands that every pod states limits.cpu"),
    "pod_security": wrong(
        "pod-security",
        "the namespace's Pod Security level restricted:latest forbids these pods: "
        "allowPrivilegeEscalation != false, hostNetwork, runAsNonRoot != true",
    ),
    "webhook_denied": wrong(
        "webhook-denied",
        "the cluster's policy validate.policy.example.com forbids these pods: "
        "images must come from registry.corp.example",
    ),
    "webhook_timeout": tried(
        "webhook-silent",
        "the cluster's admission webhook inject.mesh.example.com does not answer in time; the cluster goes on trying",
    ),
    "account_missing": wrong("account-missing", "there is no ServiceAccount pong-manager"),
    "limit_range": wrong(
        "limit-range",
        "the namespace's limits forbid these pods: maximum cpu usage per Container is 2, but limit is 4, "
        "maximum memory usage per Container is 4Gi, but limit is 6Gi",
    ),
    "priority_missing": wrong("priority-missing", "there is no PriorityClass rlctl-actor"),
    "progress_deadline": tried("progress-deadline", "no pod has become ready for 600 s"),
}


def cause_of(name: str) -> Cause:
    whole, related = read(name)
    found = (
        explain.of_pod(whole["pods"][0], related)
        if "pods" in whole
        else explain.of_workload(whole["workloads"][0], related)
    )
    assert found is not None
    return found


@pytest.mark.parametrize("name", TOLD)
def test_a_failure_is_explained_in_plain_words(name: str) -> None:
    found = cause_of(name)

    assert Told(found.kind, found.state, found.text, found.permanent) == TOLD[name]


def test_every_fixture_is_explained() -> None:
    assert {path.stem for path in FIXTURES.glob("*.json")} == set(TOLD)


@pytest.mark.parametrize("name", [name for name, told in TOLD.items() if told.state != "starting"])
def test_what_is_wrong_comes_with_what_the_cluster_said_and_a_command(name: str) -> None:
    found = cause_of(name)

    assert found.evidence
    assert found.next


@pytest.mark.parametrize("name", TOLD)
def test_a_text_names_no_single_pod_so_that_many_can_share_it(name: str) -> None:
    whole, _ = read(name)
    names = [pod["metadata"]["name"] for pod in whole.get("pods", ())]

    assert not [pod for pod in names if pod in cause_of(name).text]


@pytest.mark.parametrize("name", [name for name, told in TOLD.items() if told.permanent])
def test_what_is_permanent_is_known_ten_seconds_after_the_pod_was_made(name: str) -> None:
    whole, related = read(name)
    made = (related.now - timedelta(seconds=10)).isoformat()
    for thing in [*whole.get("pods", ()), *whole.get("workloads", ())]:
        thing["metadata"]["creationTimestamp"] = made
    pods, workloads = whole.get("pods", ()), whole.get("workloads", ())
    found = [explain.of_pod(pod, related) for pod in pods] + [explain.of_workload(each, related) for each in workloads]

    assert [cause is not None and cause.permanent for cause in found] == [True]


@pytest.mark.parametrize("name", ["claim_missing", "config_object_missing", "mount_config_missing"])
def test_what_is_written_a_moment_after_the_pod_is_no_failure_yet(name: str) -> None:
    whole, related = read(name)
    whole["pods"][0]["metadata"]["creationTimestamp"] = (related.now - timedelta(seconds=1)).isoformat()

    found = explain.of_pod(whole["pods"][0], related)

    assert found is not None
    assert (found.state, found.permanent) == ("starting", False)


def test_a_crash_shows_the_last_five_lines_of_the_life_before() -> None:
    lines = cause_of("crash").lines

    assert len(lines) == 5
    assert lines[0] == "04:08:43 ERROR actor ends"
    assert lines[-1].endswith("EnvError: step returned NaN reward (pong, seed 41, step 20184)")


def test_a_line_that_kubernetes_cut_at_its_beginning_is_left_out() -> None:
    whole, related = read("crash_without_words")
    ended = whole["pods"][0]["status"]["containerStatuses"][0]["lastState"]["terminated"]
    ended["message"] = "x" * 2040 + "\nValueError: no"

    found = explain.of_pod(whole["pods"][0], replace(related, logs={}))

    assert found is not None
    assert found.lines == ("ValueError: no",)


def test_the_registry_is_not_judged_by_words_in_the_name_of_the_image() -> None:
    whole, related = read("image_unreachable")
    text = json.dumps(whole).replace("team/rlctl-actor", "denied/not-found-404")

    found = explain.of_pod(json.loads(text)["pods"][0], related)

    assert found is not None
    assert found.kind == "image-unreachable"


def test_a_registry_by_ipv6_is_told_though_a_spec_cannot_name_it() -> None:
    whole, related = read("image_unreachable")
    text = json.dumps(whole).replace(HOST, "[fd00::1]:5000").replace("team/rlctl-actor", "denied/not-found-404")

    found = explain.of_pod(json.loads(text)["pods"][0], related)

    assert found is not None
    assert found.text == "the nodes cannot reach the registry [fd00::1]:5000; the cluster goes on trying"


def test_evidence_cannot_act_on_a_terminal() -> None:
    whole, related = read("image_unknown")
    waiting = whole["pods"][0]["status"]["containerStatuses"][0]["state"]["waiting"]
    waiting["message"] = "\x1b[2Jgone\x07\nnext" + "a" * 5000

    found = explain.of_pod(whole["pods"][0], related)

    assert found is not None
    assert found.evidence.startswith("ErrImagePull:  [2Jgone next")
    assert len(found.evidence) <= 600


@pytest.mark.parametrize(
    "pod",
    [
        {},
        {"metadata": {}, "spec": None, "status": None},
        {"status": {"phase": "Pending", "containerStatuses": [{}]}},
        {"status": {"containerStatuses": [{"name": "x", "state": None, "lastState": {"terminated": {}}}]}},
        {"status": {"conditions": [{"type": "PodScheduled", "status": "False"}]}},
        {"metadata": {"deletionTimestamp": "not a time"}},
    ],
)
def test_an_object_that_lacks_everything_stops_nobody(pod: dict[str, Any]) -> None:
    _, related = read("crash")

    assert explain.of_pod(pod, related) is not None


def test_a_pod_that_is_ready_has_no_cause() -> None:
    whole, related = read("not_ready_yet")
    pod = whole["pods"][0]
    pod["status"]["conditions"].append({"type": "Ready", "status": "True"})
    pod["status"]["conditions"] = [each for each in pod["status"]["conditions"] if each["status"] == "True"]

    assert explain.of_pod(pod, related) is None
