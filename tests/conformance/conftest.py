"""Every sentence of this folder is run on each target: in memory, on this machine, on a cluster, real or in memory."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.local.machine import fakes_first
from tests.conformance.targets import Cluster, Local, Memory, Pretended, Target

WITHOUT = "NOT RUN: RLCTL_TEST_CONTEXT does not name the context of a cluster made for tests (make test-cluster does)"


@pytest.fixture(
    params=[
        "memory",
        "kubernetes-in-memory",
        pytest.param("local", marks=[pytest.mark.processes, pytest.mark.timeout(240)]),
        pytest.param("kubernetes", marks=[pytest.mark.cluster, pytest.mark.timeout(240)]),
    ]
)
def target(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Target]:
    """A target without any run of ours, in a state folder of the test's own."""
    with tempfile.TemporaryDirectory(prefix="rlctl-", dir="/tmp", ignore_cleanup_errors=True) as short:
        (Path(short) / "r").mkdir(mode=0o700)
        monkeypatch.setenv("XDG_STATE_HOME", short + "/state")
        monkeypatch.setenv("XDG_RUNTIME_DIR", short + "/r")
        if request.param == "local":
            monkeypatch.setenv("PYTHONPATH", fakes_first())
        if request.param == "kubernetes":
            yield from _on_cluster(monkeypatch, tmp_path)
            return
        made = {"memory": Memory, "kubernetes-in-memory": lambda: Pretended(tmp_path), "local": Local}
        found: Target = made[request.param]()
        try:
            yield found
        finally:
            found.clean()


def _on_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Target]:
    """A namespace of its own, for a user with rights in that namespace alone."""
    context = os.environ.get("RLCTL_TEST_CONTEXT")
    if not context:
        pytest.skip(WITHOUT)
    from rlctl.backends.kubernetes.backend import KubernetesBackend
    from tests.cluster.support.people import admit
    from tests.cluster.support.witness import Witness

    witness = Witness(context)
    witness.marker()  # ends the session on a cluster that was not made for tests
    namespace = f"rlctl-test-{secrets.token_hex(4)}"
    try:
        person = admit(witness, "ana", namespace, tmp_path / "ana")
        monkeypatch.setenv("KUBECONFIG", str(person.kubeconfig))
        yield Cluster(KubernetesBackend(None, namespace), person.home)
    finally:
        witness.delete("Namespace", namespace)
