"""What holds without a cluster: the document for administrators, and what counts as a write."""

from pathlib import Path

import pytest
import yaml

from rlctl.render.kubernetes import admin
from tests.cluster.contract import Contract
from tests.cluster.gateway import Request

DOCUMENT = Path(__file__).parents[2] / "docs/operations.md"


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
