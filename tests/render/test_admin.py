"""Objects that an administrator sends once."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlctl.render import templates
from rlctl.render.kubernetes import admin
from tests.render.cluster import Run


def objects(user: str = "ann") -> list[dict[str, Any]]:
    return [yaml.safe_load(document.text) for document in admin("team", user)]


def test_the_namespace_refuses_pods_that_are_not_restricted() -> None:
    namespace = next(it for it in objects() if it["kind"] == "Namespace")
    assert namespace["metadata"]["name"] == "team"
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


@pytest.mark.parametrize(
    ("user", "subject"),
    [
        ("ann", {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "ann"}),
        ("system:serviceaccount:ci:rlctl", {"kind": "ServiceAccount", "namespace": "ci", "name": "rlctl"}),
        ('a"\n: b', {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": 'a"\n: b'}),
    ],
)
def test_the_rights_go_to_the_user_that_was_named(user: str, subject: dict[str, str]) -> None:
    binding = next(it for it in objects(user) if it["kind"] == "RoleBinding")
    assert binding["subjects"] == [subject]
    assert binding["metadata"]["namespace"] == "team"


def test_a_users_rights_name_verbs_and_kinds_one_by_one_and_list_no_secrets() -> None:
    (role,) = [it for it in objects() if it["kind"] == "Role"]
    for rule in role["rules"]:
        assert "*" not in (*rule["apiGroups"], *rule["resources"], *rule["verbs"])
        if "secrets" in rule["resources"]:
            assert not {"list", "watch"} & set(rule["verbs"])


def test_the_page_for_operators_shows_the_rules_as_they_are() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    shown = page.partition("```yaml\nrules:\n")[2].partition("```")[0]
    rules = (templates() / "kubernetes" / "admin" / "access.yaml.j2").read_text().partition("rules:\n")[2]
    assert shown == rules.partition("---\n")[0]


def test_a_users_rights_cover_everything_that_a_run_is_made_of(run: Run) -> None:
    (role,) = [it for it in objects() if it["kind"] == "Role"]
    allowed = {each for rule in role["rules"] for each in product(rule["apiGroups"], rule["resources"], rule["verbs"])}
    for it in run.objects:
        group = it["apiVersion"].rpartition("/")[0]
        kind = it["kind"].lower()
        plural = kind[:-1] + "ies" if kind.endswith("y") else f"{kind}s"
        assert {(group, plural, verb) for verb in ("get", "list", "create", "patch", "delete")} <= allowed
        for rule in it.get("rules", ()):  # nobody can give what they do not have
            assert set(product(rule["apiGroups"], rule["resources"], rule["verbs"])) <= allowed


def test_actors_displace_nobody_and_are_displaced_by_everybody() -> None:
    (found,) = [it for it in objects() if it["kind"] == "PriorityClass"]
    assert found["metadata"]["name"] == "rlctl-actor"
    assert found["value"] < 0
    assert found["preemptionPolicy"] == "Never"


def test_each_subject_has_a_binding_of_its_own() -> None:
    told = [
        admin("team", "ann"),
        admin("team", "bob"),
        admin("team", group="ann"),
        admin("team", "a/b"),
        admin("team", "a-b"),
    ]
    names = {next(document.name for document in each if "rolebinding" in document.name) for each in told}
    assert len(names) == len(told)
