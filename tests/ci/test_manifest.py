"""The service on a cluster: one process, few rights, no root."""

from __future__ import annotations

import yaml

from rlctl_ci.manifest import manifest

OBJECTS = list(yaml.safe_load_all(manifest(namespace="team", image="r/x@sha256:" + "0" * 64, host="ci.example.org")))


def of(kind: str) -> dict:  # type: ignore[type-arg]
    return next(one for one in OBJECTS if one["kind"] == kind)


def test_it_may_neither_list_secrets_nor_make_pods_nor_use_a_wildcard() -> None:
    for rule in of("Role")["rules"]:
        assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"]
        if "secrets" in rule["resources"]:
            assert rule["verbs"] == ["get"]
        if "pods" in rule["resources"] or "persistentvolumeclaims" in rule["resources"]:
            assert not {"create", "delete"} & set(rule["verbs"])
        assert "pods/exec" not in rule["resources"]
    assert not [one for one in OBJECTS if one["kind"].startswith("Cluster")]


def test_it_runs_once_without_root_and_with_a_root_that_is_read_only() -> None:
    spec = of("StatefulSet")["spec"]
    assert spec["replicas"] == 1
    pod = spec["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    (container,) = pod["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert all(one["metadata"]["namespace"] == "team" for one in OBJECTS)
