"""Steps within one transaction, of which all changes of the tables are composed."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from typing import Final

from rlctl_ci.core.errors import CiError, LostLease
from rlctl_ci.core.states import ACTIVE, TERMINAL, WAITING, State, allowed
from rlctl_ci.store.database import Database

LEASE_S: Final = 60.0
ACTIVE_STATES: Final = ", ".join(f"'{state}'" for state in ACTIVE)
TERMINAL_STATES: Final = ", ".join(f"'{state}'" for state in sorted(TERMINAL))
WAITING_STATES: Final = ", ".join(f"'{state}'" for state in WAITING)
UNDECIDED: Final = "('planned', 'applied', 'rolling_back')"
"""States of a deployment that has begun and has no end yet: it holds its run."""
IGNORED: Final = "ignored: "
"""Prefix of the outcome of a delivery that made no build, before the reason."""
NEWEST_HEAD: Final = "SELECT sha FROM heads WHERE project = ? AND ref = ? ORDER BY id DESC LIMIT 1"
Hide = Callable[[str, str], str]
"""Project and text -> the text without secrets of the project."""


class Rows:
    """Access to the database that all writers of it share.

    Args:
        database: of the service.
        now: seconds since the epoch; may jump.
        hide: applied to the texts of builds, deployments and pins before they are stored.
    """

    def __init__(
        self, database: Database, now: Callable[[], float] = time.time, hide: Hide = lambda project, text: text
    ) -> None:
        self.database = database
        self.now = now
        self._hide = hide

    def _any(self, statement: str, *values: object) -> bool:
        return bool(self.database.read(f"{statement} LIMIT 1", *values))

    def _row(self, db: sqlite3.Connection, build: int) -> sqlite3.Row:
        row: sqlite3.Row | None = db.execute("SELECT * FROM builds WHERE id = ?", (build,)).fetchone()
        if row is None:
            raise CiError(f"there is no build {build}")
        return row

    def _mine(self, db: sqlite3.Connection, build: int, owner: str) -> sqlite3.Row:
        row = self._row(db, build)
        if row["lease_owner"] != owner or row["state"] not in ACTIVE:
            raise LostLease(f"build {build} is not ours any more: {row['state']}")
        return row

    def _hold(self, db: sqlite3.Connection, build: int) -> None:
        db.execute("UPDATE builds SET lease_until = ? WHERE id = ?", (self.now() + LEASE_S, build))

    def _move(self, db: sqlite3.Connection, row: sqlite3.Row, to: State, note: str) -> None:
        assert allowed(row["state"], to), f"build {row['id']}: {row['state']} -> {to}"
        now, note = self.now(), note and self._hide(row["project"], note)
        lease = "" if to in ACTIVE else ", lease_owner = '', lease_until = 0"
        db.execute(
            f"UPDATE builds SET state = ?, reason = ?, updated = ?{lease} WHERE id = ?", (to, note, now, row["id"])
        )
        db.execute("INSERT INTO events (build, at, state, note) VALUES (?, ?, ?, ?)", (row["id"], now, to, note))

    def _deployed(self, db: sqlite3.Connection, build: int, state: str, revision: int | None, note: str) -> None:
        note = note and self._hide(self._row(db, build)["project"], note)
        db.execute(
            "UPDATE deploys SET state = ?, revision = coalesce(?, revision), note = ?, updated = ? WHERE build = ?",
            (state, revision, note, self.now(), build),
        )

    def _pin(self, db: sqlite3.Connection, row: sqlite3.Row, why: str) -> None:
        db.execute(
            "INSERT OR REPLACE INTO pins VALUES (?, ?, ?, ?, ?)",
            (row["project"], row["ref"], row["sha"], self._hide(row["project"], why), self.now()),
        )

    def _unpin(self, db: sqlite3.Connection, row: sqlite3.Row) -> None:
        """Remove the pin of a branch: a commit that comes by itself is newer than the bad one. One that a person asks
        for need not be, and removes the pin only if it is the head of the branch."""
        if row["source"] == "person":
            newest = db.execute(NEWEST_HEAD, (row["project"], row["ref"])).fetchone()
            if newest is None or newest["sha"] != row["sha"]:
                return
        db.execute("DELETE FROM pins WHERE project = ? AND ref = ?", (row["project"], row["ref"]))

    def _begun(self, db: sqlite3.Connection, build: int) -> bool:
        """Whether a deployment of the build has begun and is not decided."""
        return (
            db.execute(f"SELECT 1 FROM deploys WHERE build = ? AND state IN {UNDECIDED}", (build,)).fetchone()
            is not None
        )
