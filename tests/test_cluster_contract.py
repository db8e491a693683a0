"""Checks without a cluster: the document for administrators, what counts as a write, and the tally of workers."""

import re
from pathlib import Path

import pytest
import yaml

from rlctl.render.kubernetes import admin
from tests.cluster.support.contract import Contract
from tests.cluster.support.gateway import Request
from tests.cluster.support.telling import Tally

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs/operations.md"


def test_operations_shows_the_role_that_render_admin_prints() -> None:
    printed = [yaml.safe_load(document.text) for document in admin("team", "ana")]
    (role,) = [document for document in printed if document["kind"] == "Role"]
    blocks = DOCUMENT.read_text().split("```yaml\n")[1:]
    (shown,) = [block for block in blocks if block.startswith("rules:")]
    assert yaml.safe_load(shown.partition("```")[0]) == {"rules": role["rules"]}


@pytest.mark.parametrize(
    ("method", "path", "writes"),
    [
        ("GET", "/api/v1/namespaces/a/pods", False),
        ("POST", "/api/v1/namespaces/a/secrets", True),
        ("PATCH", "/apis/apps/v1/namespaces/a/deployments/x?fieldManager=rlctl&dryRun=All", False),
        ("PATCH", "/apis/apps/v1/namespaces/a/deployments/x?fieldManager=rlctl", True),
        ("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", False),
        ("POST", "/api/v1/namespaces/a/pods/x/portforward", False),
        ("DELETE", "/api/v1/namespaces/a/pods/x", True),
        ("POST", "/apis/coordination.k8s.io/v1/namespaces/a/leases", True),
        ("PUT", "/apis/coordination.k8s.io/v1/namespaces/a/leases/x", False),
    ],
)
def test_a_write_is_what_changes_something(method: str, path: str, writes: bool) -> None:
    assert Request(method, path).writes == writes


def test_a_cluster_is_taken_at_its_word() -> None:
    bare = Contract("test", "", "", {"nodes": "0", "fakeNodes": "20", "readWriteMany": "true"})
    assert {need for need in ("rwx", "fake_nodes", "nodes", "policy", "registry", "disturb") if bare.has(need)} == {
        "rwx", "fake_nodes",
    }  # fmt: skip
    assert Contract("test", "localhost:5000", "", {"nodes": "2"}).has("two_nodes")


def test_the_tally_of_a_session_is_the_sum_of_its_workers() -> None:
    workers = [Tally("cluster test: nodes 2", figures=[f"figure {number}"]) for number in (1, 2)]
    for worker in workers:
        worker.ended["api", "passed"] += 2
        worker.seconds["api"] += 1.5
    workers[1].ended["smoke", "missing"] += 1
    workers[1].missing.append(("rwx", "a test"))
    told = Tally()
    for packed in [*(worker.packed() for worker in workers), None]:
        told.add(packed)
    assert [line.split() for line in told.lines()] == [
        ["cluster", "test:", "nodes", "2"],
        ["tier", "passed", "failed", "not", "run", "seconds"],
        ["api", "4", "0", "0", "3"],
        ["smoke", "0", "0", "1", "0"],
        ["faults", "0", "0", "0", "0"],
        ["scale", "0", "0", "0", "0"],
        ["NOT", "RUN,", "this", "cluster", "lacks", "volumes", "that", "several", "nodes", "write", "(readWriteMany):"],
        ["a", "test"],
        ["figure", "1"],
        ["figure", "2"],
    ]


def test_make_looks_for_tests_of_a_cluster_wherever_there_are_some() -> None:
    (looked,) = re.findall(r"^CLUSTER_TESTS := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    marked = re.compile(r"\bmark\.(cluster|api|smoke|faults|scale)\b")
    for path in (ROOT / "tests").rglob("*.py"):
        if marked.search(path.read_text()):
            assert any(path.is_relative_to(ROOT / place) for place in looked.split()), path
