"""The channel between processes that are killed and frozen."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.wire.peer import BUDGET_ROWS

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[3]
Start = Callable[[str, str], subprocess.Popen[str]]


@pytest.fixture
def start(address: str) -> Iterator[Start]:
    running: list[subprocess.Popen[str]] = []

    def start(end: str, boot: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.wire.peer", end, address, boot],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        running.append(process)
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


def stop(*processes: subprocess.Popen[str]) -> list[Any]:
    """Ask all to end, in this order; what they saw."""
    found: list[Any] = []
    for process in processes:
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        found.append(json.loads(out.splitlines()[-1]))
    return found


def heard(receiver: subprocess.Popen[str], *boots: str) -> None:
    """Wait until the receiver has had something from each of these."""
    waiting = set(boots)
    while waiting:
        assert receiver.stdout
        line = receiver.stdout.readline()
        assert line, "the receiver has ended"
        waiting.discard(line.removeprefix("heard ").strip())


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_senders_live_through_a_killed_receiver_and_serve_the_next(start: Start) -> None:
    first = start("receive", "first")
    boots = [f"sender-{index}" for index in range(3)]
    senders = [start("send", boot) for boot in boots]
    heard(first, *boots)
    time.sleep(1.0)
    kill(first)
    time.sleep(1.5)
    second = start("receive", "second")
    heard(second, *boots)
    time.sleep(2.0)
    *sent, received = stop(*senders, second)
    assert received["twice"] == 0
    assert received["most"] <= BUDGET_ROWS
    for index, seen in enumerate(sent):
        assert seen["worst_s"] < 4.0, "shorter than nobody listened"
        assert seen["mib"] < 120
        assert seen["flushed"]
        ledger, account = seen["ledgers"]["second"], received["accounts"][f"sender-{index}"]
        assert seen["ledgers"]["first"]["sent"] > 0
        assert ledger["sent"] > 0
        assert account["ledger"] == ledger
        assert ledger["sent"] == account["received"] + account["lost"]
        assert account["received"] == account["consumed"]
        total = sum(each["sent"] for each in seen["ledgers"].values())
        assert ledger["produced"] == total + ledger["dropped"]


def test_a_killed_sender_holds_nothing_back_from_the_others(start: Start) -> None:
    receiver = start("receive", "receiver")
    victims = [start("send", f"victim-{index}") for index in range(3)]
    survivor = start("send", "survivor")
    heard(receiver, "survivor", *(f"victim-{index}" for index in range(3)))
    for victim in victims:
        kill(victim)
    newcomer = start("send", "newcomer")
    heard(receiver, "newcomer")
    time.sleep(1.0)
    *sent, received = stop(survivor, newcomer, receiver)
    accounts = received["accounts"]
    for seen, boot in zip(sent, ("survivor", "newcomer"), strict=True):
        assert seen["flushed"]
        assert accounts[boot]["received"] == seen["ledgers"]["receiver"]["sent"] > 0
    for index in range(3):
        account = accounts[f"victim-{index}"]
        assert account["consumed"] == account["received"] > 0
        assert account["lost"] == 0, "what was on its way when it died came, or was never known to be sent"


def test_a_frozen_receiver_is_waited_for_without_growing_and_goes_on(start: Start) -> None:
    receiver = start("receive", "receiver")
    sender = start("send", "sender")
    heard(receiver, "sender")
    receiver.send_signal(signal.SIGSTOP)
    time.sleep(5.0)
    receiver.send_signal(signal.SIGCONT)
    time.sleep(2.0)
    seen, received = stop(sender, receiver)
    assert seen["worst_s"] < 4.0, "shorter than nobody listened"
    assert seen["mib"] < 120
    assert seen["flushed"]
    account = received["accounts"]["sender"]
    assert received["twice"] == 0
    assert account["ledger"] == seen["ledgers"]["receiver"]
    assert account["ledger"]["sent"] == account["received"] + account["lost"]
    assert account["ledger"]["dropped"] > 0
