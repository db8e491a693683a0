"""The same run on every target: how a spec becomes documents there, and what its processes do."""

from __future__ import annotations

import re
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rlctl.backends.base import Applied, Backend, Document, RunState
from rlctl.backends.kubernetes.backend import KubernetesBackend
from rlctl.backends.kubernetes.run_state.lock import LockHolder
from rlctl.backends.local import LocalBackend
from rlctl.errors import BackendUnreachable
from rlctl.plan import Plan, make
from rlctl.render import for_target
from rlctl.spec.base import ROLES
from rlctl.spec.schema import Spec
from tests.backends.kubernetes.fakes.api import FakeApi
from tests.backends.local.machine import FAKES
from tests.support.memory import MemoryBackend

RUN = "pole"
_ROLE = re.compile(rf"(?:^|-)({'|'.join(ROLES)})(?:[-/]|$)")
_ANSWERS_WITHIN_S = 90.0


class Target(ABC):
    """One target with a run on it.

    Attributes:
        runs: its processes come to life.
        answers: so does a manager that can be asked.
    """

    backend: Backend
    runs = True
    answers = True

    def spec(self, *, run: str = RUN, lr: float = 1e-3, actors: int = 2, rows: float = 1e9) -> Spec:
        return Spec.model_validate({**self._spec(run, lr, actors, rows)})

    def _spec(self, run: str, lr: float, actors: int, rows: float) -> dict[str, Any]:
        return {
            "run": run,
            "env": {"id": "CartPole-v1"},
            "algorithm": {"name": "impala", "lr": lr},
            "roles": {"actor": {"replicas": actors}},
            "stop": {"agent_steps": int(rows)},
        }

    @abstractmethod
    def rendered(self, spec: Spec) -> tuple[Plan, list[Document]]:
        """Plan and documents that `up` would send."""

    def up(self, **changes: Any) -> list[Applied]:
        """`rlctl up` of a spec that differs from the usual one in this."""
        spec = self.spec(**changes)
        plan, documents = self.rendered(spec)
        return list(self.backend.apply(plan, documents, spec.model_dump(mode="json")))

    def down(self, *, run: str = RUN, volumes: bool = False) -> list[Applied]:
        return list(self.backend.delete(run, volumes=volumes, grace_s=5.0))

    def state(self, run: str = RUN) -> RunState:
        found = self.backend.find(run)
        assert found is not None, f"{run} is not known"
        return found

    def replicas(self, role: str) -> int:
        """As the target shows them, live or not."""
        return sum(process.count for process in self.backend.processes(RUN) if process.role == role)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait, with a bound and a reason."""
        deadline_s = time.monotonic() + _ANSWERS_WITHIN_S
        while not _holds(condition):
            assert time.monotonic() < deadline_s, f"waited {_ANSWERS_WITHIN_S:g} s: {what}"
            self.pass_time()

    def pass_time(self) -> None:
        """Between two looks."""
        time.sleep(0.1)

    @abstractmethod
    def clean(self) -> None:
        """Leave nothing behind."""


def touched(done: Iterable[Applied]) -> set[str]:
    """Roles of which something is not as it was before."""
    changed = [applied.object for applied in done if applied.what != "unchanged"]
    return {found[1] for name in changed if (found := _ROLE.search(name)) is not None}


class Memory(Target):
    """A target that exists in memory only."""

    def __init__(self) -> None:
        self.memory = MemoryBackend(now=lambda: datetime.now(UTC))
        self.backend = self.memory

    def rendered(self, spec: Spec) -> tuple[Plan, list[Document]]:
        place = self.backend.place(spec.run, None)
        plan = make(spec, uid=place.uid, base=Path("/"))
        return plan, for_target(plan, spec, place, sys.executable)

    def up(self, **changes: Any) -> list[Applied]:
        done = super().up(**changes)
        self.memory.report(changes.get("run", RUN), {"phase": "running"})  # a manager comes up by itself elsewhere
        return done

    def clean(self) -> None:
        """It goes with the object."""


class Local(Target):
    """This machine, with small fake roles below the real supervisor."""

    def __init__(self) -> None:
        self.backend = LocalBackend()
        self._ran: set[str] = set()

    def rendered(self, spec: Spec) -> tuple[Plan, list[Document]]:
        place = self.backend.place(spec.run, None)
        plan = replace(make(spec, uid=place.uid, base=Path("/")), code_path=str(FAKES))
        return plan, for_target(plan, spec, place, sys.executable)

    def up(self, **changes: Any) -> list[Applied]:
        self._ran.add(changes.get("run", RUN))
        return super().up(**changes)

    def clean(self) -> None:
        for run in self._ran:
            list(self.backend.delete(run, volumes=True, grace_s=2.0))


def _holds(condition: Callable[[], bool]) -> bool:
    try:
        return condition()
    except BackendUnreachable:  # it does not listen yet
        return False


class Namespace(Target):
    """A namespace of a cluster.

    Args:
        backend: of that namespace.
        folder: where patches are looked for.
    """

    def __init__(self, backend: Backend, folder: Path) -> None:
        self.backend = backend
        self._folder = folder

    def _spec(self, run: str, lr: float, actors: int, rows: float) -> dict[str, Any]:
        image = "registry.invalid/rlctl/none@sha256:" + "0" * 64
        images = dict.fromkeys(("core", "actor", "learner"), image)
        return {**super()._spec(run, lr, actors, rows), "target": "kubernetes", "images": images}

    def rendered(self, spec: Spec) -> tuple[Plan, list[Document]]:
        plan = make(spec, uid=self.backend.place(spec.run, None).uid, base=self._folder)
        return plan, for_target(plan, spec, None, sys.executable)

    def clean(self) -> None:
        """It goes with its namespace."""


class Pretended(Namespace):
    """The API server in memory: its pods become ready by themselves, and its manager answers."""

    def __init__(self, folder: Path) -> None:
        self.api = FakeApi()
        self.api.manager = lambda method, path, body: (200, {"phase": "running"})
        me = LockHolder("alice", "desk", 1)
        times = {"clock": self.api.clock, "sleep": self.api.sleep, "now": self.api.now}
        super().__init__(KubernetesBackend(api=self.api, me=me, **times), folder)  # type: ignore[arg-type]

    def pass_time(self) -> None:
        self.api.sleep(1.0)


class Cluster(Namespace):
    """A real one in which no pod ever finds a node: its control plane is all that is at work."""

    runs = False
    answers = False

    def __init__(self, backend: Backend, folder: Path) -> None:
        super().__init__(backend, folder)
        for role in ("manager", "modelpool", "learner", "actor", "evaluator", "tensorboard"):
            path = folder / "templates" / f"{role}.patch.yaml"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("spec: {template: {spec: {nodeSelector: {rlctl.dev/test: nowhere}}}}\n")
