"""A model that is not kept, with the reason."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rlctl_agents import envs
from rlctl_agents.roles.evaluator import Evaluator
from rlctl_agents.runtime.health import Pulse
from rlctl_agents.runtime.metrics import Metrics
from rlctl_agents.types.control import Match
from rlctl_agents.types.experience import ModelRef

SECTION = {"id": "tests.envs.tiny:Clock"}
REF = ModelRef("main", 1, 7)


class Session:
    """The manager's wishes: a match, which it withdraws when it is asked for a modelpool."""

    def __init__(self, match: Match | None) -> None:
        self.match = match

    def assigned(self, role: str) -> None:
        self.match = None


@pytest.mark.parametrize(("withdrawn", "why"), [(True, "the match was withdrawn"), (False, "there is no modelpool")])
def test_a_model_that_is_not_kept_is_told_with_the_reason(withdrawn: bool, why: str) -> None:
    match, stop = Match(1, {0: REF}, (), 0), threading.Event()
    section = SimpleNamespace(model_dump=lambda: SECTION)
    process = SimpleNamespace(metrics=Metrics(), pulse=Pulse(), stop=stop, spec=SimpleNamespace(env=section))
    env = envs.make_of(SECTION, envs=1, seeds=[0], training=False)
    session = Session(None if withdrawn else match)
    evaluator = Evaluator(cast(Any, process), cast(Any, None), cast(Any, session), env)
    evaluator._networks[REF] = cast(Any, None)
    file, fault = evaluator._keep(match, REF)
    assert file == ""
    assert fault.startswith(why)
