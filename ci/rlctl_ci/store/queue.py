"""The queue: every step of a build is one transaction, so a kill in between leaves the step before it or after it."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from rlctl_ci.errors import CiError, LostLease, Overtaken, Settled
from rlctl_ci.states import ACTIVE, MAX_ATTEMPTS, TERMINAL, WAITING, State, allowed
from rlctl_ci.store.database import Database
from rlctl_ci.store.records import Accepted, Artifact, Build, Deploy, Push

LEASE_S: Final = 60.0
RETRY_AFTER_S: Final = (5.0, 30.0, 120.0)
SUPERSEDED: Final = "superseded: "
"""How the reason of a cancellation begins that no person has asked for."""
_ACTIVE = ", ".join(f"'{state}'" for state in ACTIVE)
_WAITING = ", ".join(f"'{state}'" for state in WAITING)
_HELD_DEPLOY = "('planned', 'applied', 'rolling_back')"


class Queue:
    """Deliveries in, builds through their states.

    Args:
        database: where everything is.
        now: seconds since the epoch; may jump.
    """

    def __init__(self, database: Database, now: Callable[[], float] = time.time) -> None:
        self.database = database
        self.now = now

    # in

    def accept(self, project: str, push: Push, *, recipe: str, delivery: str, event: str = "push") -> Accepted:
        """A verified delivery becomes a build, unless it, or its commit, is known already.

        Raises:
            Busy: it is not stored; the sender has to send it again.
        """
        with self.database.write() as db:
            known = db.execute(
                "SELECT build FROM deliveries WHERE project = ? AND delivery = ?", (project, delivery)
            ).fetchone()
            if known is not None:
                return Accepted(known["build"], False)
            build, new = self._build_of(db, project, push, recipe)
            outcome = "accepted" if new else "duplicate"
            db.execute(
                "INSERT INTO deliveries VALUES (?, ?, ?, ?, ?, ?)",
                (project, delivery, self.now(), event, outcome, build),
            )
            return Accepted(build, new)

    def ignore(self, project: str, *, delivery: str, event: str, why: str) -> None:
        """Remember a delivery that makes no build."""
        with self.database.write() as db:
            db.execute(
                "INSERT OR IGNORE INTO deliveries VALUES (?, ?, ?, ?, ?, NULL)",
                (project, delivery, self.now(), event[:100], f"ignored: {why}"),
            )

    def again(self, project: str, push: Push, *, recipe: str, source: str) -> int | None:
        """A build of what the forge itself says is the head of a branch, or a person asks for.

        A poll makes one only where the newest build of the branch is of another commit; a person always does.
        """
        with self.database.write() as db:
            newest = self._newest(db, project, push.ref)
            if source == "poll" and newest is not None and newest["sha"] == push.sha:
                return None
            last = db.execute(
                "SELECT max(generation) FROM builds WHERE project = ? AND ref = ? AND sha = ? AND recipe = ?",
                (project, push.ref, push.sha, recipe),
            ).fetchone()[0]
            return self._insert(db, project, push, recipe, 0 if last is None else last + 1, source)

    def admit(self, cancel_running: Iterable[str] = ()) -> int:
        """Received builds take their place; of each branch only the newest waits. Returns how many were admitted.

        Args:
            cancel_running: projects in which a newer commit also ends the build that is under way, unless its
                deployment has begun.
        """
        eager = set(cancel_running)
        if not self._any("SELECT 1 FROM builds WHERE state = 'received'"):
            return 0  # nobody who writes waits for this look
        with self.database.write() as db:
            rows = db.execute("SELECT * FROM builds WHERE state = 'received' ORDER BY id").fetchall()
            for row in rows:
                older = db.execute(
                    f"SELECT * FROM builds WHERE project = ? AND ref = ? AND id < ? AND state IN ({_WAITING})"
                    " AND id NOT IN (SELECT build FROM deploys)",
                    (row["project"], row["ref"], row["id"]),
                ).fetchall()
                for one in older:
                    self._move(db, one, "superseded", f"build {row['id']} is of a newer commit of this branch")
                if row["project"] in eager:
                    db.execute(
                        "UPDATE builds SET cancel = ? WHERE project = ? AND ref = ? AND id < ?"
                        f" AND state IN ({_ACTIVE}) AND cancel = '' AND id NOT IN (SELECT build FROM deploys)",
                        (f"{SUPERSEDED}build {row['id']} is of a newer commit", row["project"], row["ref"], row["id"]),
                    )
                if self._row(db, row["id"])["state"] == "received":
                    self._move(db, row, "queued", "")
            return len(rows)

    def claim(self, owner: str, *, most: int) -> Build | None:
        """The oldest build that may start, with its lease; None when there is none, or `most` are under way."""
        now = self.now()
        if not self._any("SELECT 1 FROM builds WHERE state = 'queued' AND not_before <= ?", now):
            return None
        with self.database.write() as db:
            if db.execute(f"SELECT count(*) FROM builds WHERE state IN ({_ACTIVE})").fetchone()[0] >= most:
                return None
            row = db.execute(
                "SELECT * FROM builds b WHERE state = 'queued' AND not_before <= ?"
                " AND (project NOT IN (SELECT project FROM pauses) OR EXISTS (SELECT 1 FROM deploys d"
                f"      WHERE d.build = b.id AND d.state IN {_HELD_DEPLOY}))"
                " AND NOT EXISTS (SELECT 1 FROM builds o WHERE o.project = b.project AND o.ref = b.ref"
                f"      AND o.state IN ({_ACTIVE})) ORDER BY id LIMIT 1",
                (now,),
            ).fetchone()
            if row is None:
                return None
            number = row["attempts"] + 1
            self._move(db, row, "fetching", f"attempt {number}")
            db.execute(
                "UPDATE builds SET attempts = ?, lease_owner = ?, lease_until = ? WHERE id = ?",
                (number, owner, now + LEASE_S, row["id"]),
            )
            db.execute(
                "INSERT INTO attempts (build, number, owner, started) VALUES (?, ?, ?, ?)",
                (row["id"], number, owner, now),
            )
            return Build.of(self._row(db, row["id"]))

    # through

    def step(self, build: int, owner: str, to: State, note: str = "") -> None:
        """The next state, for whoever holds the lease.

        Raises:
            LostLease: somebody else does.
        """
        with self.database.write() as db:
            self._move(db, self._mine(db, build, owner), to, note)
            self._hold(db, build)

    def beat(self, build: int, owner: str) -> str:
        """Keep the lease; returns why somebody wants this build to end, empty when nobody does.

        Raises:
            LostLease: it is somebody else's.
        """
        with self.database.write() as db:
            row = self._mine(db, build, owner)
            self._hold(db, build)
            return str(row["cancel"])

    def end(self, build: int, owner: str, to: State, reason: str = "", *, code: str = "") -> None:
        """A terminal state.

        Raises:
            LostLease: somebody else holds the build.
        """
        assert to in TERMINAL, to
        with self.database.write() as db:
            row = self._mine(db, build, owner)
            phase = row["state"] if to == "failed" else ""
            self._close(db, row, to)
            self._move(db, row, to, reason)
            db.execute("UPDATE builds SET phase = ?, code = ? WHERE id = ?", (phase, code, build))

    def retry_later(self, build: int, owner: str, why: str) -> bool:
        """Back to the queue after a pause; False when it has been tried often enough, and nothing is changed then."""
        with self.database.write() as db:
            row = self._mine(db, build, owner)
            if row["attempts"] >= MAX_ATTEMPTS:
                return False
            pause_s = RETRY_AFTER_S[min(row["attempts"], len(RETRY_AFTER_S)) - 1]
            self._close(db, row, "interrupted")
            self._move(db, row, "interrupted", why)
            self._move(db, self._row(db, build), "queued", f"again in {pause_s:g} s")
            db.execute("UPDATE builds SET not_before = ? WHERE id = ?", (self.now() + pause_s, build))
            return True

    def recover(self, owner: str, *, everybody: bool) -> list[int]:
        """Builds whose worker is gone go back to the queue, or fail when that has happened too often.

        A build whose deployment has begun always goes back: it must be verified, or undone.

        Args:
            owner: of this life of the service.
            everybody: at the start: no other process is alive, whatever a lease says and however the clock jumped.
        """
        now, found = self.now(), []
        if not everybody and not self._any(
            f"SELECT 1 FROM builds WHERE state IN ({_ACTIVE}, 'interrupted') AND lease_until < ?", now
        ):
            return []
        with self.database.write() as db:
            for row in db.execute(f"SELECT * FROM builds WHERE state IN ({_ACTIVE}, 'interrupted')").fetchall():
                mine = row["lease_owner"] == owner
                if not (everybody and not mine) and row["lease_until"] >= now:
                    continue
                if row["state"] != "interrupted":
                    self._close(db, row, "interrupted")
                    self._move(db, row, "interrupted", "the service ended while it was at work")
                row = self._row(db, row["id"])
                if row["attempts"] < MAX_ATTEMPTS or self._begun(db, row["id"]):
                    self._move(db, row, "queued", "")
                else:
                    self._move(db, row, "failed", f"interrupted {row['attempts']} times")
                    db.execute("UPDATE builds SET code = 'interrupted' WHERE id = ?", (row["id"],))
                found.append(int(row["id"]))
        return found

    def cancel(self, build: int, why: str) -> State:
        """Ask for the end of a build; one that nobody works on ends at once. Returns its state now.

        Raises:
            CiError: there is no such build.
            Settled: it is over.
        """
        with self.database.write() as db:
            row = self._row(db, build)
            if row["state"] in TERMINAL:
                raise Settled(f"build {build} is over: {row['state']}")
            if row["state"] in WAITING and not self._begun(db, build):
                self._move(db, row, "cancelled", why)
            else:
                db.execute("UPDATE builds SET cancel = ? WHERE id = ?", (why, build))
            state: State = self._row(db, build)["state"]
            return state

    # deployments

    def artifact(self, build: int, owner: str, made: Iterable[Artifact]) -> None:
        """Record what was made, before anything is deployed."""
        with self.database.write() as db:
            self._mine(db, build, owner)
            for one in made:
                db.execute(
                    "INSERT OR REPLACE INTO artifacts VALUES (?, ?, ?, ?, ?)",
                    (build, one.name, one.reference, one.base, one.bytes),
                )

    def plan_deploy(self, build: int, owner: str, run: str, before: int, baseline: Mapping[str, Any]) -> Deploy | None:
        """Write down that it is about to be deployed: once for each build, in order for each branch, one at a time.

        Returns:
            The deployment, perhaps of an earlier attempt; None: another build of the project is deployed right now.

        Raises:
            Overtaken: a newer build of the branch was deployed already, or is about to be.
        """
        now = self.now()
        with self.database.write() as db:
            row = self._mine(db, build, owner)
            known = db.execute("SELECT * FROM deploys WHERE build = ?", (build,)).fetchone()
            if known is not None:
                self._hold(db, build)
                return Deploy.of(known)
            if db.execute(
                "SELECT 1 FROM deploys WHERE project = ? AND ref = ? AND build > ?", (row["project"], row["ref"], build)
            ).fetchone():
                raise Overtaken(f"a newer commit of {row['ref']} was deployed meanwhile")
            if db.execute(
                f"SELECT 1 FROM deploys WHERE run = ? AND build != ? AND state IN {_HELD_DEPLOY}", (run, build)
            ).fetchone():
                return None
            db.execute(
                "INSERT INTO deploys VALUES (?, ?, ?, ?, 'planned', ?, NULL, ?, '', ?, ?)",
                (build, row["project"], row["ref"], run, before, json.dumps(baseline), now, now),
            )
            return Deploy.of(db.execute("SELECT * FROM deploys WHERE build = ?", (build,)).fetchone())

    def deployed(self, build: int, owner: str, state: str, *, revision: int | None = None, note: str = "") -> None:
        """How far its deployment is."""
        with self.database.write() as db:
            self._mine(db, build, owner)
            self._deployed(db, build, state, revision, note)

    def decide(
        self, build: int, owner: str, deploy: str, to: State, reason: str, *, revision: int | None = None, pin: str = ""
    ) -> None:
        """The end of a deployment and of its build, in one transaction.

        Args:
            deploy: verified, rolled_back, skipped or failed.
            pin: why the branch is pinned: neither this commit nor one before it is deployed again by itself.
        """
        with self.database.write() as db:
            row = self._mine(db, build, owner)
            self._deployed(db, build, deploy, revision, reason)
            if pin:
                self._pin(db, row, pin)
            phase = row["state"] if to in ("failed", "rolled_back") else ""
            self._close(db, row, to)
            self._move(db, row, to, reason)
            db.execute("UPDATE builds SET phase = ?, code = ? WHERE id = ?", (phase, "run" if phase else "", build))

    def undone(self, build: int, revision: int, why: str) -> None:
        """A person has rolled back what had been verified: the branch is pinned."""
        with self.database.write() as db:
            row = self._row(db, build)
            self._deployed(db, build, "rolled_back", revision, why)
            self._pin(db, row, why)

    def _any(self, statement: str, *values: object) -> bool:
        return self.database.connection().execute(f"{statement} LIMIT 1", values).fetchone() is not None

    # inside a transaction

    def _build_of(self, db: sqlite3.Connection, project: str, push: Push, recipe: str) -> tuple[int, bool]:
        known = db.execute(
            "SELECT id FROM builds WHERE project = ? AND ref = ? AND sha = ? AND recipe = ?"
            " ORDER BY generation DESC LIMIT 1",
            (project, push.ref, push.sha, recipe),
        ).fetchone()
        if known is not None:
            return int(known["id"]), False
        return self._insert(db, project, push, recipe, 0, "hook"), True

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

    def _row(self, db: sqlite3.Connection, build: int) -> sqlite3.Row:
        row: sqlite3.Row | None = db.execute("SELECT * FROM builds WHERE id = ?", (build,)).fetchone()
        if row is None:
            raise CiError(f"there is no build {build}")
        return row

    def _newest(self, db: sqlite3.Connection, project: str, ref: str) -> sqlite3.Row | None:
        found: sqlite3.Row | None = db.execute(
            "SELECT * FROM builds WHERE project = ? AND ref = ? ORDER BY id DESC LIMIT 1", (project, ref)
        ).fetchone()
        return found

    def _mine(self, db: sqlite3.Connection, build: int, owner: str) -> sqlite3.Row:
        row = self._row(db, build)
        if row["lease_owner"] != owner or row["state"] not in ACTIVE:
            raise LostLease(f"build {build} is not ours any more: {row['state']}")
        return row

    def _hold(self, db: sqlite3.Connection, build: int) -> None:
        db.execute("UPDATE builds SET lease_until = ? WHERE id = ?", (self.now() + LEASE_S, build))

    def _move(self, db: sqlite3.Connection, row: sqlite3.Row, to: State, note: str) -> None:
        assert allowed(row["state"], to), f"build {row['id']}: {row['state']} -> {to}"
        now = self.now()
        lease = "" if to in ACTIVE else ", lease_owner = '', lease_until = 0"
        db.execute(
            f"UPDATE builds SET state = ?, reason = ?, updated = ?{lease} WHERE id = ?", (to, note, now, row["id"])
        )
        db.execute("INSERT INTO events (build, at, state, note) VALUES (?, ?, ?, ?)", (row["id"], now, to, note))

    def _deployed(self, db: sqlite3.Connection, build: int, state: str, revision: int | None, note: str) -> None:
        db.execute(
            "UPDATE deploys SET state = ?, revision = coalesce(?, revision), note = ?, updated = ? WHERE build = ?",
            (state, revision, note, self.now(), build),
        )

    def _pin(self, db: sqlite3.Connection, row: sqlite3.Row, why: str) -> None:
        db.execute(
            "INSERT OR REPLACE INTO pins VALUES (?, ?, ?, ?, ?)",
            (row["project"], row["ref"], row["sha"], why, self.now()),
        )

    def _close(self, db: sqlite3.Connection, row: sqlite3.Row, outcome: str) -> None:
        db.execute(
            "UPDATE attempts SET ended = ?, outcome = ? WHERE build = ? AND number = ?",
            (self.now(), outcome, row["id"], row["attempts"]),
        )

    def _begun(self, db: sqlite3.Connection, build: int) -> bool:
        """A deployment of it has begun and is not decided."""
        return (
            db.execute(f"SELECT 1 FROM deploys WHERE build = ? AND state IN {_HELD_DEPLOY}", (build,)).fetchone()
            is not None
        )
