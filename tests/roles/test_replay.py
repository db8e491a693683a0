"""The end of a shard: learners that ask it are answered until they have heard of it."""

from __future__ import annotations

from typing import cast

import pytest

from rlctl_agents.roles import replay
from rlctl_agents.wire.rpc.server import RpcServer


class Asked:
    """A server with requests at these seconds, and the clock that it waits by."""

    def __init__(self, *at: float) -> None:
        self.at, self.now = [*at], 0.0

    def serve(self, timeout_s: float) -> int:
        self.now += timeout_s
        before, self.at = len(self.at), [one for one in self.at if one > self.now]
        return before - len(self.at)


@pytest.mark.parametrize(
    ("at", "ends_s"),
    [
        ((), replay.QUIET_S),
        ((0.3, 0.75, 1.15), 1.2 + replay.QUIET_S),
        ([number / 10 for number in range(1000)], replay.LEAVES_S),
    ],
)
def test_a_shard_answers_until_nobody_asks_any_more(
    at: tuple[float, ...], ends_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked(*at)
    monkeypatch.setattr(replay.time, "monotonic", lambda: asked.now)
    replay.answer_last(cast(RpcServer, asked))
    assert asked.now == pytest.approx(ends_s, abs=0.15)
    assert not [one for one in asked.at if one <= asked.now], "what was asked is answered"
