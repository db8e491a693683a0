from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import zmq

from rlctl_agents.wire.log_throttle import EVERY_S, LogThrottle
from rlctl_agents.wire.socket_monitor import ENDED_AFTER_S, HANDSHAKE_S, Link, SocketMonitor
from tests.wire.pair import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watch(clock: Clock) -> Iterator[SocketMonitor]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    watch = SocketMonitor(context, "actor", clock)
    yield watch
    watch.close()
    context.destroy(0)


def link(clock: Clock) -> Link:
    return Link("tcp://10.0.0.1:1", listens=False, shaking_since=clock.now)


def test_the_same_is_said_once_in_ten_seconds_and_something_else_at_once(clock: Clock) -> None:
    throttle = LogThrottle(clock)
    assert [throttle.due("this"), throttle.due("this"), throttle.due("that")] == [True, False, True]
    clock.now += EVERY_S
    assert throttle.due("this")


def test_what_was_said_is_remembered_within_bounds(clock: Clock) -> None:
    throttle = LogThrottle(clock)
    for number in range(10_000):
        throttle.due(str(number))
    assert len(throttle._said) <= 256


def test_a_restart_that_breaks_off_a_handshake_is_no_trouble_and_breaking_off_again_and_again_is(
    clock: Clock, watch: SocketMonitor
) -> None:
    for times in range(3):
        assert watch.trouble("tcp://10.0.0.1:1") == "", times
        watch._broke_off(link(clock))
    assert "another key than our server.pub" in watch.trouble("tcp://10.0.0.1:1")


def test_a_handshake_that_is_not_answered_is_told_from_one_that_is_broken_off(
    clock: Clock, watch: SocketMonitor
) -> None:
    silent = link(clock)
    clock.now += HANDSHAKE_S
    watch._broke_off(silent)
    assert "stopped, or overloaded" in watch.trouble(silent.address)


def test_a_connection_that_comes_about_ends_the_trouble(
    clock: Clock, watch: SocketMonitor, caplog: pytest.LogCaptureFixture
) -> None:
    one = link(clock)
    watch._failed(one, "no keys")
    with caplog.at_level(logging.INFO):
        watch._succeeded(one)
    assert watch.trouble(one.address) == ""
    assert caplog.messages[-1] == "tcp://10.0.0.1:1: connected at last"


def test_a_connection_has_ended_when_it_is_lost_and_not_made_again_for_a_while(
    clock: Clock, watch: SocketMonitor
) -> None:
    one = link(clock)
    assert not watch.ended(one)
    one.lost_at = clock.now
    assert not watch.ended(one)
    clock.now += ENDED_AFTER_S
    assert watch.ended(one)


def test_strangers_make_one_line_however_many_they_are(watch: SocketMonitor, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(100):
        watch.refuse("key", f"from 10.0.0.{number}")
    assert watch.refused == {"key": 100}
    assert len(caplog.messages) == 1
