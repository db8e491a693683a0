"""The service on a cluster: one process, no root, and the rights that a redeploy of its runs needs, and no others."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlctl.backends.kubernetes.api.interface import KINDS, ApiError, Key
from rlctl.errors import UsageError
from rlctl_ci.config.manifest import manifest
from rlctl_ci.config.settings import Config
from tests.backends.kubernetes.fakes.lab import IMAGES, Lab
from tests.cli.conftest import Rlctl, rlctl
from tests.render.cluster import LONGEST, VARIATIONS, Run, spec_of

__all__ = ["rlctl"]

IMAGE = "r/x@sha256:" + "0" * 64
HOST = "ci.example.org"


def about(*runs: str, **fields: Any) -> Config:
    """A service on a cluster that redeploys these."""
    project = {
        "forge": "github", "repository": "https://github.com/t/p.git", "secret_file": "/s", "target": "kubernetes",
        "registry": "registry.example.org:5000/team", **fields,
    }  # fmt: skip
    projects = {run: {"run": run, **project} for run in runs}
    return Config.model_validate({"listen": "0.0.0.0:8710", "hosts": [HOST], "behind_tls": True, "projects": projects})


def objects(config: Config, **more: Any) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(manifest(config, **{"namespace": "team", "image": IMAGE, "host": HOST, **more})))


OBJECTS = objects(about("pole", "other"))


def of(kind: str, found: list[dict[str, Any]] = OBJECTS) -> dict[str, Any]:
    return next(one for one in found if one["kind"] == kind)


class Rights:
    """A Role, asked as an API server does."""

    def __init__(self, *runs: str) -> None:
        self.rules = of("Role", objects(about(*runs)))["rules"]

    def may(self, verb: str, group: str, resource: str, name: str = "") -> bool:
        return any(
            verb in rule["verbs"] and group in rule["apiGroups"] and resource in rule["resources"]
            and ("resourceNames" not in rule or name in rule["resourceNames"])
            for rule in self.rules
        )  # fmt: skip

    def may_all(self, verbs: Collection[str], kind: str, name: str = "") -> bool:
        about = KINDS[kind]
        group = about.api_version.rpartition("/")[0]
        return all(self.may(verb, group, about.plural, name) for verb in verbs)


def test_it_may_neither_list_secrets_nor_make_pods_nor_use_a_wildcard() -> None:
    for rule in of("Role")["rules"]:
        assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"]
        if "secrets" in rule["resources"]:
            assert rule["verbs"] == ["get"]
        if "pods" in rule["resources"] or "persistentvolumeclaims" in rule["resources"]:
            assert not {"create", "delete"} & set(rule["verbs"])
        assert "pods/exec" not in rule["resources"]
    assert not [one for one in OBJECTS if one["kind"].startswith("Cluster")]


def test_whatever_can_be_told_by_name_is_of_its_runs_alone() -> None:
    rights = Rights("pole", "other")
    assert rights.may_all(["get"], "Secret", "pole-keys-core")
    assert rights.may_all(["patch", "delete"], "Deployment", "other-actor-99")
    assert rights.may("create", "", "pods/portforward", "pole-manager-0")
    foreign = ("", "third-manager", "third-actor-0", "third-keys-core", "rlctl-ci", "rlctl-ci-secrets", "third-lock")
    for name in foreign:
        assert not rights.may_all(["get"], "Secret", name)
        assert not rights.may("create", "", "pods/portforward", name)
        for kind in KINDS:
            for verb in ("patch", "delete", "update", "create"):
                free = kind == "ConfigMap" or (kind, verb) == ("Lease", "create")
                assert rights.may_all([verb], kind, name) == free, f"{verb} {kind} {name}"
    for kind in ("StatefulSet", "Service", "PersistentVolumeClaim", "Secret", "Role", "NetworkPolicy"):
        assert not rights.may_all(["create"], kind, "pole-manager")
        assert not rights.may_all(["delete"], kind, "pole-manager"), "what makes a run is not removed with its name"


@pytest.mark.parametrize("name", VARIATIONS)
def test_every_object_of_a_run_can_be_changed(name: str) -> None:
    run = Run(spec_of(**VARIATIONS[name]))
    rights = Rights(run.spec.run)
    for one in run.objects:
        assert rights.may_all(["get", "list", "patch"], one["kind"], one["metadata"]["name"])
    for rule in run.of("Role")[0]["rules"]:  # nobody gives by a role what they do not have
        for called in rule["resourceNames"]:
            assert rights.may("patch", "apps", rule["resources"][0], called)


@pytest.fixture
def refused(lab: Lab) -> list[str]:
    """Requests that the service may not make for a run that a person started; from then on it has its rights alone."""
    lab.up()
    lab.settle()
    rights, found = Rights("pong"), list[str]()

    def refuse(method: str, key: Key) -> ApiError | None:
        if key.kind not in KINDS:
            return None
        listed = ["list"] if key.kind in ("Event", "ResourceQuota") else ["list", "watch"]
        verbs = {"GET": ["get"] if key.name else listed, "PATCH": ["patch"], "PUT": ["update"]}.get(method)
        verbs = verbs or [{"POST": "create", "DELETE": "delete"}[method]]
        if method == "PATCH" and key not in lab.api.objects:
            verbs = ["patch", "create"]  # of which the server knows the name then
        if rights.may_all(verbs, key.kind, "" if method == "POST" else key.name):
            return None
        found.append(f"{method} {key}")
        return ApiError(f"{key} is forbidden", status=403, key=key)

    lab.api.refuse = refuse
    return found


def test_its_rights_are_enough_to_redeploy_to_watch_and_to_go_back(lab: Lab, refused: list[str]) -> None:
    lab.up(images={"actor": IMAGES["actor"].replace("ab", "cd"), "learner": IMAGES["learner"].replace("ab", "cd")})
    lab.up(roles={"actor": {"max_replicas": 1500}}, algorithm={"name": "impala", "lr": 0.01})
    assert Key("Deployment", "pong-actor-1") in lab.api.objects, "it may need more Deployments of actors"
    lab.settle()
    lab.up(roles={"actor": {"max_replicas": 500}})
    assert Key("Deployment", "pong-actor-1") not in lab.api.objects, "and fewer"
    lab.scale(actor=3)
    backend = lab.backend()
    assert backend.find("pong") is not None
    assert backend.processes("pong")
    assert backend.documents("pong")
    assert len(backend.revisions("pong")) == 4
    list(backend.rollback("pong", 1))
    assert refused == []


def test_it_reaches_names_servers_forges_and_registries_and_no_metadata_of_a_cloud() -> None:
    config = about("pole", repository="ssh://git@git.example.org:2222/p.git", sets=[f"images.core=r:5443/{IMAGE}"])
    policy = of("NetworkPolicy", objects(config))["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    anywhere = [port["port"] for rule in policy["egress"] if "to" not in rule for port in rule["ports"]]
    assert anywhere == [53, 53, 443, 2222, 5000, 5443, 6443]
    assert [rule["to"] for rule in policy["egress"] if "to" in rule] == [[{"namespaceSelector": {}}]]


def test_it_runs_once_without_root_and_with_a_root_that_is_read_only() -> None:
    spec = of("StatefulSet")["spec"]
    assert spec["replicas"] == 1
    pod = spec["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    (container,) = pod["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert all(one["metadata"]["namespace"] == "team" for one in OBJECTS)


def test_a_service_in_a_namespace_of_its_own_has_its_rights_in_that_of_the_runs() -> None:
    found = objects(about("pole", namespace="team"), own="ci")
    assert {one["kind"] for one in found if one["metadata"]["namespace"] == "team"} == {"Role", "RoleBinding"}
    assert of("RoleBinding", found)["subjects"][0]["namespace"] == "ci"
    with pytest.raises(UsageError, match="in namespace team"):
        objects(about("pole"), own="ci")


def test_its_volume_and_the_logins_of_its_image_are_what_a_cluster_has() -> None:
    claim = of("PersistentVolumeClaim")["spec"]
    assert claim == {"accessModes": ["ReadWriteOncePod"], "resources": {"requests": {"storage": "20Gi"}}}
    found = objects(about("pole"), size="50Gi", storage_class="ssd", pull_secrets=["house"])
    claim = of("PersistentVolumeClaim", found)["spec"]
    assert (claim["storageClassName"], claim["resources"]["requests"]["storage"]) == ("ssd", "50Gi")
    assert of("StatefulSet", found)["spec"]["template"]["spec"]["imagePullSecrets"] == [{"name": "house"}]


@pytest.mark.parametrize(("fields", "memory"), [({}, "3072Mi"), ({"limits": {"git_memory_mib": 4096}}, "9216Mi")])
def test_its_memory_is_enough_for_all_builds_at_once_whatever_their_commits_ask_for(
    fields: dict[str, Any], memory: str
) -> None:
    pod = of("StatefulSet", objects(about("pole", "other", **fields)))["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"]["limits"]["memory"] == memory
    three = about("pole").model_copy(update={"builds": 3})
    pod = of("StatefulSet", objects(three))["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"]["limits"]["memory"] == "4352Mi"


def test_files_without_a_name_lie_on_its_volume() -> None:
    (container,) = of("StatefulSet")["spec"]["template"]["spec"]["containers"]
    environ = {one["name"]: one["value"] for one in container["env"]}
    mounts = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
    assert mounts[environ["TMPDIR"]] == "state"


def test_probes_wait_for_a_service_that_is_busy() -> None:
    (container,) = of("StatefulSet")["spec"]["template"]["spec"]["containers"]
    assert [container[probe]["timeoutSeconds"] for probe in ("readinessProbe", "livenessProbe")] == [5, 10]


@pytest.mark.parametrize(
    ("fields", "words"), [({"image": "r/x:1"}, "needs a digest"), ({"size": "50"}, "with its unit")]
)
def test_an_image_without_a_digest_and_a_size_without_a_unit_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        objects(about("pole"), **fields)


def test_a_run_with_the_longest_name_has_rights_of_its_own() -> None:
    assert Rights(LONGEST).may_all(["patch"], "StatefulSet", f"{LONGEST}-manager")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"listen": "127.0.0.1:8710"}, "no client reaches a pod there"),
        ({"hosts": ["else"]}, "hosts: has no ci.example.org"),
        ({"projects": {}}, "no project has target: kubernetes"),
    ],
)
def test_a_pod_that_would_not_work_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        objects(about("pole").model_copy(update=fields))
    with pytest.raises(UsageError, match="in namespace team"):
        objects(about("pole", namespace="another"))


def test_the_manifest_is_of_the_runs_that_ci_yaml_names(
    rlctl: Rlctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ci.yaml").write_text(yaml.safe_dump(about("pole").model_dump(mode="json", exclude_unset=True)))
    asked = ("ci", "manifest", "-n", "team", "--image", IMAGE, "--host", HOST)
    done = rlctl(*asked)
    assert done.code == 0, done.err
    assert done.out == manifest(about("pole"), namespace="team", image=IMAGE, host=HOST)
    done = rlctl(*asked, "--size", "50Gi", "--storage-class", "ssd", "--pull-secret", "a", "--pull-secret", "b")
    more: dict[str, Any] = {"size": "50Gi", "storage_class": "ssd", "pull_secrets": ["a", "b"]}
    assert done.out == manifest(about("pole"), namespace="team", image=IMAGE, host=HOST, **more)
