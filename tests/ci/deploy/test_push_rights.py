"""Rights of a commit on a cluster, and those that a person alone has."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rlctl import __version__
from rlctl.plan import Document, Plan, make
from rlctl.render import cluster_documents
from rlctl.render.engine import templates
from rlctl.spec.schema import Spec
from rlctl_ci.core.errors import BuildStopped
from rlctl_ci.deploy.push_rights import refuse, refuse_growth, refuse_trackers

POD = "spec: {template: {spec: %s}}"
OURS = "spec: {template: {spec: {containers: [{name: actor, %s}]}}}"
META = "spec: {template: {metadata: {%s}}}"
MOUNT = "volumeMounts: [{name: x, mountPath: /x}]"
RIGHTS = {
    "account": POD % "{serviceAccountName: rlctl-ci}",
    "token": POD % "{automountServiceAccountToken: true}",
    "no word of a token": POD % "{automountServiceAccountToken: null}",
    "secret": POD % "{volumes: [{name: x, secret: {secretName: rlctl-ci-secrets}}]}",
    "secret in place of nothing": POD % "{volumes: [{name: tmp, emptyDir: null, secret: {secretName: rlctl-ci}}]}",
    "keys of the core": POD % "{volumes: [{name: keys, secret: {secretName: pole-keys-core}}]}",
    "projected": POD % "{volumes: [{name: x, projected: {sources: [{serviceAccountToken: {path: t}}]}}]}",
    "host path": POD % "{volumes: [{name: x, hostPath: {path: /}}]}",
    "csi": POD % "{volumes: [{name: x, csi: {driver: secrets-store.csi.k8s.io}}]}",
    "claim of the service": POD % "{volumes: [{name: x, persistentVolumeClaim: {claimName: rlctl-ci}}]}",
    "mount of keys": OURS % "volumeMounts: [{name: keys, mountPath: /code}]",
    "variables": OURS % "envFrom: [{secretRef: {name: rlctl-ci-secrets}}]",
    "variable": OURS % "env: [{name: X, valueFrom: {secretKeyRef: {name: rlctl-ci-secrets, key: hook}}}]",
    "root": OURS % "securityContext: {runAsUser: 0}",
    "capabilities": OURS % "securityContext: {capabilities: {add: [SYS_ADMIN]}}",
    "no word of escalation": OURS % "securityContext: null",
    "root of the pod": POD % "{securityContext: {runAsNonRoot: false}}",
    "host port": OURS % "ports: [{name: probe, hostPort: 80}]",
    "network": POD % "{hostNetwork: true}",
    "names of hosts": POD % "{hostAliases: [{ip: 203.0.113.9, hostnames: [mlflow]}]}",
    "name server": POD % "{dnsPolicy: None, dnsConfig: {nameservers: [203.0.113.9]}}",
    "priority": POD % "{priorityClassName: system-cluster-critical}",
    "node": POD % "{nodeName: control-plane}",
    "grace": POD % "{terminationGracePeriodSeconds: 0}",
    "processes": POD % "{hostPID: true}",
    "memory": POD % "{hostIPC: true}",
    "sidecar": POD % "{containers: [{name: x, image: x}]}",
    "first step": POD % "{initContainers: [{name: x, image: x}]}",
    "apparmor": META % "annotations: {container.apparmor.security.beta.kubernetes.io/actor: unconfined}",
    "injector": META % "annotations: {vault.hashicorp.com/agent-inject: 'true'}",
    "network of a pod": META % "annotations: {k8s.v1.cni.cncf.io/networks: storage}",
    "ours otherwise": META % "annotations: {cluster-autoscaler.kubernetes.io/safe-to-evict: 'false'}",
    "label": META % "labels: {may-reach: database}",
    "finalizer": META % "finalizers: [example.org/never]",
    "probe of the node": OURS % "livenessProbe: {httpGet: {host: 127.0.0.1, port: 10255, path: /}}",
    "hook of the node": OURS % "lifecycle: {preStop: {tcpSocket: {host: 169.254.169.254, port: 80}}}",
}
CORE = {
    "command": "command: [python, -c, x]",
    "no command": "command: null",
    "arguments": "args: [--run-file=/etc/rlctl/run/run.json, --control=tcp:0.0.0.0:80]",
    "no arguments": "args: null",
    "hook": "lifecycle: {postStart: {exec: {command: [sh, -c, x]}}}",
    "startup": "startupProbe: {exec: {command: [sh, -c, x]}}",
    "probe": "livenessProbe: {httpGet: null, exec: {command: [sh, -c, x]}}",
    "readiness": "readinessProbe: {httpGet: {host: 169.254.169.254}}",
    "path": "env: [{name: PYTHONPATH, value: /volume/code}]",
    "startup file": "env: [{name: PYTHONSTARTUP, value: /volume/x.py}]",
    "library": "env: [{name: LD_PRELOAD, value: /volume/x.so}]",
    "API server": "env: [{name: KUBERNETES_SERVICE_HOST, value: 10.0.0.9}]",
    "home": "env: [{name: HOME, value: /volume}]",
    "folder": "workingDir: /volume/code",
}
"""Of a container with an image without code of the commit, in a pod that holds more than the others do."""
HARMLESS = {
    "mount that the server refuses": OURS % "volumeMounts: [{mountPath: /x}]",
    "command of who runs its code anyway": OURS % "command: [python, -X, faulthandler, -m, rlctl_agents, actor]",
    "patience": OURS % "livenessProbe: {timeoutSeconds: 30}",
    "place": POD % "{nodeSelector: {pool: cheap}, tolerations: [{operator: Exists}]}",
    "resources": OURS % "resources: {limits: {memory: 9Gi}}",
    "variable": OURS % "env: [{name: X, value: y}]",
    "folder": POD % "{volumes: [{name: x, emptyDir: {}}], containers: [{name: actor, %s}]}" % MOUNT,
    "size of a folder": POD % "{volumes: [{name: tmp, emptyDir: {sizeLimit: 9Gi}}]}",
    "annotation": "metadata: {annotations: {a: b}}",
}  # fmt: skip


def rendered(folder: Path, **fields: Any) -> tuple[Plan, Spec, list[Document]]:
    usual: dict[str, Any] = {
        "run": "pole", "env": {"id": "CartPole-v1"}, "algorithm": {"name": "impala"}, "target": "kubernetes",
        "images": dict.fromkeys(("core", "actor", "learner"), "registry.invalid/rlctl/none@sha256:" + "0" * 64),
    }  # fmt: skip
    spec = Spec.model_validate({**usual, **fields})
    plan = make(spec, uid="0" * 32, base=folder)
    return plan, spec, cluster_documents(plan, spec)


@cache
def unpatched() -> list[Document]:
    """Documents that a person's `up` sends, in a folder without patches."""
    return rendered(Path("/nowhere"))[2]


def patched(folder: Path, text: str, name: str = "actor.patch.yaml") -> tuple[Plan, Spec, list[Document]]:
    path = folder / "templates" / name
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return rendered(folder)


@pytest.mark.parametrize("what", RIGHTS)
def test_a_commit_gives_a_role_no_rights_but_a_person_does(tmp_path: Path, what: str) -> None:
    before = unpatched()
    plan, spec, after = patched(tmp_path, RIGHTS[what])
    with pytest.raises(BuildStopped, match="actor Deployment") as refusal:
        refuse(plan, spec, after, before)
    assert "rlctl up" in refusal.value.hint
    refuse(plan, spec, after, after)


@pytest.mark.parametrize(
    ("role", "what"), [*(("manager", what) for what in CORE), ("modelpool", "path"), ("tensorboard", "command")]
)
def test_a_commit_runs_nothing_where_its_code_does_not_run(tmp_path: Path, role: str, what: str) -> None:
    before = unpatched()
    text = OURS.replace("actor", role) % CORE[what]
    plan, spec, after = patched(tmp_path, text, f"{role}.patch.yaml")
    with pytest.raises(BuildStopped, match=f"{role} (StatefulSet|Deployment)"):
        refuse(plan, spec, after, before)
    refuse(plan, spec, after, after)


@pytest.mark.parametrize("role", ["manager", "modelpool", "tensorboard"])
def test_a_commit_says_where_what_is_not_its_code_runs_and_with_how_much(tmp_path: Path, role: str) -> None:
    before = unpatched()
    more = "resources: {limits: {memory: 9Gi}}}], nodeSelector: {pool: cheap}, tolerations: [{operator: Exists"
    plan, spec, after = patched(tmp_path, OURS.replace("actor", role) % more, f"{role}.patch.yaml")
    assert {one.text for one in after} != {one.text for one in before}
    refuse(plan, spec, after, before)


@pytest.mark.parametrize(
    ("patch", "named"),
    [
        (POD % "{volumes: [{name: volume, persistentVolumeClaim: null, emptyDir: {}}]}", "volume volume is emptyDir"),
        (POD % "{volumes: null}", "volume keys is taken away"),
        (OURS.replace("actor", "manager") % "volumeMounts: null", "mount /rlctl is taken away"),
        (OURS.replace("actor", "manager") % "volumeMounts: [{mountPath: /rlctl, name: tmp}]", "mount /rlctl is "),
    ],
)
def test_a_commit_takes_no_volume_away(tmp_path: Path, patch: str, named: str) -> None:
    before = unpatched()
    plan, spec, after = patched(tmp_path, patch, "manager.patch.yaml")
    with pytest.raises(BuildStopped, match=f"StatefulSet pole-manager: {named}"):
        refuse(plan, spec, after, before)
    refuse(plan, spec, after, after)


def test_what_a_person_has_said_of_pods_stays_while_commits_go_on(tmp_path: Path) -> None:
    before = patched(tmp_path, META % "annotations: {prometheus.io/scrape: 'true'}")[2]
    (tmp_path / "templates" / "manager.patch.yaml").write_text(OURS.replace("actor", "manager") % CORE["home"])
    before = rendered(tmp_path)[2]
    plan, spec, after = rendered(tmp_path, algorithm={"name": "impala", "lr": 0.5}, roles={"actor": {"cpu": 2}})
    assert {one.text for one in after} != {one.text for one in before}
    refuse(plan, spec, after, before)


@pytest.mark.parametrize("what", HARMLESS)
def test_a_commit_says_where_its_roles_run_and_with_how_much(tmp_path: Path, what: str) -> None:
    before = unpatched()
    plan, spec, after = patched(tmp_path, HARMLESS[what])
    assert {one.text for one in after} != {one.text for one in before}
    refuse(plan, spec, after, before)


def test_a_spec_that_changes_everything_that_a_spec_may_is_no_patch(tmp_path: Path) -> None:
    before = unpatched()
    image = "registry.invalid/rlctl/other@sha256:" + "1" * 64
    more = {"images": dict.fromkeys(("core", "actor", "learner"), image), "roles": {"actor": {"replicas": 1500}}}
    plan, spec, after = rendered(tmp_path, **more)
    assert {one.text for one in after} != {one.text for one in before}
    refuse(plan, spec, after, before)
    refuse(plan, spec, after, [])


def test_what_a_person_has_applied_stays_while_commits_go_on(tmp_path: Path) -> None:
    before = patched(tmp_path, RIGHTS["account"])[2]
    plan, spec, after = rendered(tmp_path, algorithm={"name": "impala", "lr": 0.5}, roles={"actor": {"replicas": 1500}})
    assert {one.text for one in after} != {one.text for one in before}
    refuse(plan, spec, after, before)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("manager.serviceaccount.patch.yaml", "metadata: {annotations: {eks.amazonaws.com/role-arn: admin}}"),
        ("run.networkpolicy.patch.yaml", "spec: {egress: [{}]}"),
    ],
)
def test_a_commit_alters_neither_accounts_nor_the_network(tmp_path: Path, name: str, text: str) -> None:
    before = unpatched()
    plan, spec, after = patched(tmp_path, text, name)
    with pytest.raises(BuildStopped, match="a push may not"):
        refuse(plan, spec, after, before)


def test_a_commit_replaces_no_template(tmp_path: Path) -> None:
    before = unpatched()
    ours = (templates() / "kubernetes" / "actor.yaml.j2").read_text()
    text = f"# copied from rlctl {__version__}\n" + ours.replace("revisionHistoryLimit: 5", "revisionHistoryLimit: 6")
    plan, spec, after = patched(tmp_path, text, "kubernetes/actor.yaml.j2")
    with pytest.raises(BuildStopped, match="template of its own"):
        refuse(plan, spec, after, before)


def test_a_commit_exposes_no_page_with_a_secret_of_its_choice(tmp_path: Path) -> None:
    before = unpatched()
    proxy = {"image": "registry.invalid/proxy@sha256:" + "2" * 64, "secret": "rlctl-ci-secrets"}
    section = {"expose": "loadbalancer", "source_ranges": ["10.0.0.0/8"], "proxy": proxy}
    plan, spec, after = rendered(tmp_path, kubernetes=section)
    with pytest.raises(BuildStopped, match="exposes a page"):
        refuse(plan, spec, after, before)


def test_a_commit_sends_the_managers_figures_nowhere_else() -> None:
    """With them go credentials that no code of the commit has."""

    def spec(uri: str | None, target: str = "kubernetes") -> Spec:
        trackers = {} if uri is None else {"mlflow": {"uri": uri}}
        images = dict.fromkeys(("core", "actor", "learner"), "registry.invalid/x@sha256:" + "0" * 64)
        return Spec.model_validate(
            {"run": "pole", "env": {"id": "CartPole-v1"}, "target": target, "images": images, "trackers": trackers}
        )

    here, there = "http://mlflow:5000", "https://elsewhere.example"
    before = spec(here).model_dump(mode="json")
    refuse_trackers(spec(here), before)
    refuse_trackers(spec(None), before)
    refuse_trackers(spec(there, "local"), before)
    for known in (before, spec(None).model_dump(mode="json")):
        with pytest.raises(BuildStopped, match=r"a push may not change this: trackers\.mlflow\.uri: https://else"):
            refuse_trackers(spec(there), known)


def test_a_commit_makes_no_volume_larger_which_a_rollback_could_not_undo() -> None:
    def spec(size: str, **storage: str) -> Spec:
        values = {"run": "pole", "target": "kubernetes", "env": {"id": "CartPole-v1"}}
        return Spec.model_validate({**values, "storage": {"size": size, **storage}})

    before = spec("50Gi").model_dump(mode="json")
    for same in ("50Gi", "51200Mi", "10Gi"):
        refuse_growth(spec(same), before)
    refuse_growth(spec("50Ti", claim="ours"), before)
    with pytest.raises(BuildStopped, match=r"a push may not change this: storage\.size: 50Ti, 50Gi as a person"):
        refuse_growth(spec("50Ti"), before)
