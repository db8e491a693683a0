"""Runs on a cluster, rendered: the variations that every rule has to hold for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from rlctl.plan import Document, make
from rlctl.render import cluster_documents
from rlctl.spec import names
from rlctl.spec.schema import Spec
from tests.spec.full import IMAGES, image

UID = "0123456789abcdef" * 2
LONGEST = "r" + "0123456789" * 3 + "-abcdefgh"
"""A run name of 40 characters."""
PROXY = {"image": image("proxy"), "args": ["--upstream=$(UPSTREAM)"], "secret": "oauth"}
EXPOSED = {"expose": "loadbalancer", "source_ranges": ["203.0.113.0/24", "2001:db8::/32"], "proxy": PROXY}

VARIATIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "gpu": {"roles": {"learner": {"gpu": 2, "cpu": 4.5, "memory": "0.3Gi"}, "actor": {"memory": "1K"}}},
    "large": {"run": LONGEST, "roles": {"actor": {"replicas": 12_000}, "modelpool": {"replicas": 3}}},
    "claim": {"storage": {"claim": "shared"}},
    "class": {"storage": {"class": "nfs", "size": "2048Mi"}},
    "exposed": {"run": LONGEST, "kubernetes": EXPOSED},
    "open proxy": {"kubernetes": {**EXPOSED, "proxy": {"image": image("proxy")}}},
    "gang": {"kubernetes": {"gang": "kueue", "queue": "gpus"}},
    "replay": {"algorithm": {"name": "apex_dqn"}, "roles": {"replay": {"replicas": 2}}},
    "saved replay": {
        "algorithm": {"name": "apex_dqn"}, "replay": {"checkpoint": "full"}, "storage": {"claim": "shared"},
    },
}  # fmt: skip


def spec_of(**more: Any) -> Spec:
    return Spec.model_validate(
        {"run": "pong", "env": {"id": "ALE/Pong-v5"}, "target": "kubernetes", "images": IMAGES, **more}
    )


def rendered(spec: Spec, base: Path = Path("/nowhere")) -> list[Document]:
    return cluster_documents(make(spec, uid=UID, base=base), spec)


def load(text: str) -> Any:
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


class Run:
    """The objects of a rendered run."""

    @property
    def core(self) -> set[str]:
        """Roles with an index of their own, that are not to be moved."""
        algorithm = self.spec.algorithm
        replay = {"replay"} if algorithm is not None and algorithm.needs_replay else set()
        return {"manager", "modelpool", "learner", *replay}

    @property
    def saves_replay(self) -> bool:
        return self.spec.replay is not None and self.spec.replay.checkpoint == "full"

    def __init__(self, spec: Spec, base: Path = Path("/nowhere")) -> None:
        self.spec = spec
        self.documents = rendered(spec, base)
        self.objects: list[dict[str, Any]] = [load(document.text) for document in self.documents]

    def of(self, *kinds: str) -> list[dict[str, Any]]:
        return [it for it in self.objects if it["kind"] in kinds]

    def named(self, kind: str, name: str) -> dict[str, Any]:
        return next(it for it in self.of(kind) if it["metadata"]["name"] == name)

    @property
    def workloads(self) -> list[dict[str, Any]]:
        return self.of("Deployment", "StatefulSet")

    def workload(self, role: str) -> dict[str, Any]:
        """The only one of a role, or its first."""
        return next(it for it in self.workloads if role_of(it) == role)

    def pods(self) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
        """Name of the workload, labels of its pods, and their spec."""
        for it in self.workloads:
            template = it["spec"]["template"]
            yield it["metadata"]["name"], template["metadata"]["labels"], template["spec"]

    def containers(self) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
        """Name of the workload, pod spec, container."""
        for name, _, pod in self.pods():
            for container in (*pod.get("initContainers", ()), *pod["containers"]):
                yield name, pod, container


def role_of(thing: dict[str, Any]) -> str:
    role: str = thing["metadata"]["labels"].get(names.COMPONENT, "")
    return role


def selects(selector: dict[str, str], labels: dict[str, str]) -> bool:
    return selector.items() <= labels.items()


def bytes_of(quantity: str) -> int:
    units = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
    return int(quantity[:-2]) * units[quantity[-2:]] if quantity[-2:] in units else int(quantity)
