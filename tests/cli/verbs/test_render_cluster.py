"""`render` and `diff` for a cluster: what is sent, without one; and what it would change, by the cluster's own word."""

import pytest
import yaml

from tests.cli.clusters import Clusters
from tests.cli.conftest import Rlctl


@pytest.fixture
def clusters(rlctl: Rlctl) -> Clusters:
    return Clusters(rlctl)


def test_render_asks_no_cluster_and_is_the_same_twice(rlctl: Rlctl, clusters: Clusters) -> None:
    first = rlctl("render", clusters.spec)
    assert first.code == 0
    assert first.out == rlctl("render", clusters.spec).out
    assert clusters.made == {}
    assert rlctl("render", clusters.spec, "-o", "json").json["uid"] == "0" * 32


def test_what_render_prints_is_one_stream_for_kubectl(rlctl: Rlctl, clusters: Clusters) -> None:
    objects = [each for each in yaml.safe_load_all(rlctl("render", clusters.spec).out) if each]
    assert {"StatefulSet", "Deployment", "Service", "NetworkPolicy"} <= {each["kind"] for each in objects}
    assert all("namespace" not in each["metadata"] for each in objects)


def test_render_prints_exactly_what_up_sends_with_the_uid_of_the_index(rlctl: Rlctl, clusters: Clusters) -> None:
    clusters.up()
    sent = {document.name: document.text for document in clusters.here.documents("pole")}
    clusters.made.clear()  # the cluster is away
    printed = rlctl("render", clusters.spec, "-o", "json").json["documents"]
    assert {document["name"]: document["text"] for document in printed} == sent
    assert clusters.made == {}


def test_render_may_be_limited_to_a_role(rlctl: Rlctl, clusters: Clusters) -> None:
    assert rlctl("render", rlctl.spec, "--role", "learner").code == 0
    limited = rlctl("render", clusters.spec, "--role", "learner", "-o", "json").json["documents"]
    assert {document["role"] for document in limited} == {"learner"}


def test_what_an_administrator_creates_needs_a_namespace_and_no_spec(rlctl: Rlctl, clusters: Clusters) -> None:
    result = rlctl("render", "--admin", "-n", "team", "--user", "ada")
    assert result.code == 0
    objects = [each for each in yaml.safe_load_all(result.out) if each]
    assert {"Namespace", "PriorityClass"} <= {each["kind"] for each in objects}
    assert "ada" in result.out
    assert clusters.made == {}
    assert rlctl("render", "--admin", "--user", "ada").code == 2
    assert rlctl("render", "--admin", "-n", "team", "--user", "ada", clusters.spec).code == 2
    assert rlctl("render", clusters.spec, "--user", "ada").code == 2
    assert rlctl("render", "--admin", "-n", "team").code == 2, "nobody is let in whom nobody has named"
    assert "-n goes with --admin" in rlctl("render", "-n", "team", clusters.spec).err
    assert rlctl("render", "--admin", "-n", "team", "--user", "ada", "--group", "rl").code == 2
    told = rlctl("render", "--admin", "-n", "team", "--group", "rl", "-o", "json").json
    (binding,) = [yaml.safe_load(each["text"]) for each in told["documents"] if "rolebinding" in each["name"]]
    assert binding["subjects"] == [{"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": "rl"}]


def test_diff_right_after_up_is_0_and_of_a_change_1(rlctl: Rlctl, clusters: Clusters) -> None:
    new = rlctl("diff", clusters.spec)
    assert new.code == 1
    assert any(line.startswith("+ ") for line in new.out.splitlines())
    clusters.up()
    same = rlctl("diff", clusters.spec)
    assert (same.code, same.out) == (0, "")
    changed = rlctl("diff", clusters.spec, "--set", "algorithm.lr=2e-3", "-o", "json")
    assert changed.code == 1
    assert changed.json["changes"][0]["action"] == "restart"
    touched = [each for each in changed.json["objects"] if each["what"] != "same"]
    assert touched
    assert all("learner" in each["object"] for each in touched)


def test_diff_says_first_what_is_restarted_and_then_object_by_object(rlctl: Rlctl, clusters: Clusters) -> None:
    clusters.up()
    lines = rlctl("diff", clusters.spec, "--set", "algorithm.lr=2e-3").out.splitlines()
    assert lines[0] == "restart learner    algorithm.lr: 0.001 -> 0.002"
    assert any(line.startswith(("~ ", "+ ")) for line in lines[1:])


def test_diff_on_a_cluster_that_does_not_answer_is_4(rlctl: Rlctl, clusters: Clusters) -> None:
    clusters.up()
    clusters.here.unreachable = True
    assert rlctl("diff", clusters.spec).code == 4


@pytest.mark.parametrize("namespace", ["Bad_Ns", "-a", "a" * 64, "a.b"])
def test_what_can_be_no_namespace_is_refused_before_anything_is_printed(
    rlctl: Rlctl, clusters: Clusters, namespace: str
) -> None:
    for verb in (["render", "--admin", "--user", "ada"], ["up", clusters.spec, "--dry-run", "client"]):
        result = rlctl(*verb, f"--namespace={namespace}")
        assert (result.code, result.out) == (2, "")
        assert f"-n {namespace!r} is no name of a namespace" in result.err
