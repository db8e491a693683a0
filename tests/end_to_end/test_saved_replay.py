"""A run with its replay in its generations: all of it is killed at once, then a shard while it is waited for."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlctl_agents.checkpoint.streamed import StoredArrays
from tests.end_to_end.conftest import Cli, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.timeout(1200)]
LIMIT_S = 240.0
STARTS = 1500
SHARDS = 2


def spec_of(cli: Cli) -> str:
    return cli.spec(
        "saved", **cli.paced(),
        algorithm={"name": "dqn", "batch_size": 128},
        replay={"capacity": 8000, "learning_starts": STARTS, "checkpoint": "full"},
        roles={"actor": {"replicas": 2, "envs": 4}, "replay": {"replicas": SHARDS}, "evaluator": {"replicas": 0}},
        checkpoint={"every": "5s"},
    )  # fmt: skip


def folder(cli: Cli) -> Path:
    return cli.root("saved") / "checkpoints"


def newest(cli: Cli) -> dict[str, Any]:
    """The newest generation; {}: there is none."""
    found = sorted(folder(cli).glob("generation-*.json"))
    return json.loads(found[-1].read_text())["generation"] if found else {}


def whole(cli: Cli, above: int = 0) -> dict[str, Any]:
    """Wait for a generation after this one that has the parts of all shards."""
    wait_until(
        lambda: (found := newest(cli)).get("number", 0) > above and not found["absent"],
        timeout_s=LIMIT_S, what="a generation with all parts",
    )  # fmt: skip
    return newest(cli)


def rows_of(cli: Cli, generation: dict[str, Any]) -> int:
    """Rows in its parts."""
    rows = 0
    for name in (f"replay{index}" for index in range(SHARDS)):
        file, sha256 = generation["parts"][name], generation["sha256"][name]
        with contextlib.closing(StoredArrays(folder(cli), file, sha256)) as stored:
            rows += int(stored.plain["filled"])
    return rows


def second_shard(cli: Cli) -> int:
    """Pid of replay/1, once both shards live."""
    wait_until(lambda: len(cli.pids("saved", "replay")) == SHARDS, timeout_s=LIMIT_S, what="both shards")
    return cli.pids("saved", "replay")[1]


def kill_all(cli: Cli) -> None:
    """As when the power fails: all processes of the run, supervisor and watch included."""
    ours = str(Path(cli.env["XDG_STATE_HOME"]).parent)

    def alive() -> list[psutil.Process]:
        return [one for one in psutil.process_iter(["cmdline"]) if ours in " ".join(one.info["cmdline"] or ())]

    while found := alive():
        for one in found:
            with contextlib.suppress(psutil.NoSuchProcess):  # the supervisor has taken it along
                one.kill()
        psutil.wait_procs(found, timeout=10)


def balanced(cli: Cli) -> dict[str, Any]:
    status = cli.status("saved")
    assert status["policies"]["main"]["ledger"]["balanced"], status["policies"]["main"]["ledger"]
    return status


def test_a_run_that_loses_its_power_goes_on_with_its_rows_and_one_that_loses_a_shard_saves_without_it(
    cli: Cli,
) -> None:
    spec = spec_of(cli)
    cli("up", spec, "-d")
    cli("wait", "saved", "--for", f"consumed_steps={2 * STARTS}", "--timeout", f"{LIMIT_S:g}s")
    number = whole(cli)["number"]
    cli("wait", "saved", "--for", f"consumed_steps={3 * STARTS}", "--timeout", f"{LIMIT_S:g}s")
    before = balanced(cli)
    kill_all(cli)

    saved = whole(cli, number - 1)
    stored = rows_of(cli, saved)
    assert stored > STARTS
    cli("up", spec, "-d")
    seen: dict[str, Any] = {}

    def learns() -> bool:
        seen.update(cli.status("saved"))
        both = seen["replay"]["capacity"] == before["replay"]["capacity"]  # a learner begins with one shard
        return both and bool(seen["resumed"]) and seen["policies"]["main"]["steps"] > saved["steps"]

    wait_until(learns, timeout_s=LIMIT_S, what="an update and both shards after the power came back")
    assert seen["resumed"]["number"] == saved["number"]
    inserted, drawn = (seen["replay"][name] - before["replay"][name] for name in ("inserted", "sampled"))
    unpaid = inserted - drawn / seen["replay"]["wanted_samples_per_insert"]
    assert unpaid < STARTS / 2, "nobody has filled the replay anew"
    logs = cli("logs", "replay", "--run", "saved").stdout
    for index in range(SHARDS):
        assert f"restored replay{index} of generation {saved['number']}" in logs
    assert seen["replay"]["rows"] >= min(stored, seen["replay"]["capacity"])
    steps = int(seen["totals"]["consumed_steps"])
    cli("wait", "saved", "--for", f"consumed_steps={steps + 1000}", "--timeout", f"{LIMIT_S:g}s")
    balanced(cli)

    # a shard that hangs, and is killed while it is waited for: its successor adds its part to the same generation
    whole(cli, saved["number"])
    hangs = second_shard(cli)
    os.kill(hangs, signal.SIGSTOP)

    def waits_for_it() -> bool:
        """A generation that is not committed has the parts of all but this shard."""
        parts: dict[int, set[str]] = {}
        for path in folder(cli).glob("main-*"):
            _, number, part = path.name.split("-")[:3]
            parts.setdefault(int(number), set()).add(part)
        waiting = [parts[one] for one in parts if one > newest(cli)["number"]]
        return any({"learner", "replay0"} <= held and "replay1" not in held for held in waiting)

    wait_until(waits_for_it, timeout_s=LIMIT_S, what="a generation that waits for a part")
    last = newest(cli)["number"]
    os.kill(hangs, signal.SIGKILL)
    last = whole(cli, last)["number"]

    # one that hangs and is not killed loses its lease, and the generation is committed without it
    hangs = second_shard(cli)
    os.kill(hangs, signal.SIGSTOP)
    wait_until(lambda: "replay1" in newest(cli)["absent"], timeout_s=LIMIT_S, what="a generation without replay/1")
    assert newest(cli)["number"] > last
    wait_until(  # a status is made each second
        lambda: "without the rows of replay/1" in cli("status", "saved").stdout,
        timeout_s=LIMIT_S, what="the status of that generation",
    )  # fmt: skip
    os.kill(hangs, signal.SIGCONT)
    last = whole(cli, newest(cli)["number"])["number"]

    cli("down", "saved")
    assert newest(cli)["number"] > last, "the last one"
    final = balanced(cli)
    assert final["policies"]["main"]["ledger"]["in_flight"] <= before["replay"]["capacity"]
    assert not list(folder(cli).glob("*.tmp.*")), "what the dead left was removed"
