"""The table of docs/trackers.md has every curve that the manager draws."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from rlctl_agents.manager.accounting.ledger import Rows
from rlctl_agents.manager.status.replay import DRAWN
from rlctl_agents.manager.status.report import ACTING, LEARNING
from rlctl_agents.manager.trackers.curves import curve_values
from tests.docs.blocks import ROOT

WAITS = ("learner_waits_data", "actor_waits_credit", "actor_waits_model", "learner_waits_draw", "shard_busy")


def told() -> set[str]:
    """Curves of the table; of names with one prefix the first has it."""
    table = (ROOT / "docs" / "trackers.md").read_text().partition("| curve |")[2].partition("\n\n")[0]
    found = set[str]()
    for row in table.splitlines():
        prefix = ""
        for name in re.findall(r"`([^`]+)`", row.split("|")[1] if row else ""):
            prefix = name.rpartition("/")[0] or prefix
            found.add(f"{prefix}/{name.rpartition('/')[2]}")
    return found


def test_every_curve_of_a_status_is_in_the_table() -> None:
    counters = [f"{name}_per_s" for name in (*ACTING, *LEARNING) if name != "episodes"]
    status: dict[str, Any] = {
        "throughput": dict.fromkeys(counters, 1.0),
        "lag": dict.fromkeys(("mean", "p95", "max"), 1.0),
        "verdict": dict.fromkeys(WAITS, 0.5),
        "replay": {**dict.fromkeys(DRAWN, 1.0), "shards": {"answer": 1}},
        "policies": {"POLICY": {"ledger": msgspec.to_builtins(Rows())}},
        "train_return": {"mean": 1.0},
        "train_info": {"NAME": 1.0},
    }
    drawn = set(curve_values(status, {"loss.total": 1.0, "grad_norm": 1.0, "lr": 1.0, "steps": 1.0}))
    rows = {name for name in drawn if name.startswith("ledger/")}
    assert drawn - rows <= told()
    page = (ROOT / "docs" / "trackers.md").read_text()
    assert [name for name in rows if f"`{name.rpartition('/')[2]}`" not in page] == []
