"""The document of `rlctl status -o json`, and its page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from rlctl.backends.base import Failure, Process, RunState
from rlctl.cli.run.snapshot import Snapshot, as_document, complete
from rlctl_agents.manager.web.control_api import ORDERS, READS, TAKES
from tests.docs.blocks import ROOT
from tests.manager.world import ACTOR, Run, status

FREE = {"conditions", "cpu_s", "evaluations", "info", "members", "policies", "replicas", "roles", "train_info"}
"""Keys below these are roles, modes, policies, fields of the spec, or names that an environment gave."""
NOW = datetime(2026, 11, 1, tzinfo=UTC)
STATE = RunState(
    "r", "0" * 32, "local", "running", "0.2.0", 1, NOW, "/runs/r", {}, {}, {"actor": 1}, {"actor": 1},
    Failure("actor/0", "actor 0 exited 1", ("last",), NOW, ("learner/0",)),
)  # fmt: skip


def keys(value: Any, below: str = "") -> Iterator[str]:
    """Keys at any depth."""
    if isinstance(value, list):
        for one in value:
            yield from keys(one, below)
    elif isinstance(value, dict):
        for key, one in value.items():
            if below in FREE:
                yield from keys(one)
            else:
                yield key
                yield from keys(one, key)


def test_every_key_of_the_document_is_on_the_page(ended: Run) -> None:
    ended.join("actor", ACTOR, 0)
    ended.report("actor", ACTOR, gauges={"train_return": 3.0}, counters={"episodes": 2.0})
    told = complete(status(ended), STATE)
    snapshot = Snapshot(STATE, (Process("actor", 0, "running"),), told, answered=True, at=NOW)
    found = set(keys(as_document(snapshot)))
    assert {"verdict", "train_return", "std", "tensors", "ledger", "silent_s", "first_cause_lines", "init"} <= found
    words = set(re.findall(r"\w+", (ROOT / "docs" / "status.md").read_text()))
    assert {name for name in found if not {name, name.removesuffix("_per_s")} & words} == set()


def test_every_key_is_there_before_the_manager_has_said_anything(ended: Run) -> None:
    before, told = complete(None, STATE), status(ended)
    assert before.keys() == complete(told, STATE).keys() == told.keys()
    for section in ("verdict", "totals", "throughput", "lag", "models", "stop"):
        assert before[section].keys() == told[section].keys()


def test_every_path_of_the_control_api_is_on_the_page() -> None:
    page = (ROOT / "docs" / "status.md").read_text()
    assert [path for path in READS if f"`GET {path}" not in page] == []
    assert [path for path in (*ORDERS, *TAKES) if f"`POST {path}`" not in page] == []
