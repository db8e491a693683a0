"""Inbox: turns deliveries, polls and requests of people into builds; of each branch one build waits."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable
from typing import Final

from rlctl_ci.store.records import Accepted, Push
from rlctl_ci.store.rows import ACTIVE_STATES, IGNORED, NEWEST_HEAD, WAITING_STATES, Rows

NOWHERE: Final = ""
"""Head of a branch that does not exist, or whose next poll is to make a build of what it finds."""
SUPERSEDED: Final = "superseded: "
"""Prefix of the reason of a cancellation by a newer commit."""


class Inbox(Rows):
    """Makes builds from deliveries, polls and requests of people."""

    def accept(self, project: str, push: Push, *, recipe: str, delivery: str, event: str = "push") -> Accepted:
        """Make a build from a verified delivery, unless the delivery or its commit is known already.

        Raises:
            Busy: it is not stored; the sender has to redeliver it.
        """
        with self.database.write() as db:
            known = db.execute(
                "SELECT build FROM deliveries WHERE project = ? AND delivery = ?"
                " AND outcome IN ('accepted', 'duplicate')",  # an ignored one may be redelivered for a new branch
                (project, delivery),
            ).fetchone()
            if known is not None:
                return Accepted(known["build"], False)
            build, new = self._build_of(db, project, push, recipe)
            if new:
                self._told(db, project, push)
            outcome = "accepted" if new else "duplicate"
            db.execute(
                "INSERT OR REPLACE INTO deliveries VALUES (?, ?, ?, ?, ?, ?)",
                (project, delivery, self.now(), event, outcome, build),
            )
            return Accepted(build, new)

    def ignore(self, project: str, *, delivery: str, event: str, why: str) -> None:
        """Remember a delivery that makes no build."""
        with self.database.write() as db:
            db.execute(
                "INSERT OR IGNORE INTO deliveries VALUES (?, ?, ?, ?, ?, NULL)",
                (project, delivery, self.now(), event[:100], f"{IGNORED}{why}"),
            )

    def again(self, project: str, push: Push, *, recipe: str) -> int:
        """Make a build that a person asks for; returns its number."""
        with self.database.write() as db:
            return self._another(db, project, push, recipe, "person")

    def looked(self, project: str, ref: str, head: str | None, *, recipe: str) -> int | None:
        """Make a build of a polled head, where the branch has moved since the last hook or poll; None: it has not.

        The first poll of a branch makes none: its head is no new push.

        Args:
            head: None: there is no such branch; one that is created later has moved.
        """
        with self.database.write() as db:
            newest = db.execute(NEWEST_HEAD, (project, ref)).fetchone()
            if newest is None:
                self._looked(db, project, ref, head or NOWHERE)
            if newest is None or head is None or newest["sha"] == head:
                return None
            self._looked(db, project, ref, head)
            return self._another(db, project, Push(ref, head), recipe, "poll")

    def forget_others(self, known: Collection[tuple[str, str]]) -> None:
        """Forget the heads of branches that are not polled any more: one that is configured again is new.

        Args:
            known: project and ref of those that are.
        """
        with self.database.write() as db:
            for row in db.execute("SELECT DISTINCT project, ref FROM heads").fetchall():
                if tuple(row) not in known:
                    db.execute("DELETE FROM heads WHERE project = ? AND ref = ?", tuple(row))

    def admit(self, cancel_running: Iterable[str] = ()) -> None:
        """Queue the received builds, of each branch only the newest one.

        A build that a person asks for is no newer commit: it supersedes only waiting builds of the same one.

        Args:
            cancel_running: projects in which a newer commit also ends the build that is under way, unless its
                deployment has begun.
        """
        eager = set(cancel_running)
        if not self._any("SELECT 1 FROM builds WHERE state = 'received'"):
            return  # without a write transaction
        with self.database.write() as db:
            rows = db.execute("SELECT * FROM builds WHERE state = 'received' ORDER BY id").fetchall()
            for row in rows:
                only = row["sha"] if row["source"] == "person" else None
                older = db.execute(
                    f"SELECT * FROM builds WHERE project = ? AND ref = ? AND id < ? AND state IN ({WAITING_STATES})"
                    " AND id NOT IN (SELECT build FROM deploys) AND (? IS NULL OR sha = ?)",
                    (row["project"], row["ref"], row["id"], only, only),
                ).fetchall()
                for one in older:
                    self._move(db, one, "superseded", f"build {row['id']} is of a newer commit of this branch")
                if row["project"] in eager and only is None:
                    db.execute(
                        "UPDATE builds SET cancel = ? WHERE project = ? AND ref = ? AND id < ?"
                        f" AND state IN ({ACTIVE_STATES}) AND cancel = '' AND id NOT IN (SELECT build FROM deploys)",
                        (f"{SUPERSEDED}build {row['id']} is of a newer commit", row["project"], row["ref"], row["id"]),
                    )
                if self._row(db, row["id"])["state"] == "received":
                    self._move(db, row, "queued", "")

    def _build_of(self, db: sqlite3.Connection, project: str, push: Push, recipe: str) -> tuple[int, bool]:
        known = db.execute(
            "SELECT id FROM builds WHERE project = ? AND ref = ? AND sha = ? AND recipe = ?"
            " ORDER BY generation DESC LIMIT 1",
            (project, push.ref, push.sha, recipe),
        ).fetchone()
        if known is not None:
            return int(known["id"]), False
        return self._insert(db, project, push, recipe, 0, "hook"), True

    def _another(self, db: sqlite3.Connection, project: str, push: Push, recipe: str, source: str) -> int:
        """Insert a build of a commit that may have had one."""
        last = db.execute(
            "SELECT max(generation) FROM builds WHERE project = ? AND ref = ? AND sha = ? AND recipe = ?",
            (project, push.ref, push.sha, recipe),
        ).fetchone()[0]
        return self._insert(db, project, push, recipe, 0 if last is None else last + 1, source)

    def _insert(
        self, db: sqlite3.Connection, project: str, push: Push, recipe: str, generation: int, source: str
    ) -> int:  # fmt: skip
        now = self.now()
        cursor = db.execute(
            "INSERT INTO builds (project, ref, sha, recipe, generation, state, author, title, source, created, updated)"
            " VALUES (?, ?, ?, ?, ?, 'received', ?, ?, ?, ?, ?)",
            (project, push.ref, push.sha, recipe, generation, push.author, push.title, source, now, now),
        )
        assert cursor.lastrowid is not None
        db.execute(
            "INSERT INTO events (build, at, state, note) VALUES (?, ?, 'received', ?)", (cursor.lastrowid, now, source)
        )
        return cursor.lastrowid

    def _told(self, db: sqlite3.Connection, project: str, push: Push) -> None:
        """Record a head from a hook; a known commit keeps its place, because the hook may be a replay."""
        db.execute("INSERT OR IGNORE INTO heads (project, ref, sha) VALUES (?, ?, ?)", (project, push.ref, push.sha))

    def _looked(self, db: sqlite3.Connection, project: str, ref: str, head: str) -> None:
        """Record a head as polled from the repository itself."""
        db.execute("INSERT OR REPLACE INTO heads (project, ref, sha) VALUES (?, ?, ?)", (project, ref, head))
