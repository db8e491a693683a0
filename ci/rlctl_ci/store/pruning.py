"""Deletion of builds that are not needed any more."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Final

from rlctl_ci.store.database import Database
from rlctl_ci.store.rows import TERMINAL_STATES, UNDECIDED

DELIVERED_S: Final = 30 * 86_400.0
"""Seconds for which a delivery is remembered, at least: forges redeliver for days."""
_TOGETHER: Final = 200
"""Builds deleted in one transaction, at most: hooks wait for it."""
_AMONG: Final = "IN (SELECT value FROM json_each(?))"


def old(database: Database, *, keep: int, until: float, gone: Collection[str]) -> list[int]:
    """Builds that can be deleted with their rows and logs, oldest first.

    Of each branch the newest builds stay, and the newest of those whose deployment was kept: later commits are compared
    with them, and rollbacks go to what was before them. So does the last build of an artifact that still exists, else
    no clean-up would ever find the artifact.

    Args:
        keep: newest builds of each kind that stay.
        until: seconds since the epoch; builds that ended later stay as well.
        gone: references of artifacts that no longer exist.
    """
    rows = database.read(
        "WITH numbered AS (SELECT b.id, b.project, b.ref, b.sha, b.state, b.updated, d.state AS deploy,"
        " row_number() OVER (PARTITION BY b.project, b.ref ORDER BY b.id DESC) AS place,"
        " row_number() OVER (PARTITION BY b.project, b.ref, d.state ORDER BY b.id DESC) AS place_of_deploy"
        " FROM builds b LEFT JOIN deploys d ON d.build = b.id)"
        f" SELECT id FROM numbered n WHERE state IN ({TERMINAL_STATES}) AND updated < ? AND place > ?"
        f" AND (deploy IS NULL OR deploy NOT IN {UNDECIDED} AND (deploy = 'rolled_back' OR place_of_deploy > ?))"
        " AND NOT EXISTS (SELECT 1 FROM pins p WHERE p.project = n.project AND p.ref = n.ref AND p.sha = n.sha)"
        " AND id NOT IN (SELECT max(build) FROM artifacts"
        "   WHERE reference NOT IN (SELECT value FROM json_each(?)) GROUP BY reference)"
        " ORDER BY id",
        until, keep, keep, json.dumps(list(gone)),
    )  # fmt: skip
    return [row["id"] for row in rows]


def forget(database: Database, builds: Sequence[int], *, delivered_until: float) -> None:
    """Delete builds after counting them by terminal state, and deliveries from before `delivered_until`."""
    for first in range(0, len(builds), _TOGETHER):
        those = (json.dumps(builds[first : first + _TOGETHER]),)
        with database.write() as db:
            db.execute(
                f"INSERT INTO forgotten SELECT state, count(*) FROM events WHERE build {_AMONG}"
                f" AND state IN ({TERMINAL_STATES}) GROUP BY state"
                " ON CONFLICT (state) DO UPDATE SET builds = builds + excluded.builds",
                those,
            )
            for table in ("events", "artifacts", "deploys"):
                db.execute(f"DELETE FROM {table} WHERE build {_AMONG}", those)
            db.execute(f"UPDATE deliveries SET build = NULL WHERE build {_AMONG}", those)
            db.execute(f"DELETE FROM builds WHERE id {_AMONG}", those)
    with database.write() as db:
        db.execute("DELETE FROM deliveries WHERE at < ?", (delivered_until,))
