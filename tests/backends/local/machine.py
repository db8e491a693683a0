"""Runs of small fake roles below the real supervisor, in a state folder of the test's own."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlctl.backends.base import Applied, Process
from rlctl.backends.local import LocalBackend
from rlctl.errors import BackendUnreachable
from rlctl.plan import Plan, RolePlan
from rlctl.render import local_documents
from rlctl.spec.base import Role

FAKES = Path(__file__).parent / "fakes"


def fakes_first(path: str = os.environ.get("PYTHONPATH", "")) -> str:
    """The PYTHONPATH of a supervisor with fake roles, also those that a user's code does not reach."""
    return os.pathsep.join(filter(None, (str(FAKES), path)))


def role_plan(role: Role, replicas: int = 1, behaviour: Mapping[str, Any] | None = None) -> RolePlan:
    run_file = {"role": role, "behaviour": dict(behaviour or {})}
    digest = sha256(json.dumps(run_file).encode()).hexdigest()[:12]
    return RolePlan(role, replicas, cpu=1.0, memory_mib=64.0, gpu=0, threads=1, run_file=run_file, hash=digest)


@dataclass
class Machine:
    """One host user."""

    backend: LocalBackend = field(default_factory=LocalBackend)
    storage: str | None = None
    applied: set[str] = field(default_factory=set)

    def plan(self, run: str, roles: Iterable[RolePlan], live: Mapping[str, Any] | None = None) -> Plan:
        uid = self.backend.place(run, self.storage).uid
        return Plan(run, uid, "0.0", "local", tuple(roles), dict(live or {"stop": {}}), str(FAKES))

    def up(
        self,
        run: str,
        *roles: RolePlan,
        live: Mapping[str, Any] | None = None,
        initial: Callable[[], Path] | None = None,
    ) -> list[Applied]:
        """`rlctl up` of a plan that holds these roles."""
        place = self.backend.place(run, self.storage)
        plan = self.plan(run, roles, live)
        if plan.uid != place.uid:  # a new run: both were minted
            plan = Plan(run, place.uid, "0.0", "local", plan.roles, plan.live, plan.code_path)
        made = local_documents(plan, layout=place.layout, sockets=place.sockets, python=sys.executable)
        self.applied.add(run)
        spec = {"run": run, "storage": {"path": self.storage}, "roles": {role.role: {} for role in plan.roles}}
        return list(self.backend.apply(plan, made, spec, initial=initial))

    def processes(self, run: str) -> dict[str, Process]:
        """A busy supervisor, or one that ends, is waited for longer than a user is."""
        deadline = time.monotonic() + 60.0
        while True:
            try:
                return {f"{process.role}/{process.index}": process for process in self.backend.processes(run)}
            except BackendUnreachable:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def pids(self, run: str) -> dict[str, int]:
        """Live replicas."""
        return {name: process.pid for name, process in self.processes(run).items() if process.pid}

    def phase(self, run: str) -> str:
        found = self.backend.find(run)
        assert found is not None
        return found.phase

    def supervisor_pid(self, run: str) -> int:
        file = self.backend.place(run).layout.run / "supervisord.pid"
        deadline = time.monotonic() + 60
        while not (file.exists() and file.read_text().strip()):  # it answers before it has written this
            assert time.monotonic() < deadline, f"no {file}"
            time.sleep(0.05)
        return int(file.read_text())

    def survivors(self) -> list[int]:
        """Processes of this machine's runs, the supervisors too, whatever their parent is."""
        state = os.environ["XDG_STATE_HOME"], os.environ["XDG_RUNTIME_DIR"]
        found = []
        for process in psutil.process_iter(["cmdline", "status"]):
            words = " ".join(process.info["cmdline"] or [])
            if any(folder in words for folder in state) and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        return found

    def clean(self) -> None:
        for run in self.applied:
            try:
                list(self.backend.delete(run, volumes=False, grace_s=2.0))
            except Exception as error:
                print(f"down {run}: {error!r}")
        for pid in self.survivors():
            with contextlib.suppress(ProcessLookupError):  # a child of a killed supervisor dies by itself
                os.kill(pid, signal.SIGKILL)


def until(condition: Callable[[], bool], what: str, timeout_s: float = 90.0) -> None:
    """Wait, with a bound and a reason; also for a process that does not listen yet."""
    deadline = time.monotonic() + timeout_s

    def holds() -> bool:
        try:
            return condition()
        except BackendUnreachable:
            return False

    while not holds():
        assert time.monotonic() < deadline, f"waited {timeout_s} s for {what}"
        time.sleep(0.1)


def whats(applied: Iterable[Applied]) -> dict[str, str]:
    """Object -> the change that was made to it."""
    return {each.object: each.what for each in applied}


def read_log(machine: Machine, run: str, name: str) -> str:
    """Log of a process so far."""
    path = machine.backend.place(run).layout.logs / f"{name}.log"
    return path.read_text() if path.exists() else ""


def read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on this process opens no file to write it, as when its file system was mounted again without that."""
    really = os.open

    def refuse(path: Any, flags: int, *more: Any, **options: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return really(path, flags, *more, **options)

    monkeypatch.setattr(os, "open", refuse)
