"""Actor and learner with keys: experience flows while the manager's tickets are young enough."""

from __future__ import annotations

from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from rlctl.spec.layout import Layout
from rlctl_agents.roles import actor, learner
from rlctl_agents.runtime.process import Process
from rlctl_agents.types.control import Hello, Lease, Match, Orders, Peers, Report
from rlctl_agents.types.experience import ModelRef
from rlctl_agents.wire.keys import Keys
from tests.support.chain import private_folder
from tests.support.fakes import RUN, Buffers, Manager, Pool, process_of, running, wait_until
from tests.support.ports import free_ports
from tests.support.workers.small import SPEC
from tests.wire.keyring import Keyring


class Keyed(Manager):
    """Has keys, and makes tickets of any age."""

    def __init__(self, folder: Path, ring: Keyring) -> None:
        super().__init__(folder)
        self.port = free_ports(1)[0]
        self.keys = Keys.read(ring.of("core"))
        self.made_s = self.leased_since_s = 1000
        self.matches["actor"] = Match(1, {0: ModelRef("main", -1, -1)}, (0,), 7)

    def peers(self) -> Peers:
        return {**super().peers(), "learner/0": {"experience": f"tcp://127.0.0.1:{self.port}"}}

    def _with_ticket(self, answer: Any, boot: str) -> Any:
        ticket = self.keys.ticket(RUN, boot, self.made_s)
        return replace(answer, ticket=ticket, leased_since_s=self.leased_since_s)

    def _hello(self, hello: Hello, _: Buffers) -> tuple[Lease, Buffers]:
        return self._with_ticket(super()._hello(hello, _)[0], hello.boot), ()

    def _report(self, report: Report, _: Buffers) -> tuple[Orders, Buffers]:
        return self._with_ticket(super()._report(report, _)[0], report.boot), ()


def counter(manager: Manager, name: str) -> float:
    report = manager.newest("learner")
    return 0.0 if report is None else report.counters.get(name, 0.0)


@pytest.mark.slow
def test_a_learner_learns_from_leased_actors_and_from_no_others(tmp_path: Path) -> None:
    ring = Keyring(tmp_path)

    def keyed(role: str, **values: Any) -> Process:
        process = process_of(role, manager, SPEC, **values)
        folder = ring.of("core" if role == "learner" else role)
        process.arguments = changed(process.arguments, keys=folder, bind="127.0.0.1")
        return process

    with private_folder() as folder:
        Layout(folder).make()
        with Keyed(folder, ring) as manager, Pool(folder):
            learning = running(learner.main, keyed("learner", volume=folder))
            with learning, running(actor.main, keyed("actor")) as raised:
                wait_until(lambda: counter(manager, "consumed_steps") > 0, "experience")
                assert counter(manager, "rejected.lease") == 0
                manager.leased_since_s = 2000  # the manager does not hear of this actor any more
                wait_until(lambda: counter(manager, "rejected.lease") > 0, "the end of its credit")
                manager.made_s = 2000  # and now it does
                before = counter(manager, "consumed_steps")
                wait_until(lambda: counter(manager, "consumed_steps") > before + 1000, "experience again")
            assert raised == []
