"""A run with a replay, while its processes die: training goes on, and every row is in the books once."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from tests.end_to_end.conftest import Cli, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.timeout(1200)]
LIMIT_S = 240.0


def books(cli: Cli) -> tuple[dict[str, Any], float]:
    """Ledger, and agent steps."""
    status = cli.status("replayed")
    ledger = status["policies"]["main"]["ledger"]
    assert ledger["balanced"], ledger
    return ledger, float(status["totals"]["consumed_steps"])


def go_on(cli: Cli, more: int = 2000) -> None:
    """Wait until it has learned from so many steps more."""
    steps = int(books(cli)[1])
    cli("wait", "replayed", "--for", f"consumed_steps={steps + more}", "--timeout", f"{LIMIT_S:g}s")


def kill(cli: Cli, role: str, index: int = 0) -> None:
    """Kill a process of the run, and wait for the one after it."""
    pids = cli.pids("replayed", role)
    os.kill(pids[index], signal.SIGKILL)
    wait_until(
        lambda: len(now := cli.pids("replayed", role)) == len(pids) and pids[index] not in now,
        timeout_s=LIMIT_S, what=f"{role}/{index} to be back",
    )  # fmt: skip


def all_run(cli: Cli) -> bool:
    told = cli.status("replayed")
    shards = [one for one in told["roles"].get("replay", []) if one["joined"]]
    return len(shards) == 2 and bool(told["ready"])


def test_a_run_with_a_replay_survives_its_shards_its_learner_its_manager_and_a_restart_of_all(cli: Cli) -> None:
    spec = cli.spec(
        "replayed", **cli.paced(),
        algorithm={"name": "dqn", "batch_size": 128}, replay={"capacity": 20_000, "learning_starts": 500},
        roles={"actor": {"replicas": 2, "envs": 4}, "replay": {"replicas": 2}, "evaluator": {"replicas": 0}},
        checkpoint={"every": "5s"},
    )  # fmt: skip
    cli("up", spec, "-d")
    cli("wait", "replayed", "--for", "steps=2000", "--timeout", f"{LIMIT_S:g}s")
    assert all_run(cli)
    unheard = 1000  # rows that are stored, counted and told at different times

    kill(cli, "replay", 1)
    go_on(cli)
    wait_until(lambda: all_run(cli), timeout_s=LIMIT_S, what="both shards")
    problems = [one["text"] for one in cli.status("replayed")["problems"]]
    assert any(text.startswith("replay/1 was restarted once") for text in problems), problems
    go_on(cli)
    assert books(cli)[0]["lost"] <= 2000, "what was on its way"

    wait_until(lambda: bool(cli.status("replayed")["checkpoint"]), timeout_s=LIMIT_S, what="a generation")
    kill(cli, "learner")
    stored = books(cli)[0]["consumed"]
    go_on(cli)
    resumed = cli.status("replayed")["resumed"]["steps"]
    assert 0 < resumed <= stored + 3 * unheard
    since = max(0, stored - resumed)  # the checkpoint: rows stored, and of those counted what is forgotten with it
    assert books(cli)[0]["fenced"] == 0, "a replay's rows are of no life of the learner"
    kill(cli, "manager")
    go_on(cli)

    cli("down", "replayed")
    ledger, steps = books(cli)
    assert ledger["in_flight"] <= unheard, "of those whose last words the manager has not waited for"
    apart = ledger["consumed"] - steps
    untold = ledger["lost"] + ledger["in_flight"]  # learned from, perhaps, and no shard has lived to report it
    assert -untold <= apart <= since + 6 * unheard, "what no learner had heard of when a shard died"
    cli("up", spec, "-d")
    cli("wait", "replayed", "--for", f"consumed_steps={int(steps) + 2000}", "--timeout", f"{LIMIT_S:g}s")
    cli("down", "replayed")
    again, further = books(cli)
    rows, counted = again["consumed"] - ledger["consumed"], further - steps
    assert counted >= 2000
    assert abs(rows - counted) <= unheard, f"{rows} rows were stored and {counted} counted"
