"""Waits have a bound, and say what they wait for."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from rlctl.backends.local.apply.waiting import Patience
from rlctl.backends.local.process.unix_http import request
from rlctl.errors import BackendUnreachable


def test_a_wait_says_every_ten_seconds_what_it_waits_for_until_its_bound() -> None:
    now, said = [0.0], list[str]()
    patience = Patience(25.0, said.append, clock=lambda: now[0])
    left = []
    for now[0] in (0.0, 4.0, 10.0, 20.0, 25.0):
        left.append(patience.left_s("supervisord (pid 7)"))
    assert left == [10.0, 6.0, 10.0, 5.0, 0.0]
    assert said == [f"waiting for supervisord (pid 7) since {since} s, 25 s at most" for since in (10, 20)]


def test_who_does_not_answer_is_named_while_it_is_waited_for(homes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlctl.backends.local.apply.waiting.HEARTBEAT_S", 0.1)
    said: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(homes / "deaf"))
        listener.listen()
        with pytest.raises(BackendUnreachable, match=r"the manager did not answer within 0\.35 s"):
            request(homes / "deaf", "GET", "/status", timeout_s=0.35, who="the manager", say=said.append)
    assert said[0] == "waiting for the manager since 0 s, 0.35 s at most"
