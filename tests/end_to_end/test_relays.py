"""Three modelpools: the root (in the full form first a relay) is killed, and the run goes on by itself."""

import os
import signal
from typing import Any

import pytest

from tests.end_to_end.conftest import Cli, wait_until
from tests.support.samples import sample

pytestmark = [pytest.mark.processes, pytest.mark.timeout(1800)]


def pools(cli: Cli) -> dict[int, dict[str, Any]]:
    """Modelpools that have reported, by index."""
    return {one["index"]: one for one in cli.status("tree")["roles"]["modelpool"] if one["joined"]}


def oldest(cli: Cli, role: str, count: int) -> int:
    """Version that so many of a role have at least; -1: some have none."""
    models = [one["model"] for one in cli.status("tree")["roles"][role]]
    return min(one["version"] for one in models) if len(models) == count and None not in models else -1


def goes_on(cli: Cli, steps: int = 2000) -> None:
    """The learner learns, with weights that every pool and every actor has got meanwhile."""
    before = cli.status("tree")["policies"]["main"]
    version = before["ref"]["version"]
    wait_until(
        lambda: cli.status("tree")["policies"]["main"]["steps"] > before["steps"] + steps,
        timeout_s=300, what="learning to go on",
    )  # fmt: skip
    wait_until(lambda: oldest(cli, "modelpool", 3) > version, timeout_s=120, what="every pool")
    wait_until(lambda: oldest(cli, "actor", 2) > version, timeout_s=120, what="every actor")


def kill(cli: Cli, index: int) -> None:
    boot = pools(cli)[index]["boot"]
    os.kill(cli.pids("tree", "modelpool")[index], signal.SIGKILL)
    wait_until(
        lambda: pools(cli).get(index, {}).get("boot", boot) != boot,
        timeout_s=120, what=f"modelpool {index} to be started again",
    )  # fmt: skip


def test_a_run_goes_on_whichever_of_its_modelpools_is_killed_and_accounts_for_every_row(cli: Cli) -> None:
    spec = cli.spec(
        "tree",
        **cli.paced(),
        algorithm={"name": "impala", "unroll_length": 10, "batch_size": 160, "max_lag_versions": 8},
        roles={
            "modelpool": {"replicas": 3},
            "actor": {"replicas": 2, "envs": 8, "cpu": 0.4},
            "evaluator": {"replicas": 1, "cpu": 0.4},
        },
        evaluation={"episodes": 2, "every": 5},
    )
    cli("up", spec, "-d")
    cli("wait", "tree", "--for", "steps=2000", "--timeout", "300s")
    goes_on(cli)

    for index in sample("modelpools", [2, 0], 1):
        kill(cli, index)
        goes_on(cli)
    measured = (cli.status("tree")["evaluation"] or {"ref": {"version": -1}})["ref"]["version"]
    cli("scale", "modelpool=1", "--run", "tree")
    wait_until(lambda: list(pools(cli)) == [0], timeout_s=120, what="the relays to leave")
    before = cli.status("tree")["policies"]["main"]["steps"]
    wait_until(
        lambda: cli.status("tree")["policies"]["main"]["steps"] > before + 2000, timeout_s=300, what="one pool for all"
    )
    wait_until(
        lambda: (cli.status("tree")["evaluation"] or {"ref": {"version": -1}})["ref"]["version"] > measured,
        timeout_s=120, what="an evaluation",
    )  # fmt: skip
    cli("scale", "modelpool=3", "--run", "tree")
    wait_until(lambda: sorted(pools(cli)) == [0, 1, 2], timeout_s=120, what="the relays")
    goes_on(cli)
    cli("down", "tree")

    ledger = cli.status("tree")["policies"]["main"]["ledger"]
    assert ledger["balanced"]
    assert ledger["fenced"] == 0, "no pool gave anybody weights of before"
    outcomes = ("consumed", "dropped", "stale", "fenced", "invalid", "lost", "in_flight")
    assert ledger["produced"] == sum(ledger[outcome] for outcome in outcomes)
