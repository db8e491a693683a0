"""Which cluster the tests may do as they like with, and what it can.

RLCTL_TEST_CONTEXT   a kube context whose cluster carries the ConfigMap kube-system/rlctl-test-cluster
RLCTL_TEST_REGISTRY  host:port to push to without a certificate, and to pull from inside the cluster; may be missing
RLCTL_TEST_CLUSTER   a command with up, down, cut, mend, freeze, thaw, restart; may be missing
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pytest

MARKER: Final = "rlctl-test-cluster"
TIERS: Final[Mapping[str, str]] = {
    "api": "control plane only: what rlctl writes, reads and says",
    "smoke": "trains on real pods (minutes)",
    "faults": "nodes, pods and the API server are disturbed (minutes)",
    "scale": "thousands of actors on fake nodes (minutes)",
}
NEEDS: Final[Mapping[str, str]] = {
    "rwx": "volumes that several nodes write (readWriteMany)",
    "policy": "an enforced NetworkPolicy (networkPolicy)",
    "psa": "Pod Security admission (podSecurity)",
    "nodes": "a node that runs containers (nodes: 1 or more)",
    "two_nodes": "two nodes that run containers (nodes: 2 or more)",
    "fake_nodes": "fake nodes for 10,000 pods, and no real ones (fakeNodes: 10 or more, nodes: 0)",
    "registry": "a registry and a builder of images (RLCTL_TEST_REGISTRY)",
    "buildah": "buildah on this machine",
    "disturb": "a command that disturbs the cluster (RLCTL_TEST_CLUSTER)",
}
"""Needs of tests, each a mark of its own; those that a cluster lacks are told at the end, and count as not run."""


@dataclass(frozen=True, slots=True)
class Contract:
    """Promises of the environment."""

    context: str
    registry: str
    command: str
    marker: Mapping[str, str]  # data of the ConfigMap

    def number(self, key: str) -> int:
        return int(self.marker.get(key) or 0)

    def has(self, need: str) -> bool:
        """Whether a test that needs this can run here."""
        return {
            "rwx": self.marker.get("readWriteMany") == "true",
            "policy": self.marker.get("networkPolicy") == "true",
            "psa": self.marker.get("podSecurity") == "true",
            "nodes": self.number("nodes") >= 1,
            "two_nodes": self.number("nodes") >= 2,
            "fake_nodes": self.number("fakeNodes") >= 10 and self.number("nodes") == 0,
            "registry": bool(self.registry),
            "buildah": shutil.which("buildah") is not None,
            "disturb": bool(self.command),
        }[need]

    def told(self, version: str) -> str:
        """A line for people."""
        has = ", ".join(f"{key} {value}" for key, value in sorted(self.marker.items()))
        return f"cluster {self.context}, Kubernetes {version}: {has}"

    def disturb(self, *words: str) -> None:
        """`cut n2`, `mend n2`, `freeze kube-apiserver`, `thaw`, `restart`."""
        subprocess.run([self.command, *words], check=True, stdin=subprocess.DEVNULL, timeout=120)


def environment() -> tuple[str, str, str]:
    """Context, registry and command; ends the session when there is no context."""
    context = os.environ.get("RLCTL_TEST_CONTEXT", "")
    if not context:
        refuse(
            "RLCTL_TEST_CONTEXT is not set: it names the kube context of a cluster made for these tests; "
            "tests/cluster/kind makes one"
        )
    return context, os.environ.get("RLCTL_TEST_REGISTRY", ""), os.environ.get("RLCTL_TEST_CLUSTER", "")


def refuse(why: str) -> None:
    """End the session before anything is touched."""
    pytest.exit(f"no cluster to test on: {why}", returncode=2)
