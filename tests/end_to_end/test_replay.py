"""A run with a replay, while its processes die: training goes on, and every row is in the books once."""

from __future__ import annotations

import os
import signal
from typing import Any, NamedTuple

import pytest

from rlctl_agents.roles.replay import LEAST_BUDGET
from tests.end_to_end.conftest import Cli, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.timeout(1200)]
LIMIT_S = 240.0
STILL_S = 5.0
"""Of unchanged books, after which all reports are in them: each process reports once a second."""
ACTORS, SHARDS, BLOCK = 2, 2, 4 * 16
"""Rows of a block: environments of an actor x unroll_length."""
HELD = SHARDS * LEAST_BUDGET + ACTORS * BLOCK
"""Rows that wait for a learner, at most: the credit of each shard, and a block at each actor."""
UNCOUNTED = 4 * SHARDS * BLOCK
"""Rows that were stored and in no update, at most: two blocks of each shard beyond what the learner has heard, and its
batches that were drawn ahead."""


class Books(NamedTuple):
    """Of the run."""

    ledger: dict[str, Any]
    steps: float  # agent steps that the learner counts
    stored: float  # agent steps among the rows that shards have taken: one a row, and none for the end of an episode


def books(cli: Cli) -> Books:
    status = cli.status("replayed")
    ledger, totals = status["policies"]["main"]["ledger"], status["totals"]
    assert ledger["balanced"], ledger
    return Books(ledger, float(totals["consumed_steps"]), float(ledger["consumed"] - totals["episodes"]))


def go_on(cli: Cli, more: int = 2000) -> None:
    """Wait until it has learned from so many steps more."""
    steps = int(books(cli).steps)
    cli("wait", "replayed", "--for", f"consumed_steps={steps + more}", "--timeout", f"{LIMIT_S:g}s")


def kill(cli: Cli, role: str, index: int = 0) -> None:
    """Kill a process of the run, and wait for the one after it."""
    pids = cli.pids("replayed", role)
    os.kill(pids[index], signal.SIGKILL)
    wait_until(
        lambda: len(now := cli.pids("replayed", role)) == len(pids) and pids[index] not in now,
        timeout_s=LIMIT_S, what=f"{role}/{index} to be back",
    )  # fmt: skip


def stored_while_paused(cli: Cli) -> float:
    """Agent steps in the replay's books once the learner stands still: actors are out of credit, and nothing moves."""
    os.kill(cli.pids("replayed", "learner")[0], signal.SIGSTOP)
    since: dict[float, float] = {}  # agent steps -> time of the first status that said so

    def still() -> bool:
        stored, now = books(cli).stored, float(cli.status("replayed")["time"])
        return now - since.setdefault(stored, now) >= STILL_S

    wait_until(still, timeout_s=LIMIT_S, what="books that rest")
    return max(since)


def restarted(cli: Cli, name: str) -> bool:
    """Whether a process is among the problems because it was restarted, as it is until it has run for a while."""
    problems = [one["text"] for one in cli.status("replayed")["problems"]]
    return any(text.startswith(f"{name} was restarted once") for text in problems)


def all_run(cli: Cli) -> bool:
    told = cli.status("replayed")
    shards = [one for one in told["roles"].get("replay", []) if one["joined"]]
    return len(shards) == 2 and bool(told["ready"])


def test_a_run_with_a_replay_survives_its_shards_its_learner_its_manager_and_a_restart_of_all(cli: Cli) -> None:
    spec = cli.spec(
        "replayed", **cli.paced(),
        algorithm={"name": "dqn", "batch_size": 128}, replay={"capacity": 20_000, "learning_starts": 500},
        roles={
            "actor": {"replicas": ACTORS, "envs": 4}, "replay": {"replicas": SHARDS}, "evaluator": {"replicas": 0},
        },
        checkpoint={"every": "5s"},
    )  # fmt: skip
    cli("up", spec, "-d")
    cli("wait", "replayed", "--for", "steps=2000", "--timeout", f"{LIMIT_S:g}s")
    wait_until(lambda: all_run(cli), timeout_s=LIMIT_S, what="both shards")  # one alone is enough to learn from

    kill(cli, "replay", 1)
    wait_until(lambda: restarted(cli, "replay/1"), timeout_s=LIMIT_S, what="the restart among the problems")
    go_on(cli)
    wait_until(lambda: all_run(cli), timeout_s=LIMIT_S, what="both shards")
    go_on(cli)
    assert books(cli).ledger["lost"] <= 2000, "what was on its way"

    wait_until(lambda: bool(cli.status("replayed")["checkpoint"]), timeout_s=LIMIT_S, what="a generation")
    stored = stored_while_paused(cli)
    kill(cli, "learner")
    go_on(cli)
    resumed = cli.status("replayed")["resumed"]["steps"]
    forgotten = stored - resumed  # counted since that generation, whose learner is dead
    assert books(cli).ledger["fenced"] == 0, "a replay's rows are of no life of the learner"
    kill(cli, "manager")
    go_on(cli)

    cli("down", "replayed")
    ended = books(cli)
    assert ended.ledger["in_flight"] <= HELD
    assert 0 < resumed <= stored + ended.ledger["lost"], "it may know more rows than a shard has lived to report"
    apart = ended.stored - ended.steps
    assert abs(apart - forgotten) <= UNCOUNTED, f"{apart} steps are stored and not counted, {forgotten} were forgotten"
    cli("up", spec, "-d")
    cli("wait", "replayed", "--for", f"consumed_steps={int(ended.steps) + 2000}", "--timeout", f"{LIMIT_S:g}s")
    cli("down", "replayed")
    again = books(cli)
    more, counted = again.stored - ended.stored, again.steps - ended.steps
    assert counted >= 2000
    assert abs(more - counted) <= UNCOUNTED, f"{more} steps were stored and {counted} counted"
