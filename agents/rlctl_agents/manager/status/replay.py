"""Figures of a replay over all its shards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rlctl_agents.manager.accounting.counters import Rates
from rlctl_agents.manager.membership.leases import Holder
from rlctl_agents.manager.status.view import RunView

DRAWN = (
    "rows", "drawable", "array_bytes", "inserted_per_s", "sampled_per_s", "samples_per_insert", "stale_priorities",
)  # fmt: skip
"""Figures that are drawn as curves."""
STORED = ("inserted", "overwritten")
"""Counters of a shard; their difference is the rows that it holds."""


def figures(view: RunView, shards: Sequence[Holder]) -> dict[str, Any]:
    """Figures of the replay, as shown in the status.

    Rows, bytes and capacity are those of live shards; dropped rows were those in other shards when they ended. Inserted
    and sampled rows count from the beginning of the run, with those of dead shards. Samples per insert are those of the
    learner's limit: it knows which rows fill a replay, at first or again, and pay for no draws.

    Args:
        shards: shards that hold a lease.
    """
    members, boots = view.members, [one.boot for one in shards]
    gauges = [seen.gauges for boot in boots if (seen := members.seen.get(boot)) is not None]
    sums = {
        name: sum(int(one.get(name, 0.0)) for one in gauges) for name in ("rows", "drawable", "capacity", "array_bytes")
    }
    inserted, sampled = (int(members.totals.sum("replay", name)) for name in ("inserted", "sampled"))
    stored = _stored({name: members.totals.sum("replay", name) for name in STORED})
    here = [seen.counters for boot in boots if (seen := members.seen.get(boot)) is not None]
    here_rows = sum(_stored(one) + int(one.get("restored", 0.0)) for one in here)
    names = ("inserted", "sampled", "priorities", "stale_priorities")
    rates = members.rates.sums(boots, names)
    updates = rates["priorities"] + rates["stale_priorities"]
    learners = [one.gauges for one in members.heard("learner")]
    answer = [int(one["shards"]) for one in learners if "shards" in one]
    held = [one["sampled_per_insert"] for one in learners if "sampled_per_insert" in one]
    replay = view.settings.roles.replay
    return {
        "shards": {"wanted": 1 if replay is None else replay.replicas, "answer": min(answer, default=None)},
        **sums,
        "dropped": max(0, stored - here_rows),
        "inserted": inserted,
        "sampled": sampled,
        "inserted_per_s": round(rates["inserted"], 3),
        "sampled_per_s": round(rates["sampled"], 3),
        "wanted_samples_per_insert": wanted_ratio(view, boots) or None,
        "samples_per_insert": round(held[0], 4) if held and gauges else None,
        "stale_priorities": round(rates["stale_priorities"] / updates, 4) if updates else None,
    }


def _stored(counters: Mapping[str, float]) -> int:
    """Rows that shards hold, or held when they ended."""
    inserted, overwritten = (counters.get(name, 0.0) for name in STORED)
    return int(inserted - overwritten)


def wanted_ratio(view: RunView, boots: Iterable[str]) -> float:
    """`replay.samples_per_insert`, as reported by the shards; 0: no limit, or not known."""
    known = [seen.gauges for boot in boots if (seen := view.members.seen.get(boot)) is not None]
    return max((one.get("samples_per_insert", 0.0) for one in known), default=0.0)


def busy(rates: Rates, boot: str) -> float:
    """Share of the last seconds in which a shard computed: it inserted or drew, or had one core for other work."""
    return max(rates.of(boot, "insert_seconds") + rates.of(boot, "draw_seconds"), rates.of(boot, "cpu_seconds"))
