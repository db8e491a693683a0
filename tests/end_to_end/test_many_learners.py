"""Two learners step together; one is killed without warning, and the run goes on by itself."""

import os
import signal

import pytest

from tests.end_to_end.conftest import Cli, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.timeout(1800)]


def together(cli: Cli) -> set[str]:
    """Boots of the learners that say they are one of two."""
    return {one["boot"] for one in cli.status("many")["roles"]["learner"] if one["joined"] and one.get("world") == 2}


def test_learners_that_step_together_survive_a_kill_without_a_human_and_account_for_every_row(cli: Cli) -> None:
    spec = cli.spec(
        "many",
        **cli.paced(),
        algorithm={"name": "impala", "unroll_length": 10, "batch_size": 160, "max_lag_versions": 8},
        roles={
            "learner": {"replicas": 2, "cpu": 0.4},
            "actor": {"replicas": 2, "envs": 8, "cpu": 0.4},
            "evaluator": {"replicas": 0},
        },
    )
    cli("up", spec, "-d")
    cli("wait", "many", "--for", "steps=2000", "--timeout", "300s")
    wait_until(lambda: len(together(cli)) == 2, timeout_s=300, what="two ranks")

    for index in (1, 0):  # a follower, then the one who publishes and saves
        before = cli.status("many")
        lineage = before["policies"]["main"]["ref"]["lineage"]
        killed = before["roles"]["learner"][index]["boot"]
        os.kill(cli.pids("many", "learner")[index], signal.SIGKILL)
        wait_until(
            lambda killed=killed: len(together(cli) - {killed}) == 2,  # type: ignore[misc]
            timeout_s=300, what="it to be started again, and two ranks",
        )  # fmt: skip
        known = before["policies"]["main"]["steps"]
        wait_until(
            lambda known=known: cli.status("many")["policies"]["main"]["steps"] >= known,  # type: ignore[misc]
            timeout_s=120, what="the weights of the survivor, not of a generation",
        )  # fmt: skip
        steps = int(cli.status("many")["policies"]["main"]["steps"])
        wait_until(
            lambda steps=steps: cli.status("many")["policies"]["main"]["steps"] > steps + 2000,  # type: ignore[misc]
            timeout_s=300, what="learning to go on",
        )  # fmt: skip
        after = cli.status("many")
        assert after["policies"]["main"]["ref"]["lineage"] == lineage, "nothing was forgotten, so nothing is fenced"
        assert after["policies"]["main"]["ledger"]["balanced"]
    cli("down", "many")

    status = cli.status("many")
    ledger = status["policies"]["main"]["ledger"]
    assert ledger["balanced"]
    assert ledger["fenced"] == 0
    assert ledger["invalid"] == 0, "who adds nothing to an update has its weights all the same"
    outcomes = ("consumed", "dropped", "stale", "fenced", "invalid", "lost", "in_flight")
    assert ledger["produced"] == sum(ledger[outcome] for outcome in outcomes)
    assert status["checkpoint"]["steps"] > 0
