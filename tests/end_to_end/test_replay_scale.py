"""The shards of a replay are scaled while a run goes on: no row is in the books twice, and learning does not stop."""

from __future__ import annotations

from typing import Any

import pytest

from rlctl_agents.roles.replay import LEAST_BUDGET
from tests.end_to_end.conftest import Cli, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]
LIMIT_S = 240.0
ACTORS, BLOCK, CAPACITY = 3, 4 * 16, 3000
"""BLOCK: rows, environments of an actor x unroll_length."""


def replay(cli: Cli) -> dict[str, Any]:
    """Figures of the replay, once the books balance."""
    status = cli.status("sharded")
    ledger = status["policies"]["main"]["ledger"]
    assert ledger["balanced"], ledger
    return dict(status["replay"])


def learned(cli: Cli) -> int:
    return int(cli.status("sharded")["totals"]["consumed_steps"])


def go_on(cli: Cli, more: int = 1000) -> None:
    """Wait until it has learned from so many steps more."""
    steps = learned(cli)
    cli("wait", "sharded", "--for", f"consumed_steps={steps + more}", "--timeout", f"{LIMIT_S:g}s")


def scaled(cli: Cli, shards: int) -> None:
    """Scale, and wait until all of them, and no others, are drawn from."""
    assert f"-> {shards}" in cli("scale", f"replay={shards}", "--run", "sharded").stdout
    wait_until(
        lambda: replay(cli)["shards"] == {"wanted": shards, "answer": shards},
        timeout_s=LIMIT_S, what=f"{shards} shards that answer",
    )  # fmt: skip
    wait_until(lambda: len(cli.pids("sharded", "replay")) == shards, timeout_s=LIMIT_S, what=f"{shards} processes")


def test_two_shards_are_scaled_to_three_and_to_one_and_learning_goes_on(cli: Cli) -> None:
    spec = cli.spec(
        "sharded", **cli.paced(),
        algorithm={"name": "dqn", "batch_size": 128}, replay={"capacity": CAPACITY, "learning_starts": 500},
        roles={"actor": {"replicas": ACTORS, "envs": 4}, "replay": {"replicas": 2}, "evaluator": {"replicas": 0}},
    )  # fmt: skip
    cli("up", spec, "-d")
    cli("wait", "sharded", "--for", "consumed_steps=1000", "--timeout", f"{LIMIT_S:g}s")
    others = {role: cli.pids("sharded", role) for role in ("manager", "learner", "actor", "modelpool")}
    first = cli.pids("sharded", "replay")
    assert replay(cli)["dropped"] == 0

    scaled(cli, 3)
    go_on(cli)
    whole = 2 * (CAPACITY // 2) + CAPACITY // 3
    assert whole <= replay(cli)["capacity"] <= whole + 3 * BLOCK, "the third has a third of what the spec says"
    go_on(cli, CAPACITY)  # the actor whose shard it is fills it
    before = replay(cli)
    assert before["rows"] > 2 * (CAPACITY // 2), "the third holds some"
    assert set(first) < set(cli.pids("sharded", "replay")), "nobody was started again"

    cli("up", spec, "-d")
    assert replay(cli)["shards"]["wanted"] == 3, "the spec says 2, and did before"
    scaled(cli, 1)
    wait_until(
        lambda: len(cli.status("sharded")["roles"]["replay"]) == 1,
        timeout_s=LIMIT_S, what="the leases of both shards that ended to be over",
    )  # fmt: skip
    told = replay(cli)
    assert 0 < told["dropped"] <= whole + 3 * BLOCK
    assert told["rows"] <= CAPACITY // 2 + BLOCK
    assert f"{told['dropped']:,} went with shards that ended" in cli("status", "sharded").stdout
    go_on(cli)
    assert replay(cli)["dropped"] == told["dropped"]
    assert {role: cli.pids("sharded", role) for role in others} == others, "nobody else was touched"

    cli("down", "sharded")
    ledger = cli.status("sharded")["policies"]["main"]["ledger"]
    assert ledger["balanced"], ledger
    assert ledger["in_flight"] <= LEAST_BUDGET + ACTORS * BLOCK
    assert ledger["lost"] <= 2 * LEAST_BUDGET + ACTORS * BLOCK, "what was on its way to two shards that were removed"
