"""A restart that something gets in the way of leaves no role stopped, or says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlctl.backends.local.apply.converge import restart
from rlctl.backends.local.process.supervisord import ALREADY_STARTED, Supervisor
from rlctl.errors import BackendUnreachable, PartlyApplied

ACTORS = ["actor-0", "actor-1"]
SPAWN_ERROR = 50


class Obedient(Supervisor):
    """Two actors, in memory: one that is told to end has ended at the second look, and is not started before."""

    def __init__(self, meanwhile: BaseException | None = None, refuse: dict[str, int] | None = None) -> None:
        super().__init__(Path("/nowhere"))
        self.states = dict.fromkeys(ACTORS, "RUNNING")
        self._meanwhile = meanwhile  # raised at the first look after they were told to end
        self._refuse = refuse or {}

    def call(self, method: str, *arguments: Any) -> Any:
        if method == "system.multicall":
            return [self._do(each["methodName"], each["params"][0]) for each in arguments[0]]
        if self._meanwhile is not None and "STOPPING" in self.states.values():
            error, self._meanwhile = self._meanwhile, None
            raise error
        seen = [
            {"name": name, "statename": now, "pid": 0, "start": 1, "stop": 0, "now": 9, "exitstatus": 0, "spawnerr": ""}
            for name, now in self.states.items()
        ]
        self.states = {name: "STOPPED" if state == "STOPPING" else state for name, state in self.states.items()}
        return seen

    def _do(self, method: str, name: str) -> Any:
        if method == "supervisor.stopProcess" and self.states[name] == "RUNNING":
            self.states[name] = "STOPPING"
        elif method == "supervisor.startProcess" and name in self._refuse:
            return {"faultCode": self._refuse[name], "faultString": f"refused: {name}"}
        elif method == "supervisor.startProcess" and self.states[name] == "STOPPED":
            self.states[name] = "RUNNING"
        return True


def test_a_restart_that_is_interrupted_starts_again_what_it_has_stopped() -> None:
    supervisor = Obedient(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        restart(supervisor, ACTORS)
    assert set(supervisor.states.values()) == {"RUNNING"}


def test_a_supervisor_that_is_silent_after_the_stop_makes_it_partly_applied() -> None:
    silent = BackendUnreachable("supervisord does not answer within 60 s", hint="kill -CONT 4711")
    with pytest.raises(PartlyApplied, match="does not answer") as caught:
        restart(Obedient(silent), ACTORS)
    assert caught.value.hint == "kill -CONT 4711; then the same command again"


def test_a_process_that_is_not_started_again_is_named() -> None:
    with pytest.raises(PartlyApplied, match="refused startProcess for actor/1: refused: actor-1"):
        restart(Obedient(refuse={"actor-0": ALREADY_STARTED, "actor-1": SPAWN_ERROR}), ACTORS)
