"""Findings of `rlctl doctor` about a cluster."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from rlctl.backends.base import Check
from rlctl.backends.kubernetes.api.interface import ApiError
from rlctl.backends.kubernetes.apply.survey import DISPENSABLE
from rlctl.backends.kubernetes.preflight import doctor
from tests.backends.kubernetes.fakes.reads import NOW, Reads

CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
NAMESPACE = "/api/v1/namespaces/team-a"


def storage_class(name: str, provisioner: str, *, default: bool = False) -> dict[str, Any]:
    notes = {"storageclass.kubernetes.io/is-default-class": "true"} if default else {}
    return {"metadata": {"name": name, "annotations": notes}, "provisioner": provisioner}


def cluster(*classes: dict[str, Any]) -> Reads:
    api = Reads()
    api.answers = {
        CLASSES: {"items": list(classes) or [storage_class("cfs", "com.tencent.cloud.csi.cfs", default=True)]},
        NAMESPACE: {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}},
        "/apis": {"groups": [{"name": "apps"}, {"name": "kueue.x-k8s.io"}]},
    }
    return api


def check(api: Reads, name: str) -> Check:
    return next(each for each in doctor.checks(api, lambda: NOW) if each.name == name)


def verdict(api: Reads, name: str) -> tuple[str, str]:
    found = check(api, name)
    return found.verdict, found.text


def test_a_cluster_that_can_be_used_is_all_well() -> None:
    assert {each.verdict for each in doctor.checks(cluster(), lambda: NOW)} == {"ok"}


def test_a_problem_comes_with_what_to_do() -> None:
    api = cluster(storage_class("gp3", "ebs.csi.aws.com"))
    api.forbidden = {"create deployments"}
    wrong = [each for each in doctor.checks(api, lambda: NOW) if each.verdict == "problem"]

    assert [each.name for each in wrong] == ["rights", "storage"]
    assert all(each.next for each in wrong)


def test_a_server_that_does_not_answer_is_the_only_thing_told() -> None:
    class Away(Reads):
        def version(self) -> str:
            raise ApiError("connection refused", status=0)

    found = doctor.checks(Away(), lambda: NOW)

    assert [(each.name, each.verdict) for each in found] == [("access", "problem")]
    where = "https://127.0.0.1:6443 (context test, namespace team-a)"
    assert found[0].text == f"{where} does not answer: connection refused"


@pytest.mark.parametrize(
    ("version", "told"),
    [("v1.34.1", "ok"), ("v1.20.2", "warning"), ("v1.99.0", "warning"), ("v1.30.4-eks-2d5f260", "ok")],
)
def test_a_version_outside_what_was_tried_is_a_warning(version: str, told: str) -> None:
    api = cluster()
    api.server_version = version

    assert check(api, "version").verdict == told


def test_a_namespace_that_is_missing_is_named() -> None:
    api = cluster()
    del api.answers[NAMESPACE]

    assert verdict(api, "namespace") == ("problem", "there is no namespace team-a")


def test_what_may_not_be_read_is_not_checked() -> None:
    api = cluster()
    api.answers = dict.fromkeys((CLASSES, NAMESPACE, "/apis"), ApiError("no", status=403))
    api.refused = {"ResourceQuota"}

    told = {each.name: each.verdict for each in doctor.checks(api, lambda: NOW)}

    assert {name for name, verdict in told.items() if verdict == "not checked"} == {
        "pod security", "storage", "quota", "extensions",
    }  # fmt: skip


def test_every_missing_right_is_told_at_once() -> None:
    api = cluster()
    api.forbidden = {"create deployments", "patch deployments", "get pods/portforward"}

    assert verdict(api, "rights") == (
        "problem",
        "you may not get pods/portforward; create, patch deployments in namespace team-a",
    )


def test_a_right_that_is_only_missed_at_the_end_is_a_warning() -> None:
    api = cluster()
    api.forbidden = {"create roles", "create rolebindings"}
    found = [each for each in doctor.checks(api, lambda: NOW) if each.verdict == "warning"]

    assert [each.text for each in found] == [
        "you may not create roles, rolebindings: finished runs keep their pods until `rlctl down`"
    ]


def test_without_the_right_to_make_pods_models_of_a_run_taken_down_are_missed() -> None:
    api = cluster()
    api.forbidden = {"create pods"}
    found = [each for each in doctor.checks(api, lambda: NOW) if each.verdict == "warning"]

    assert [each.text for each in found] == [
        "you may not create pods: files of a run that is taken down, such as its models, cannot be had"
    ]


def test_without_the_right_to_watch_pods_folders_of_a_claim_stay() -> None:
    api = cluster()
    api.forbidden = {"watch pods"}
    found = [each for each in doctor.checks(api, lambda: NOW) if each.verdict == "warning"]

    assert [each.text for each in found] == [
        "you may not watch pods: `down --volumes` cannot remove what a run has written to a claim of yours"
    ]


@pytest.mark.parametrize(
    ("kind", "resource"), [("ServiceAccount", "serviceaccounts"), ("Role", "roles"), ("RoleBinding", "rolebindings")]
)
def test_only_what_up_does_without_is_no_problem(kind: str, resource: str) -> None:
    api = cluster()
    api.forbidden = {f"{verb} {resource}" for verb in ("get", "list", "create", "patch", "delete")}

    wrong = [each for each in doctor.checks(api, lambda: NOW) if each.verdict == "problem"]

    assert bool(wrong) == (kind not in DISPENSABLE)


def test_a_server_that_does_not_tell_rights_is_not_checked() -> None:
    api = cluster()
    api.mute = True

    assert check(api, "rights").verdict == "not checked"


@pytest.mark.parametrize(
    ("classes", "told", "text"),
    [
        ([("cfs", "com.tencent.cloud.csi.cfs", True)], "ok",
         "classes that share between nodes: cfs (CFS); default: cfs"),
        (
            [("gp3", "ebs.csi.aws.com", True), ("efs", "efs.csi.aws.com", False)],
            "warning",
            "the default class gp3 does not share between nodes; these do: efs (EFS)",
        ),
        ([("gp3", "ebs.csi.aws.com", True)], "problem", "no storage class shares between nodes: gp3 (EBS)"),
        (
            [("own", "example.com/disk", True)],
            "not checked",
            "whether these classes share between nodes is not known to rlctl: own (by example.com/disk); default: own",
        ),
        ([("hand", "kubernetes.io/no-provisioner", True)], "not checked",
         "whether these classes share between nodes is not known to rlctl: hand (by kubernetes.io/no-provisioner);"
         " default: hand"),
        ([("fs", "rook-ceph.cephfs.csi.ceph.com", True)], "ok",
         "classes that share between nodes: fs (rook-ceph.cephfs.csi.ceph.com); default: fs"),
    ],
)  # fmt: skip
def test_a_class_that_shares_between_nodes_is_looked_for(
    classes: list[tuple[str, str, bool]], told: str, text: str
) -> None:
    api = cluster(*(storage_class(name, provisioner, default=default) for name, provisioner, default in classes))

    assert verdict(api, "storage") == (told, text)


@pytest.mark.parametrize(
    ("mode", "phase", "told"),
    [("ReadWriteMany", "Bound", "ok"), ("ReadWriteMany", "Pending", "problem"), ("ReadWriteOnce", "Bound", "problem")],
)
def test_a_claim_of_the_team_does_where_no_class_shares(mode: str, phase: str, told: str) -> None:
    api = cluster(storage_class("gp3", "ebs.csi.aws.com", default=True))
    claim = {"metadata": {"name": "team"}, "spec": {"accessModes": [mode]}, "status": {"phase": phase}}
    api.objects.append({"kind": "PersistentVolumeClaim", **claim})

    found = check(api, "storage")

    assert found.verdict == told
    assert found.text.startswith("no storage class shares between nodes: gp3 (EBS)")
    assert found.text.endswith("claims that do, for storage.claim: team") == (told == "ok")


@pytest.mark.parametrize(
    ("used", "told", "text"),
    [
        ("12", "ok", "quota team: pods 12 of 100, requests.memory 1.5Gi of 2Gi used"),
        ("95", "warning", "quota team: pods 95 of 100, requests.memory 1.5Gi of 2Gi used; little is left of pods"),
        ("100", "problem", "quota team: pods 100 of 100, requests.memory 1.5Gi of 2Gi used; nothing is left of pods"),
    ],
)
def test_a_quota_is_shown_with_what_is_left_of_it(used: str, told: str, text: str) -> None:
    api = cluster()
    api.objects.append({
        "kind": "ResourceQuota", "metadata": {"name": "team"},
        "status": {
            "hard": {"pods": "100", "requests.memory": "2Gi"}, "used": {"pods": used, "requests.memory": "1536Mi"},
        },
    })  # fmt: skip

    assert verdict(api, "quota") == (told, text)


def test_a_quota_that_counts_other_pods_is_none_of_ours() -> None:
    api = cluster()
    status = {"hard": {"pods": "0"}, "used": {"pods": "0"}}
    named = {"kind": "ResourceQuota", "metadata": {"name": "team"}, "spec": {"scopes": ["BestEffort"]}}
    api.objects.append({**named, "status": status})
    assert verdict(api, "quota") == ("not checked", "quota team counts some pods only (scopes)")


def test_a_namespace_that_is_being_deleted_is_a_problem() -> None:
    api = cluster()
    api.answers[NAMESPACE] = {"metadata": {}, "status": {"phase": "Terminating"}}
    assert verdict(api, "namespace") == (
        "problem", "namespace team-a is being deleted: nothing can be created in it"
    )  # fmt: skip


def test_a_check_that_the_server_breaks_off_does_not_take_the_others_away(monkeypatch: pytest.MonkeyPatch) -> None:
    api = cluster()

    def may(verb: str, resource: str, **of: str) -> bool:
        raise ApiError("too many requests", status=429)

    monkeypatch.setattr(api, "may", may)
    found = {each.name: each for each in doctor.checks(api, lambda: NOW)}
    assert (found["rights"].verdict, found["rights"].text) == ("not checked", "too many requests")
    assert found["storage"].verdict == "ok"


@pytest.mark.parametrize(
    ("hard", "used", "told"),
    [
        ({"services.nodeports": "0", "requests.nvidia.com/gpu": "0", "persistentvolumeclaims": "0"}, {}, "ok"),
        ({"requests.nvidia.com/gpu": "4"}, {"requests.nvidia.com/gpu": "4"}, "warning"),
        ({"count/deployments.apps": "0"}, {}, "problem"),
        ({"limits.memory": "1Gi", "services.nodeports": "0"}, {"limits.memory": "1Gi"}, "problem"),
    ],
)
def test_a_quota_of_what_a_run_can_do_without_is_no_problem(
    hard: dict[str, str], used: dict[str, str], told: str
) -> None:
    api = cluster()
    quota = {"kind": "ResourceQuota", "metadata": {"name": "team"}, "status": {"hard": hard, "used": used}}
    api.objects.append(quota)

    assert check(api, "quota").verdict == told


@pytest.mark.parametrize(("off_s", "told"), [(0, "ok"), (20, "ok"), (90, "warning"), (-90, "warning")])
def test_a_clock_that_is_wrong_is_a_warning(off_s: int, told: str) -> None:
    api = cluster()
    api.server_time = NOW + timedelta(seconds=off_s)

    assert check(api, "clock").verdict == told
