"""Clusters that exist in memory only: a kubeconfig with contexts, and the memory target behind each namespace."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rlctl.backends.base import Applied, Document
from rlctl.errors import BackendUnreachable
from rlctl.plan import Plan
from tests.cli.conftest import Rlctl
from tests.support.memory import MemoryBackend

DIGEST = "sha256:" + "0123456789abcdef" * 4
CLUSTER_SPEC = f"""\
run: pole
target: kubernetes
env: {{id: CartPole-v1}}
algorithm: {{name: impala, lr: 1e-3}}
roles: {{actor: {{replicas: 2, envs: 8}}}}
stop: {{eval_return: 475}}
images:
  core: registry.example/core@{DIGEST}
  actor: registry.example/actor@{DIGEST}
  learner: registry.example/learner@{DIGEST}
"""


class Namespace(MemoryBackend):
    """One namespace of one cluster, which notes in the index of runs what is started there."""

    name = "kubernetes"
    poll_every_s, grace_s = 2.0, 60.0

    def __init__(self, clusters: Clusters, context: str, namespace: str) -> None:
        super().__init__(now=clusters.rlctl.now, wait=lambda: False, storage=Path("claim pole-volume:"))
        self._clusters = clusters
        self.context = context
        self.namespace = namespace
        self.asked = 0  # how often all runs were listed

    @property
    def server(self) -> str:
        if self.context not in self._clusters.servers:
            raise BackendUnreachable(f"the kubeconfig has no context {self.context}")
        return self._clusters.servers[self.context]

    def runs(self, broken: Any = None) -> Any:
        self.asked += 1
        return super().runs(broken)

    def apply(
        self, plan: Plan, documents: Iterable[Document], spec: Mapping[str, Any], **more: Any
    ) -> Iterator[Applied]:
        self._clusters.record(plan.run, plan.uid, self.context, self.namespace)
        yield from super().apply(plan, documents, spec, **more)


class Clusters:
    """Makes a backend as the real class is made: of a context and a namespace, either of which may be None."""

    def __init__(self, rlctl: Rlctl) -> None:
        self.rlctl = rlctl
        self.servers = {"prod": "https://prod:6443", "stage": "https://stage:6443"}
        self.current = "prod"
        self.made: dict[tuple[str, str], Namespace] = {}
        rlctl.targets["kubernetes"] = self
        rlctl.registries = False
        self.spec = str(rlctl.write("cluster.yaml", CLUSTER_SPEC))

    def __call__(self, context: str | None, namespace: str | None) -> Namespace:
        key = (context or self.current, namespace or "team")
        if key not in self.made:
            self.made[key] = Namespace(self, *key)
        return self.made[key]

    @property
    def here(self) -> Namespace:
        """The namespace of a command line that names none: that of the current context."""
        return self(None, None)

    def record(self, run: str, uid: str, context: str, namespace: str, **more: str) -> None:
        index = self.rlctl.folder / "state" / "rlctl" / "index"
        index.mkdir(parents=True, exist_ok=True)
        entry = {"run": run, "uid": uid, "target": "kubernetes", "context": context, "namespace": namespace}
        entry |= {"server": self.servers.get(context, "https://gone:6443"), **more}
        (index / f"{run}.json").write_text(json.dumps(entry))

    def up(self, *more: str) -> None:
        """A run that trains, in the current context."""
        assert self.rlctl("up", self.spec, "-d", *more).code == 0
        self.report()

    def report(self, **status: Any) -> None:
        from tests.cli.conftest import STATUS

        state = self.here.find("pole")
        assert state is not None
        self.here.report("pole", {**STATUS, "run": "pole", "uid": state.uid, **status})
