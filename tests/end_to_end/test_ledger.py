"""Fate of every row, while actors are killed without warning.

`RLCTL_TEST_FULL=1 pytest tests/end_to_end/test_ledger.py` is the long form.
"""

import os
import signal
import time

import psutil
import pytest

from tests.end_to_end.conftest import Cli, wait_until
from tests.support.samples import FULL, size

SECONDS = float(size(10, 300))
ACTORS = size(4, 8)
pytestmark = [pytest.mark.processes, pytest.mark.timeout(SECONDS + 900)]


def test_the_ledger_balances_while_two_actors_are_killed_every_ten_seconds(cli: Cli) -> None:
    spec = cli.spec(
        "ledger",
        **({"env": {"id": "CartPole-v1"}} if FULL else cli.paced()),
        algorithm={"name": "impala", "unroll_length": 10, "batch_size": 320, "max_lag_versions": 4},
        roles={"actor": {"replicas": ACTORS, "envs": 4, "cpu": 0.2}, "evaluator": {"replicas": 0}},
    )
    cli("up", spec, "-d")
    cli("wait", "ledger", "--for", "steps=2000", "--timeout", "240s")

    killed = 0
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        # those that live longest: five short lives in a row of one would end the run
        for pid in sorted(cli.pids("ledger", "actor"), key=lambda one: psutil.Process(one).create_time())[:2]:
            os.kill(pid, signal.SIGKILL)
            killed += 1
        time.sleep(10)
        ledger = cli.status("ledger")["policies"]["main"]["ledger"]
        assert ledger["balanced"], ledger
    wait_until(lambda: len(cli.pids("ledger", "actor")) == ACTORS, timeout_s=240, what="all actors to be back")
    before = cli.status("ledger")["totals"]["consumed_steps"]
    cli("wait", "ledger", "--for", f"steps={int(before) + 2000}", "--timeout", "240s")
    cli("down", "ledger")

    status = cli.status("ledger")
    ledger = status["policies"]["main"]["ledger"]
    print(f"killed {killed} actors in {SECONDS:g} s: {ledger}")
    outcomes = ("consumed", "discarded", "dropped", "stale", "fenced", "invalid", "lost", "in_flight")
    assert ledger["produced"] == sum(ledger[outcome] for outcome in outcomes)
    assert min(ledger.values()) >= 0
    assert ledger["balanced"]
    assert ledger["consumed"] > 0.9 * ledger["produced"]
    assert ledger["consumed"] >= status["totals"]["updates"] * 320, "every update consumed one batch"
    assert ledger["lost"] <= (killed + ACTORS) * 3 * 10 * 4, "a kill loses at most what was on its way"
