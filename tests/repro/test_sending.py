"""Recorded episodes on their way to the manager, and what a failure says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rlctl_agents.envs.base import EnvError
from rlctl_agents.repro.record import unpack
from rlctl_agents.repro.sending import told_crash
from rlctl_agents.types.control import Recorded, Reply
from rlctl_agents.types.experience import ModelRef
from tests.repro.worlds import HERE, drive, recorder

PROCESS: Any = SimpleNamespace(run="lamps", boot="b", identity=SimpleNamespace(id="actor/0"))


class Member:
    """A manager that answers so."""

    def __init__(self, said: Reply | Exception) -> None:
        self.said, self.kept = said, list[Recorded]()

    def call(self, recorded: Recorded, *_: Any, **__: Any) -> Reply:
        self.kept.append(recorded)
        if isinstance(self.said, Exception):
            raise self.said
        return self.said


def failed(session: Any) -> str:
    """Message of the process at its end."""
    env = recorder({"id": f"{HERE}:Lamps"}, 2, training=True)
    with pytest.raises(EnvError) as caught:
        drive(env, 100_000)
    return str(told_crash(caught.value, env, PROCESS, session, ModelRef("main", 1, 7), "0" * 64))


def test_a_failure_names_the_command_that_plays_its_episode_again() -> None:
    session = Member(Reply(True, "actor/0@3"))
    said = failed(session)
    assert said.startswith("step raised AssertionError: too bright (")
    assert said.endswith("; play it again: rlctl repro lamps actor/0@3")
    asked, recorded = session.kept
    assert (asked.kind, asked.header, asked.body) == ("crash", b"", b""), "before a body that may be large"
    header, chunks = unpack(recorded.header + b"\n" + recorded.body)
    assert (recorded.kind, header.run, header.process) == ("crash", "lamps", "actor/0")
    assert header.model == ModelRef("main", 1, 7)
    assert HERE in header.provenance.code
    assert chunks


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Reply(False, "No space left on device"), "No space left on device"),
        (TimeoutError("no answer"), "the manager does not take it: no answer"),
    ],
    ids=["refused", "silent"],
)
def test_a_manager_that_does_not_keep_it_hides_no_failure(answer: Reply | Exception, why: str) -> None:
    session = Member(answer)
    said = failed(session)
    assert said.startswith("step raised AssertionError: too bright (")
    assert said.endswith(f"; its episode is not kept: {why}")
    assert len(session.kept) == 1, "it is not sent again"
