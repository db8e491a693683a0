"""Checks that a good platform engineer would make of the objects of a run, as code."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from rlctl.spec import names
from rlctl.spec.schema import RUN_NAME
from tests.render.cluster import EXPOSED, UID, Run, bytes_of, role_of, selects, spec_of

LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
FLUSH_S = 10
"""Roles end within so long after SIGTERM."""


def test_every_name_fits_where_a_cluster_puts_it(run: Run) -> None:
    for it in run.objects:
        name = it["metadata"]["name"]
        assert LABEL.fullmatch(name.replace(".", "-") if it["kind"] == "NetworkPolicy" else name), name
        assert len(name) <= 63, name
        if it["kind"] == "StatefulSet":
            assert len(f"{name}-{10 * 'x'}") <= 63  # controller-revision-hash is a label of its pods
            assert len(f"{name}-511") <= 63


def test_no_name_of_a_run_is_one_that_another_run_needs() -> None:
    run = Run(spec_of(run="a", kubernetes=EXPOSED, algorithm={"name": "apex_dqn"}))
    found = {(it["kind"], it["metadata"]["name"]) for it in run.objects}
    found |= {("Pod", f"{name}-0") for kind, name in found if kind == "StatefulSet"}
    found |= {("ConfigMap", names.state_name("a")), ("ConfigMap", names.revision_name("a", 7))}
    found |= {("Secret", names.keys_name("a", key_class)) for key_class in ("core", "actor")}
    for kind, name in found:
        for other_kind, other in found:
            between = name.removesuffix(other.removeprefix("a"))
            if kind == other_kind and between not in (name, "a"):
                assert not re.fullmatch(RUN_NAME, between), f"{kind} {name}: run {between} needs it too"


def test_every_label_has_a_value_that_a_label_may_have(run: Run) -> None:
    labels = [it["metadata"]["labels"] for it in run.objects] + [labels for _, labels, _ in run.pods()]
    for value in (value for each in labels for value in each.values()):
        assert len(value) <= 63
        assert LABEL_VALUE.fullmatch(value)


def test_every_object_says_whose_it_is(run: Run) -> None:
    for it in run.objects:
        assert names.labels(run.spec.run).items() <= it["metadata"]["labels"].items()
        assert it["metadata"]["annotations"][names.UID] == UID
    for _, labels, _ in run.pods():
        assert labels[names.UID] == UID


def test_documents_have_names_of_their_own_that_say_kind_and_name(run: Run) -> None:
    assert [document.name for document in run.documents] == [
        f"{it['kind'].lower()}-{it['metadata']['name']}.yaml" for it in run.objects
    ]
    assert len({document.name for document in run.documents}) == len(run.documents)


def test_a_document_knows_its_role_and_the_template_it_came_from(run: Run) -> None:
    for document, it in zip(run.documents, run.objects, strict=True):
        assert document.role == role_of(it)
        assert document.origin.startswith("templates/kubernetes/")


def test_documents_come_in_the_order_in_which_one_needs_the_other(run: Run) -> None:
    def place(kind: str, *roles: str) -> list[int]:
        return [n for n, it in enumerate(run.objects) if it["kind"] == kind and (not roles or role_of(it) in roles)]

    waves = [
        [*place("ConfigMap"), *place("ServiceAccount"), *place("Role"), *place("RoleBinding"), *place("NetworkPolicy")],
        place("PersistentVolumeClaim"),
        [*place("Service"), *place("PodDisruptionBudget")],
        place("StatefulSet", "modelpool", "manager", "replay"),
        place("StatefulSet", "learner"),
        place("Deployment", "evaluator", "tensorboard", "proxy-tensorboard", "proxy-status"),
        place("Deployment", "actor"),
    ]
    assert [n for wave in waves for n in sorted(wave)] == list(range(len(run.objects)))


def test_no_document_names_a_namespace_replicas_or_a_priority(run: Run) -> None:
    for it in run.objects:
        assert "namespace" not in it["metadata"]
        assert "replicas" not in it.get("spec", {})
    for _, _, pod in run.pods():
        assert "priorityClassName" not in pod


def test_a_selector_finds_the_pods_of_its_own_workload_and_no_others(run: Run) -> None:
    for it in run.workloads:
        found = [name for name, labels, _ in run.pods() if selects(it["spec"]["selector"]["matchLabels"], labels)]
        assert found == [it["metadata"]["name"]]


def test_a_service_leads_to_a_named_port_of_pods_that_are_there(run: Run) -> None:
    assert run.of("Service")
    for service in run.of("Service"):
        pods = [pod for _, labels, pod in run.pods() if selects(service["spec"]["selector"], labels)]
        assert pods, service["metadata"]["name"]
        for pod in pods:
            ports = {port["name"] for container in pod["containers"] for port in container["ports"]}
            assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports


def test_actors_and_evaluators_have_no_service(run: Run) -> None:
    for service in run.of("Service"):
        selected = {role_of(it) for it in run.workloads if selects(service["spec"]["selector"], _pod_labels(it))}
        assert not selected & {"actor", "evaluator"}


def test_stateful_roles_have_a_headless_service_that_names_pods_which_are_not_ready(run: Run) -> None:
    for role in ("manager", "modelpool", "learner"):
        stateful = run.workload(role)
        assert stateful["kind"] == "StatefulSet"
        assert stateful["spec"]["podManagementPolicy"] == "Parallel"
        service = run.named("Service", stateful["spec"]["serviceName"])
        assert service["spec"]["clusterIP"] == "None"
        assert service["spec"]["publishNotReadyAddresses"] is True
        assert service["spec"]["selector"] == stateful["spec"]["selector"]["matchLabels"]


def test_a_disruption_budget_matches_pods_and_always_lets_a_node_be_drained(run: Run) -> None:
    assert {role_of(it) for it in run.of("PodDisruptionBudget")} == run.core
    for budget in run.of("PodDisruptionBudget"):
        assert budget["spec"]["maxUnavailable"] >= 1
        matched = [it for it in run.workloads if selects(budget["spec"]["selector"]["matchLabels"], _pod_labels(it))]
        assert [role_of(it) for it in matched] == [role_of(budget)]


def test_ports_are_ours_and_each_is_used_once_in_a_pod(run: Run) -> None:
    for name, _, container in run.containers():
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert len(set(ports.values())) == len(container["ports"])
        assert all(1024 <= port <= 65535 for port in ports.values())
        if not name.endswith("-proxy"):
            assert ports.items() <= names.PORTS.items()


def test_images_are_pinned_by_digest_and_pulled_once_a_node(run: Run) -> None:
    for _, _, container in run.containers():
        assert re.search(r"@sha256:[0-9a-f]{64}$", container["image"])
        assert container["imagePullPolicy"] == "IfNotPresent"


def test_requests_and_limits_are_quantities_that_fit(run: Run) -> None:
    for _, pod, container in run.containers():
        requests, limits = container["resources"]["requests"], container["resources"]["limits"]
        assert re.fullmatch(r"[1-9][0-9]*m?", requests["cpu"])
        assert "cpu" not in limits
        assert requests["memory"] == limits["memory"]
        assert bytes_of(requests["ephemeral-storage"]) <= bytes_of(limits["ephemeral-storage"])
        assert requests.get("nvidia.com/gpu") == limits.get("nvidia.com/gpu")
        on_disk = [it["emptyDir"] for it in pod["volumes"] if "emptyDir" in it and "medium" not in it["emptyDir"]]
        assert sum(bytes_of(it["sizeLimit"]) for it in on_disk) <= bytes_of(limits["ephemeral-storage"])


def test_a_gpu_is_asked_for_where_the_spec_says_so_and_nowhere_else() -> None:
    run = Run(spec_of(roles={"learner": {"gpu": 2}}))
    asking = {name: it["resources"]["limits"].get("nvidia.com/gpu") for name, _, it in run.containers()}
    assert {name for name, gpus in asking.items() if gpus} == {"pong-learner"}
    assert asking["pong-learner"] == "2"


def test_shared_memory_of_a_learner_is_part_of_its_memory(run: Run) -> None:
    pod = run.workload("learner")["spec"]["template"]["spec"]
    shm = next(it["emptyDir"] for it in pod["volumes"] if it["name"] == "shm")
    assert shm["medium"] == "Memory"
    memory = bytes_of(pod["containers"][0]["resources"]["limits"]["memory"])
    assert 0 < bytes_of(shm["sizeLimit"]) <= memory / 2
    assert any(it["mountPath"] == "/dev/shm" for it in pod["containers"][0]["volumeMounts"])


def test_threads_follow_the_cores_asked_for() -> None:
    run = Run(spec_of(roles={"learner": {"cpu": 4.5}, "actor": {"cpu": "250m"}}))
    env = {name: {it["name"]: it.get("value") for it in each["env"]} for name, _, each in run.containers()}
    assert env["pong-learner"]["OMP_NUM_THREADS"] == "4"
    assert env["pong-actor-0"]["OMP_NUM_THREADS"] == "1"


def test_quantities_are_written_as_a_cluster_writes_them_back() -> None:
    run = Run(spec_of(roles={"learner": {"cpu": 1.5, "memory": "2048Mi"}, "actor": {"cpu": 2, "memory": "0.3Gi"}}))
    found = {name: each["resources"]["requests"] for name, _, each in run.containers()}
    assert (found["pong-learner"]["cpu"], found["pong-learner"]["memory"]) == ("1500m", "2Gi")
    assert (found["pong-actor-0"]["cpu"], found["pong-actor-0"]["memory"]) == ("2", "322122548")


def test_probes_of_a_role_differ_and_ask_the_process_itself(run: Run) -> None:
    for name, _, container in run.containers():
        live, ready = container["livenessProbe"], container["readinessProbe"]
        assert live != ready
        assert live["periodSeconds"] * live["failureThreshold"] >= 60  # slow is not dead
        if name.endswith(("-proxy", "-tensorboard")):
            continue
        assert (live["httpGet"]["path"], ready["httpGet"]["path"]) == ("/healthz", "/readyz")
        assert {live["httpGet"]["port"], ready["httpGet"]["port"]} == {"probe"}
        startup = container["startupProbe"]
        assert startup["periodSeconds"] * startup["failureThreshold"] >= 120


def test_a_pod_has_time_to_say_goodbye(run: Run) -> None:
    for name, _, pod in run.pods():
        hook = pod["containers"][0].get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        flush = 5 if name.endswith(("-proxy", "-tensorboard")) else FLUSH_S
        assert hook + flush < pod["terminationGracePeriodSeconds"] <= 60, name


def test_what_is_lost_with_its_node_is_not_moved_by_autoscalers(run: Run) -> None:
    evict = "cluster-autoscaler.kubernetes.io/safe-to-evict"
    for it in run.workloads:
        kept = role_of(it) in {*run.core, "evaluator"}
        annotations = it["spec"]["template"]["metadata"]["annotations"]
        assert annotations[evict] == ("false" if kept else "true")
        assert ("karpenter.sh/do-not-disrupt" in annotations) == kept


def test_nobody_asks_to_run_where_nodes_are_taken_away(run: Run) -> None:
    for _, _, pod in run.pods():
        assert "tolerations" not in pod
        assert "nodeSelector" not in pod
        assert "affinity" not in pod  # scheduling 10,000 pods with it takes minutes


def test_spreading_never_keeps_a_pod_waiting(run: Run) -> None:
    for _, labels, pod in run.pods():
        for constraint in pod.get("topologySpreadConstraints", ()):
            assert constraint["whenUnsatisfiable"] == "ScheduleAnyway"
            assert constraint["topologyKey"] == "kubernetes.io/hostname"
            assert selects(constraint["labelSelector"]["matchLabels"], labels)


def test_deployments_roll_in_parts_and_give_up_in_time(run: Run) -> None:
    for it in run.of("Deployment"):
        assert it["spec"]["progressDeadlineSeconds"] == 600
        assert it["spec"]["revisionHistoryLimit"] == 5
        assert {"maxSurge", "maxUnavailable"} == set(it["spec"]["strategy"]["rollingUpdate"])
    actor = run.workload("actor")["spec"]["strategy"]["rollingUpdate"]
    assert actor == {"maxSurge": "10%", "maxUnavailable": "50%"}


def test_every_volume_is_mounted_and_every_mount_is_a_volume(run: Run) -> None:
    for _, pod, container in run.containers():
        assert {it["name"] for it in container["volumeMounts"]} == {it["name"] for it in pod["volumes"]}
        paths = [it["mountPath"] for it in container["volumeMounts"]]
        assert len(set(paths)) == len(paths)


def test_a_role_reads_the_run_file_that_was_made_for_it(run: Run) -> None:
    run_files = {it["metadata"]["name"]: it for it in run.of("ConfigMap") if it.get("immutable")}
    mounted: dict[str, set[str]] = {}
    for it in run.workloads:
        for volume in it["spec"]["template"]["spec"]["volumes"]:
            if volume["name"] == "run":
                mounted.setdefault(volume["configMap"]["name"], set()).add(role_of(it))
    assert mounted.keys() == run_files.keys()
    for name, roles in mounted.items():
        (role,) = roles
        assert json.loads(run_files[name]["data"]["run.json"])["role"] == role
        assert re.fullmatch(rf"{run.spec.run}-{role}-[0-9a-f]{{12}}", name)


def test_only_the_roles_that_keep_data_mount_the_volume_and_only_tensorboard_reads_it_alone(run: Run) -> None:
    claim = run.spec.storage.claim or f"{run.spec.run}-volume"
    mounts: dict[str, bool] = {}
    for it in run.workloads:
        pod = it["spec"]["template"]["spec"]
        for volume in pod["volumes"]:
            if "persistentVolumeClaim" in volume:
                assert volume["persistentVolumeClaim"] == {"claimName": claim}
                mount = next(at for at in pod["containers"][0]["volumeMounts"] if at["name"] == volume["name"])
                mounts[role_of(it)] = mount.get("readOnly", False)
    saves = {"replay": False} if run.saves_replay else {}
    assert mounts == {"manager": False, "modelpool": False, "learner": False, "tensorboard": True} | saves


def test_the_volume_can_be_written_from_every_node_and_is_left_to_the_user_who_brings_one(run: Run) -> None:
    claims = run.of("PersistentVolumeClaim")
    assert bool(claims) == (run.spec.storage.claim is None)
    for claim in claims:
        assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
        assert claim["spec"].get("storageClassName") == run.spec.storage.class_
        assert bytes_of(claim["spec"]["resources"]["requests"]["storage"]) > 0


def test_keys_are_mounted_by_class_and_an_evaluator_gets_what_a_client_needs(run: Run) -> None:
    for it in run.workloads:
        keys = [volume["secret"] for volume in it["spec"]["template"]["spec"]["volumes"] if volume["name"] == "keys"]
        role = role_of(it)
        if role in ("tensorboard", "proxy-tensorboard", "proxy-status"):
            assert not keys
            continue
        (secret,) = keys
        assert secret["secretName"] == names.keys_name(run.spec.run, "actor" if role == "actor" else "core")
        assert secret["defaultMode"] == 0o440
        if role == "evaluator":
            assert [item["key"] for item in secret["items"]] == ["server.pub", "core.key", "core.pub"]


def test_nothing_secret_stands_in_a_configmap_an_argument_or_a_variable(run: Run) -> None:
    for _, _, container in run.containers():
        assert not any("secretKeyRef" in it.get("valueFrom", {}) for it in container.get("env", ()))
        assert "envFrom" not in container
    for it in run.of("ConfigMap"):
        assert not re.search("key\\b|token|password", json.dumps(it["data"]).lower())


def test_no_object_is_larger_than_a_cluster_stores(run: Run) -> None:
    for document in run.documents:
        assert len(document.text.encode()) < 1_000_000


def test_processes_are_told_the_manager_and_their_own_address(run: Run) -> None:
    manager = f"{run.spec.run}-manager"
    for it in run.workloads:
        role = role_of(it)
        if role in ("tensorboard", "proxy-tensorboard", "proxy-status"):
            continue
        container = it["spec"]["template"]["spec"]["containers"][0]
        assert container["command"] == ["python", "-m", "rlctl_agents", role]
        assert {
            "--run-file=/etc/rlctl/run/run.json",
            "--keys=/etc/rlctl/keys",
            f"--manager=tcp://{manager}-0.{manager}:7100",
            "--name=$(POD_NAME)",
            "--bind=$(POD_IP)",
            "--probe=tcp:$(POD_IP):7180",
        } <= set(container["args"])
        assert ("--ordinal=$(POD_NAME)" in container["args"]) == (it["kind"] == "StatefulSet")
        folder = f"--volume=/rlctl/runs/{run.spec.run}-{UID[:8]}"
        keeps = role in ("manager", "modelpool", "learner") or (role == "replay" and run.saves_replay)
        assert (folder in container["args"]) == keeps


def test_actors_are_told_their_node_and_the_image_of_their_pod(plain: Run) -> None:
    actors = [it for it in plain.workloads if role_of(it) == "actor"]
    assert actors
    for it in actors:
        container = it["spec"]["template"]["spec"]["containers"][0]
        variables = {one["name"]: one for one in container["env"]}
        assert variables["RLCTL_NODE"]["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}
        assert variables["RLCTL_IMAGE"]["value"] == container["image"]


def test_the_manager_alone_listens_for_orders_and_only_on_its_loopback(plain: Run) -> None:
    arguments = plain.workload("manager")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "--control=tcp:127.0.0.1:7190" in arguments
    assert "--addresses=tcp://pong-{role}-{index}.pong-{role}:{port}" in arguments
    assert {"--stay", "--logs", "--live=/etc/rlctl/live/live.json"} <= set(arguments)
    ports = [port for service in plain.of("Service") for port in service["spec"]["ports"]]
    assert not any(port.get("targetPort") in ("control", 7190) for port in ports)


def _pod_labels(workload: dict[str, Any]) -> dict[str, str]:
    labels: dict[str, str] = workload["spec"]["template"]["metadata"]["labels"]
    return labels


@pytest.mark.parametrize(("replicas", "shards"), [(0, 1), (1, 1), (1001, 2), (12_000, 12)])
def test_actors_come_in_deployments_of_at_most_a_thousand(replicas: int, shards: int) -> None:
    run = Run(spec_of(roles={"actor": {"replicas": replicas}}))
    found = [it for it in run.of("Deployment") if role_of(it) == "actor"]
    assert [it["metadata"]["name"] for it in found] == [f"pong-actor-{number}" for number in range(shards)]
    assert [it["metadata"]["labels"][names.SHARD] for it in found] == [str(number) for number in range(shards)]


def test_code_of_a_user_is_on_no_path_but_of_the_roles_that_import_it(run: Run) -> None:
    """Whatever their image holds; those roles run from images that may hold code of a commit."""
    images = {spec: getattr(run.spec.images, spec) for spec in ("core", "actor", "learner")}
    found: dict[str, set[tuple[str, bool]]] = {}
    for it in run.workloads:
        container = it["spec"]["template"]["spec"]["containers"][0]
        variables = {variable["name"]: variable.get("value") for variable in container.get("env", ())}
        name = next((name for name, image in images.items() if image == container["image"]), "proxy")
        found.setdefault(name, set()).add((role_of(it), variables.get("PYTHONPATH") == "/nonexistent"))
    assert found["core"] == {(role, True) for role in (*run.core - {"learner"}, "tensorboard")}
    assert found["actor"] == {("actor", False), ("evaluator", False)}
    assert found["learner"] == {("learner", False)}
