"""Patches that a user lays over our objects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from rlctl import __version__
from rlctl.errors import SpecError
from rlctl.plan import make
from rlctl.render import cluster_documents
from rlctl.render.engine import templates
from rlctl.render.merging import merged
from tests.render.cluster import UID, Run, role_of, spec_of


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / "templates" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def patched(tmp_path: Path, name: str, text: str, **more: Any) -> Run:
    write(tmp_path, name, text)
    return Run(spec_of(**more), tmp_path)


def refused(tmp_path: Path, name: str, text: str, **more: Any) -> list[str]:
    with pytest.raises(SpecError) as caught:
        patched(tmp_path, name, text, **more)
    assert caught.value.exit_code == 3
    return [str(problem).replace(str(tmp_path / "templates") + "/", "") for problem in caught.value.problems]


def pod_of(run: Run, role: str) -> dict[str, Any]:
    pod: dict[str, Any] = run.workload(role)["spec"]["template"]["spec"]
    return pod


SPOT = """\
# actors may run where nodes are taken away
spec:
  template:
    spec:
      priorityClassName: rlctl-actor
      nodeSelector: {node.example/pool: spot}
      tolerations:
        - {key: spot, operator: Exists, effect: NoSchedule}
"""


def test_a_patch_reaches_every_workload_of_its_role_and_no_other(tmp_path: Path) -> None:
    run = patched(tmp_path, "actor.patch.yaml", SPOT, roles={"actor": {"replicas": 2500}})
    patched_roles = [role_of(it) for it in run.workloads if "tolerations" in it["spec"]["template"]["spec"]]
    assert patched_roles == ["actor"] * 3


def test_the_origin_of_a_patched_document_names_template_and_patch(tmp_path: Path) -> None:
    run = patched(tmp_path, "actor.patch.yaml", SPOT)
    origins = {document.name: document.origin for document in run.documents}
    path = tmp_path / "templates" / "actor.patch.yaml"
    assert origins["deployment-pong-actor-0.yaml"] == f"templates/kubernetes/actor.yaml.j2, patched by {path}"
    assert origins["deployment-pong-evaluator.yaml"] == "templates/kubernetes/evaluator.yaml.j2"


def test_lists_of_named_things_are_merged_by_name(tmp_path: Path) -> None:
    text = """\
spec:
  template:
    spec:
      imagePullSecrets: [{name: registry}]
      containers:
        - name: actor
          env: [{name: OMP_NUM_THREADS, value: "8"}, {name: SIM_LICENCE, value: host}]
          volumeMounts: [{name: tmp, mountPath: /scratch}]
        - {name: sidecar, image: side@sha256:0}
"""
    before, after = pod_of(Run(spec_of()), "actor"), pod_of(patched(tmp_path, "actor.patch.yaml", text), "actor")
    assert [it["name"] for it in after["containers"]] == ["actor", "sidecar"]
    was, now = before["containers"][0], after["containers"][0]
    env = {it["name"]: it.get("value") for it in now["env"]}
    assert (env["OMP_NUM_THREADS"], env["SIM_LICENCE"], env["HOME"]) == ("8", "host", "/home/rlctl")
    assert [it["mountPath"] for it in now["volumeMounts"]] == [
        *(it["mountPath"] for it in was["volumeMounts"]),
        "/scratch",
    ]
    assert now["args"] == was["args"]
    assert after["imagePullSecrets"] == [{"name": "registry"}]


def test_null_takes_away(tmp_path: Path) -> None:
    text = "spec: {template: {spec: {topologySpreadConstraints: null, securityContext: {runAsUser: null}}}}"
    pod = pod_of(patched(tmp_path, "actor.patch.yaml", text), "actor")
    assert "topologySpreadConstraints" not in pod
    assert "runAsUser" not in pod["securityContext"]
    assert pod["securityContext"]["runAsNonRoot"] is True


def test_a_patch_of_another_kind_adds_a_rule_to_what_is_let_through(tmp_path: Path) -> None:
    text = """\
spec:
  ingress:
    - from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]
      ports: [{protocol: TCP, port: 7180}]
"""
    run = patched(tmp_path, "manager.networkpolicy.patch.yaml", text)
    ingress = run.named("NetworkPolicy", "pong-manager")["spec"]["ingress"]
    assert [rule["ports"][0]["port"] for rule in ingress] == [7100, 7180]
    assert run.workload("manager") == Run(spec_of()).workload("manager")
    dqn = {"algorithm": {"name": "dqn"}, "roles": {"actor": {"replicas": 2}}}
    shards = patched(tmp_path, "replay.networkpolicy.patch.yaml", text, **dqn)
    opened = [it["metadata"]["name"] for it in shards.objects if "monitoring" in str(it.get("spec"))]
    assert opened == ["pong-manager", "pong-replay"], "no policy beside it, which is for other pods"


@pytest.mark.parametrize(
    ("name", "text", "kind", "found"),
    [
        ("run.persistentvolumeclaim", "metadata: {annotations: {a.e/b: c}}", "PersistentVolumeClaim", "e/b"),
        ("manager.serviceaccount", "metadata: {annotations: {a.example/b: c}}", "ServiceAccount", "a.example/b"),
        ("learner.poddisruptionbudget", "spec: {maxUnavailable: 2}", "PodDisruptionBudget", "maxUnavailable: 2"),
        ("tensorboard.service", "metadata: {labels: {team: rl}}", "Service", "team: rl"),
        ("learner", "metadata: {labels: {kueue.x-k8s.io/queue-name: q}}", "StatefulSet", "queue-name: q"),
    ],
)
def test_every_kind_of_object_that_is_the_users_to_alter_can_be_patched(
    tmp_path: Path, name: str, text: str, kind: str, found: str
) -> None:
    run = patched(tmp_path, f"{name}.patch.yaml", text)
    changed = [it for it, document in zip(run.objects, run.documents, strict=True) if found in document.text]
    assert [it["kind"] for it in changed] == [kind]


def test_what_is_not_known_to_us_is_the_clusters_to_judge(tmp_path: Path) -> None:
    run = patched(tmp_path, "actor.patch.yaml", "spec: {template: {spec: {hostUsers: false, somethingNew: {a: [1]}}}}")
    assert pod_of(run, "actor")["somethingNew"] == {"a": [1]}


FOUND_BY = "is not for a patch: rlctl finds its objects by it; remove it"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("metadata:\n  name: mine", f"2:3: metadata.name: {FOUND_BY}"),
        ("spec:\n  selector: {matchLabels: {app: mine}}", f"2:3: spec.selector: {FOUND_BY}"),
        (
            "metadata:\n  labels:\n    app.kubernetes.io/instance: mine",
            f"3:5: metadata.labels.app.kubernetes.io/instance: {FOUND_BY}",
        ),
        (
            "spec:\n  template:\n    metadata: {labels: null}",
            f"3:16: spec.template.metadata.labels.{{}}: {FOUND_BY}",
        ),
        (
            "spec: {replicas: 3}",
            "1:8: spec.replicas: is not for a patch: `rlctl scale` and `roles` of the spec say how many; remove it",
        ),
        (
            "metadata: {namespace: team}",
            "1:12: metadata.namespace: is not for a patch: documents name no namespace; say -n, or RLCTL_NAMESPACE;"
            " remove it",
        ),
        (
            "spec:\n  template:\n    spec:\n      containers:\n        - {name: x}\n        - {name: actor, image: x}",
            "6:25: spec.template.spec.containers.1.image: is not for a patch: `images` of the spec says which",
        ),
    ],
)
def test_what_rlctl_finds_its_objects_by_is_not_for_a_patch(tmp_path: Path, text: str, problem: str) -> None:
    found = refused(tmp_path, "actor.patch.yaml", text)
    if "{}" in problem:
        before, after = problem.split("{}")
        assert len(found) == 7
        assert all(it.startswith("actor.patch.yaml:" + before) and it.endswith(after) for it in found)
    else:
        assert found == [f"actor.patch.yaml:{problem}"]


CONTAINERS = "spec.template.spec.containers"
GONE = f"{CONTAINERS}: is not for a patch: our container `actor` would be gone; keep it"


@pytest.mark.parametrize(
    ("containers", "problems"),
    [
        ("[{image: side}, {name: actor, image: foo}]", [f"2:16: {CONTAINERS}.0: needs a `name`"]),
        ("[side, {name: x}]", [f"2:16: {CONTAINERS}.0: must be a mapping (key: value), got 'side'"]),
        ("[{name: [a], image: null}]", [f"2:17: {CONTAINERS}.0.name: must be text, got a list"]),
        ("{a: b}", [f"2:3: {CONTAINERS}: must be a list, got a mapping"]),
        ("foo", [f"2:3: {CONTAINERS}: must be a list, got 'foo'"]),
        ("[1, 2]", [f"2:{at}: {CONTAINERS}.{n}: must be a mapping (key: value), got {n + 1}"
                    for n, at in enumerate((16, 19))]),
        ("null", [f"2:3: {GONE}"]),
        ("[]", [f"2:3: {GONE}"]),
    ],
)  # fmt: skip
def test_containers_of_a_wrong_form_are_refused_and_ours_stays(
    tmp_path: Path, containers: str, problems: list[str]
) -> None:
    text = f"spec: {{template: {{spec: {{\n  containers: {containers}}}}}}}"
    assert refused(tmp_path, "actor.patch.yaml", text) == [f"actor.patch.yaml:{it}" for it in problems]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("spec: {template: {spec: foo}}", "1:19: spec.template.spec: must be a mapping (key: value), got 'foo'"),
        ("spec: {template: null}", None),
        ("spec: {template: {spec: {volumes: {a: b}}}}", "1:26: spec.template.spec.volumes: must be a list"),
        ("spec: {template: {spec: {initContainers: [x]}}}", "1:43: spec.template.spec.initContainers.0: must be a"),
        (
            "spec: {template: {spec: {containers: [{name: side, resources: {limits: 3}}]}}}",
            "1:64: spec.template.spec.containers.0.resources.limits: must be a mapping (key: value), got 3",
        ),
        ("metadata: foo", "1:1: metadata: must be a mapping (key: value), got 'foo'"),
    ],
)
def test_what_rlctl_reads_of_a_patched_object_has_the_form_that_it_has_there(
    tmp_path: Path, text: str, problem: str | None
) -> None:
    found = refused(tmp_path, "actor.patch.yaml", text)
    assert problem is None or (len(found) == 1 and found[0].startswith(f"actor.patch.yaml:{problem}"))


def test_a_patch_may_repeat_what_is_so_anyway(tmp_path: Path) -> None:
    text = "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: pong-manager}"
    run = patched(tmp_path, "manager.patch.yaml", text)
    assert run.workload("manager") == Run(spec_of()).workload("manager")


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("acter.patch.yaml", "{}", "acter.patch.yaml: patches nothing: no role `acter`; did you mean `actor`?"),
        (
            "actor.servce.patch.yaml",
            "{}",
            "actor.servce.patch.yaml: patches nothing: no kind of object `servce`; did you mean `service`?",
        ),
        ("actor.service.patch.yaml", "{}", "actor.service.patch.yaml: patches nothing: actor has no Service"),
        ("run.patch.yaml", "{}", "run.patch.yaml: name what it is for, as in run.persistentvolumeclaim.patch.yaml"),
        ("actor.patch.yaml", "#" * (300 << 10), "actor.patch.yaml: cannot be read: longer than 256 KiB"),
        ("actor.patch.yml", "{}", "actor.patch.yml: patches nothing: its name must end in .patch.yaml"),
        ("actor.patch.yaml", "- a", "actor.patch.yaml:1:1: must be a mapping (key: value) at the top"),
        (
            "actor.patch.yaml",
            "spec: {a: 1}\nspec: {b: 1}",
            "actor.patch.yaml:2:1: spec: given twice, in line 1 and in line 2; keep one",
        ),
        (
            "actor.patch.yaml",
            "spec: &a {}",
            "actor.patch.yaml:1:7: spec: anchors (&a) are not allowed; remove it",
        ),
    ],
)
def test_a_patch_that_cannot_be_meant_is_refused(tmp_path: Path, name: str, text: str, problem: str) -> None:
    assert refused(tmp_path, name, text) == [problem]


def test_all_faults_of_all_patches_come_at_once(tmp_path: Path) -> None:
    write(tmp_path, "learner.patch.yaml", "- a")
    assert len(refused(tmp_path, "acter.patch.yaml", "{}")) == 2


def test_a_patch_that_is_all_comments_and_one_of_a_role_that_is_not_there_do_no_harm(tmp_path: Path) -> None:
    write(tmp_path, "actor.patch.yaml", "# later\n")
    run = patched(tmp_path, "proxy-status.patch.yaml", "spec: {minReadySeconds: 5}")
    assert run.objects == Run(spec_of()).objects


def test_a_patch_beside_the_spec_comes_after_one_beside_the_code(tmp_path: Path) -> None:
    code, spec_folder = tmp_path / "code", tmp_path / "specs"
    write(code, "actor.patch.yaml", "spec: {minReadySeconds: 1, paused: false}")
    write(spec_folder, "actor.patch.yaml", "spec: {minReadySeconds: 2}")
    spec = spec_of(code={"path": "../code"})
    made = cluster_documents(make(spec, uid=UID, base=spec_folder), spec)
    document = next(it for it in made if it.name == "deployment-pong-actor-0.yaml")
    found = yaml.safe_load(document.text)["spec"]
    assert (found["minReadySeconds"], found["paused"]) == (2, False)
    first, second = (folder / "templates" / "actor.patch.yaml" for folder in (code, spec_folder))
    assert document.origin.endswith(f"patched by {first}, patched by {second}")


def test_a_patch_restarts_only_the_role_it_is_for(tmp_path: Path) -> None:
    before, after = Run(spec_of()), patched(tmp_path, "actor.patch.yaml", SPOT)
    changed = [now.name for was, now in zip(before.documents, after.documents, strict=True) if was.text != now.text]
    assert changed == ["deployment-pong-actor-0.yaml"]


@pytest.mark.parametrize(
    ("ours", "patch", "result"),
    [
        ({"a": 1, "b": 2}, {"a": 3}, {"a": 3, "b": 2}),
        ({"a": {"x": 1}}, {"a": {"y": 2}}, {"a": {"x": 1, "y": 2}}),
        ({"a": 1}, {"a": None}, {}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({"a": [{"name": "x", "v": 1}]}, {"a": [{"name": "x", "w": 2}]}, {"a": [{"name": "x", "v": 1, "w": 2}]}),
        ({"a": [{"name": "x"}]}, {"a": [{"name": "y"}]}, {"a": [{"name": "x"}, {"name": "y"}]}),
        ({"a": [{"key": 1}]}, {"a": [{"key": 2}, {"key": 1}]}, {"a": [{"key": 1}, {"key": 2}]}),
        ({"a": [{"name": "x"}]}, {"a": []}, {"a": []}),
        ({"a": [{"name": "x"}]}, {"a": [{"name": [1]}]}, {"a": [{"name": "x"}, {"name": [1]}]}),
        ({"a": 1}, {"a": {"b": 1}}, {"a": {"b": 1}}),
        ({}, {"a": {"b": None, "c": 1}}, {"a": {"c": 1}}),
    ],
)
def test_merging(ours: Any, patch: Any, result: Any) -> None:
    assert merged(ours, patch) == result


def test_merging_leaves_both_sides_as_they_were() -> None:
    ours, patch = {"a": {"b": [{"name": "x"}]}}, {"a": {"b": [{"name": "x", "v": 1}]}}
    merged(ours, patch)
    assert ours == {"a": {"b": [{"name": "x"}]}}
    assert patch == {"a": {"b": [{"name": "x", "v": 1}]}}


STATUS = (templates() / "kubernetes" / "status.yaml.j2").read_text()


def test_a_whole_template_can_be_replaced_when_it_says_what_it_copies(tmp_path: Path) -> None:
    text = f"# copied from rlctl {__version__}\n" + STATUS.replace("port: 80,", "port: 8080,")
    run = patched(tmp_path, "kubernetes/status.yaml.j2", text)
    assert run.named("Service", "pong-status")["spec"]["ports"][0]["port"] == 8080
    origin = next(document.origin for document in run.documents if document.name == "service-pong-status.yaml")
    assert origin == str(tmp_path / "templates" / "kubernetes" / "status.yaml.j2")


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        (
            "status.yaml.j2",
            STATUS,
            f"kubernetes/status.yaml.j2:1:1: must say what it copies: `# copied from rlctl {__version__}`",
        ),
        (
            "status.yaml.j2",
            "# copied from rlctl 0.0.1\n" + STATUS,
            f"kubernetes/status.yaml.j2:1:1: copied from rlctl 0.0.1, this is {__version__}; compare it with ours, then"
            " change this line",
        ),
        ("statuss.yaml.j2", "", "kubernetes/statuss.yaml.j2: replaces nothing; did you mean `status.yaml.j2`?"),
    ],
)
def test_a_template_that_replaces_none_of_this_release_is_refused(
    tmp_path: Path, name: str, text: str, problem: str
) -> None:
    assert refused(tmp_path, f"kubernetes/{name}", text) == [problem]


def test_a_replaced_template_cannot_reach_into_python(tmp_path: Path) -> None:
    text = f"# copied from rlctl {__version__}\nkind: {{{{ ''.__class__.__mro__ }}}}\nmetadata: {{name: x}}\n"
    assert "__class__" in refused(tmp_path, "kubernetes/status.yaml.j2", text)[0]


def test_a_fault_in_a_replaced_template_is_shown_with_its_line(tmp_path: Path) -> None:
    text = f"# copied from rlctl {__version__}\nkind: Service\nmetadata:\n  name: {{{{ page.nam }}}}\n"
    (problem,) = refused(tmp_path, "kubernetes/status.yaml.j2", text)
    assert problem.startswith("kubernetes/status.yaml.j2:4:1: template: ")
    assert "nam" in problem


def test_a_replaced_template_that_is_no_object_is_shown_with_its_line(tmp_path: Path) -> None:
    text = f"# copied from rlctl {__version__}\nkind: Service\n---\nkind: Service\n"
    (problem,) = refused(tmp_path, "kubernetes/status.yaml.j2", text)
    assert problem == "kubernetes/status.yaml.j2:2:1: must be an object with kind and metadata.name"
