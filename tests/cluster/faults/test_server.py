"""The API server stands still or is restarted in the middle of a command, and a command itself stands still."""

import os
import signal
import time

import pytest

from tests.cluster.support.contract import Contract
from tests.cluster.support.gateway import Gateway
from tests.cluster.support.people import Person
from tests.cluster.support.specs import parked

pytestmark = pytest.mark.faults


@pytest.mark.disturb
@pytest.mark.parametrize("at", [1, 12, 35])
def test_up_survives_an_api_server_that_is_restarted_in_its_middle(
    at: int, counted: Person, gateway: Gateway, contract: Contract
) -> None:
    spec = parked(counted)
    gateway.at_write(at, lambda: contract.disturb("restart", "kube-apiserver"))
    done = counted("up", spec, "-d", code=None, timeout_s=300)
    assert done.code in (0, 4, 8), done
    assert "Traceback" not in done.said
    until_it_knows_us(counted, "up", spec, "-d")
    counted("diff", spec)


@pytest.mark.disturb
def test_up_survives_an_api_server_that_is_frozen_for_a_while(
    counted: Person, gateway: Gateway, contract: Contract
) -> None:
    """It is frozen by a write of ours and thawed by the test: no more than a pause for whoever waits."""
    spec = parked(counted)
    with gateway.held_at_write(12) as held, counted.started("up", spec, "-d", timeout_s=300) as up:
        held.wait(60)
        contract.disturb("freeze", "kube-apiserver")
        try:
            held.release()
            assert gateway.stays_silent(20)
        finally:
            contract.disturb("thaw", "kube-apiserver")
        done = up.done()
    assert done.code in (0, 4, 5, 8), done
    assert "Traceback" not in done.said
    counted("up", spec, "-d")
    counted("diff", spec)


@pytest.mark.timeout(300)
def test_a_command_that_slept_through_the_end_of_its_lock_writes_nothing_any_more(
    counted: Person, gateway: Gateway
) -> None:
    """The second one waits until the lock of the first, which stands still, has run out; then the first wakes up."""
    spec = parked(counted)
    with counted.started("up", spec, "-d", timeout_s=240) as first:
        gateway.at_write(15, lambda: os.kill(first.pid, signal.SIGSTOP))
        gateway.until_written(15, timeout_s=60)
        counted("up", spec, "-d", timeout_s=150)
        gateway.forget()
        os.kill(first.pid, signal.SIGCONT)
        ended = first.done()
    assert ended.code == 5, ended
    assert "lock" in ended.stderr
    assert [str(write) for write in gateway.writes if "leases" not in write.path] == []
    counted("diff", spec)


def until_it_knows_us(who: Person, *command: str) -> None:
    """Wait: a server that has just started knows no user's rights for a second or two."""
    deadline = time.monotonic() + 60
    while (done := who(*command, code=None)).code and time.monotonic() < deadline:
        pass
    assert done.code == 0, done
