"""Gauges that processes report to the manager, by name."""

from __future__ import annotations

from rlctl_agents.types.control import Report

STOPPING = "stopping"
"""Gauge of every process: 1 once it has begun an orderly stop; the manager does not wait long for its reports then."""
MEMORY = "memory_bytes"
"""Gauge of every process: its resident memory."""
STEPS = "steps"
"""Gauge of a learner: agent steps that its weights were learned from, those of the generation it resumed from too."""
LEARNED = "learned"
"""Gauge of a learner: the same, each step as often as an optimizer step of these weights was made from it."""
RESTS = "rests"
"""Gauge of a learner: 1 while it makes no update because it was told to learn from no more agent steps."""
ENDLESS = "steps_without_end"
"""Gauge of an evaluator: steps in each environment since an episode ended in any of them, or since a match began."""
PLAYS = "plays"
"""Gauge of an evaluator: id of the match that it plays; 0: none."""
ENVIRONMENTS = "envs"
"""Gauge of an evaluator: environments of its vector."""
FAILED_GENERATION = "failed_generation"
"""Gauge of a learner: the newest generation that was not saved; 0: all were."""
RESUMING = "resuming"
"""Gauge of a learner: 1 while it reads the state from which it resumes, which may take minutes."""
UNREADABLE = "unreadable_parts"
"""Gauge of a shard that resumed from a generation: number of newer or other parts that it could not use."""
RESUMED = "resumed_generation"
"""Gauge of a learner that has resumed: the number of the generation."""

GROUP = "group"
"""Gauge of a learner that has a place: the number of its group, 0: it learns alone."""
RANK = "rank"
"""Gauge of a learner: its rank, -1: it waits for a place. Rank 0 publishes and saves, and speaks for the group."""
WORLD = "world"
"""Gauge of a learner that has a place: how many step together."""
BASE_ROWS = "base_rows"
"""Gauge of a learner that took no other's weights: rows of the ledger in the generation that it resumed from."""
SEEDED = "seeded"
"""Gauge of a learner: 1 when it resumed from another learner's state, not from a generation."""
STARVED = "starved"
"""Gauge of a learner: 1 while the others go on without it, because no actor sends it segments."""
STATE_GAUGES = frozenset(
    {STOPPING, STEPS, LEARNED, RESTS, FAILED_GENERATION, RESUMING, RESUMED, GROUP, RANK, WORLD, BASE_ROWS, SEEDED,
     STARVED, MEMORY, "queue_rows", "shards", "sampled_per_insert"}
)  # fmt: skip
"""Gauges of a learner that are not about learning, and in no chart of it."""


def group_of(report: Report) -> int | None:
    """Number of the group that a learner reports; None: it has no place."""
    number = report.gauges.get(GROUP)
    return None if number is None else int(number)
