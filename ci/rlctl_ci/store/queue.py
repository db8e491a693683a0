"""The queue: every step of a build is one transaction, so a kill in between leaves the step before it or after it."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Final

from rlctl_ci.core.errors import WrongState
from rlctl_ci.core.states import MAX_ATTEMPTS, TERMINAL, WAITING, State
from rlctl_ci.store.deployments import Deployments
from rlctl_ci.store.inbox import SUPERSEDED, Inbox
from rlctl_ci.store.records import Build, Push
from rlctl_ci.store.rows import ACTIVE_STATES, LEASE_S, NEWEST_HEAD, UNDECIDED

RETRY_AFTER_S: Final = (5.0, 30.0, 120.0, 300.0, 600.0, 600.0, 600.0, 600.0, 600.0)
"""Waits after something was unreachable: about an hour, in which a newer commit supersedes the build."""


class Queue(Inbox, Deployments):
    """Queue of builds: from deliveries through their states to the end of their deployments."""

    def claim(self, owner: str, *, most: int, runs: Mapping[str, str]) -> Build | None:
        """The oldest build that may start, with its lease; None when there is none.

        A build whose deployment has begun comes first, whatever else is in flight: it holds its run already.

        Args:
            most: builds in flight, this one included, at most.
            runs: project -> the run that it changes.
        """
        now = self.now()
        due = (now, now + max(RETRY_AFTER_S))  # a longer wait began before the clock was set back
        if not self._any("SELECT 1 FROM builds WHERE state = 'queued' AND (not_before <= ? OR not_before > ?)", *due):
            return None
        with self.database.write() as db:
            full = db.execute(f"SELECT count(*) FROM builds WHERE state IN ({ACTIVE_STATES})").fetchone()[0] >= most
            held = {one["run"] for one in db.execute(f"SELECT run FROM deploys WHERE state IN {UNDECIDED}")}
            rows = db.execute(
                f"SELECT b.*, EXISTS (SELECT 1 FROM deploys d WHERE d.build = b.id AND d.state IN {UNDECIDED}) AS begun"
                " FROM builds b WHERE state = 'queued' AND (not_before <= ? OR not_before > ?)"
                " AND (begun OR project NOT IN (SELECT project FROM pauses))"
                " AND NOT EXISTS (SELECT 1 FROM builds o WHERE o.project = b.project AND o.ref = b.ref"
                f"      AND o.state IN ({ACTIVE_STATES})) ORDER BY begun DESC, id",
                due,
            ).fetchall()
            row = next((one for one in rows if one["begun"] or not (full or runs.get(one["project"]) in held)), None)
            if row is None:
                return None
            number = row["attempts"] + 1
            self._move(db, row, "fetching", f"attempt {number}")
            db.execute(
                "UPDATE builds SET attempts = ?, lease_owner = ?, lease_until = ? WHERE id = ?",
                (number, owner, now + LEASE_S, row["id"]),
            )
            return Build.of(self._row(db, row["id"]))

    def step(self, build: int, owner: str, to: State, note: str = "") -> None:
        """Move a build to its next state, for the holder of the lease.

        Raises:
            LostLease: another worker holds it.
        """
        with self.database.write() as db:
            self._move(db, self._mine(db, build, owner), to, note)
            self._hold(db, build)

    def beat(self, build: int, owner: str) -> str:
        """Renew the lease; returns the reason of a cancellation, empty when there is none.

        Raises:
            LostLease: another worker holds it.
        """
        with self.database.write() as db:
            row = self._mine(db, build, owner)
            self._hold(db, build)
            return str(row["cancel"])

    def end(self, build: int, owner: str, to: State, reason: str = "", *, code: str = "") -> None:
        """Move a build to a terminal state, for the holder of the lease.

        Raises:
            LostLease: another worker holds the build.
        """
        assert to in TERMINAL, to
        with self.database.write() as db:
            row = self._mine(db, build, owner)
            phase = row["state"] if to == "failed" else ""
            self._move(db, row, to, reason)
            db.execute("UPDATE builds SET phase = ?, code = ? WHERE id = ?", (phase, code, build))

    def give_way(self, build: int, owner: str, head: str) -> None:
        """Supersede a build whose branch is at another commit, and queue that one, unless it is queued already.

        Raises:
            LostLease: another worker holds the build.
        """
        with self.database.write() as db:
            row = self._mine(db, build, owner)
            self._move(db, row, "superseded", f"the branch is at {head[:12]}")
            newest = db.execute(NEWEST_HEAD, (row["project"], row["ref"])).fetchone()
            last = db.execute(
                "SELECT state FROM builds WHERE project = ? AND ref = ? AND sha = ? ORDER BY id DESC LIMIT 1",
                (row["project"], row["ref"], head),
            ).fetchone()
            superseded = last is not None and last["state"] == "superseded"  # by this one: its hook was a replay
            if newest is None or newest["sha"] != head or superseded:
                self._looked(db, row["project"], row["ref"], head)
                self._another(db, row["project"], Push(row["ref"], head), row["recipe"], "poll")

    def retry_later(
        self, build: int, owner: str, why: str, *, spent: bool = True, pause_s: float | None = None
    ) -> bool:  # fmt: skip
        """Return a build to the queue with a backoff, or end it if that was asked for; False: no attempt is left, and
        nothing is changed.

        Once its deployment has begun there are MAX_ATTEMPTS, as of those that are killed; before, a wait of
        RETRY_AFTER_S for each.

        Args:
            spent: whether this attempt counts; False: it only had to wait.
            pause_s: the wait; None: the backoff.
        """
        with self.database.write() as db:
            row = self._mine(db, build, owner)
            waits = spent and not self._begun(db, build)
            tries = row["faults"] + 1 if waits else row["attempts"] - row["faults"]
            if spent and tries >= (len(RETRY_AFTER_S) + 1 if waits else MAX_ATTEMPTS):
                return False
            if row["cancel"] and not self._begun(db, build):
                to: State = "superseded" if row["cancel"].startswith(SUPERSEDED) else "cancelled"
                self._move(db, row, to, row["cancel"].removeprefix(SUPERSEDED))
                return True
            if pause_s is None:
                pause_s = RETRY_AFTER_S[min(tries, len(RETRY_AFTER_S)) - 1]
            self._move(db, row, "interrupted", why)
            self._move(db, self._row(db, build), "queued", f"again in {pause_s:g} s: {why}")
            db.execute(
                "UPDATE builds SET not_before = ?, attempts = attempts - ?, faults = faults + ? WHERE id = ?",
                (self.now() + pause_s, not spent, waits, build),
            )
            return True

    def recover(self, alive: Set[str] = frozenset(), *, at_start: bool) -> list[int]:
        """Put builds without a worker back into the queue, or fail them when that has happened too often.

        A build with a deployment that has begun always goes back: it must be verified, or undone.

        Args:
            alive: owners of attempts in flight: they keep their leases, however the clock jumped.
            at_start: of the service: no other process is alive, whatever a lease says.
        """
        now, found = self.now(), []
        held = (now, now + LEASE_S)  # a lease that ends later is from before the clock was set back
        if not at_start and not self._any(
            f"SELECT 1 FROM builds WHERE state IN ({ACTIVE_STATES}, 'interrupted') AND lease_until NOT BETWEEN ? AND ?",
            *held,
        ):
            return []
        with self.database.write() as db:
            for row in db.execute(f"SELECT * FROM builds WHERE state IN ({ACTIVE_STATES}, 'interrupted')").fetchall():
                if row["lease_owner"] in alive or (not at_start and held[0] <= row["lease_until"] <= held[1]):
                    continue
                if row["state"] != "interrupted":
                    self._move(db, row, "interrupted", "the service ended while it was at work")
                row = self._row(db, row["id"])
                spent = row["attempts"] - row["faults"]
                if spent < MAX_ATTEMPTS or self._begun(db, row["id"]):
                    self._move(db, row, "queued", "")
                else:
                    self._move(db, row, "failed", f"interrupted {spent} times")
                    db.execute("UPDATE builds SET code = 'interrupted' WHERE id = ?", (row["id"],))
                found.append(int(row["id"]))
        return found

    def cancel(self, build: int, why: str) -> State:
        """Ask for the end of a build; one that no worker holds ends at once. Returns its state now.

        Raises:
            CiError: there is no such build.
            WrongState: it is over.
        """
        with self.database.write() as db:
            row = self._row(db, build)
            if row["state"] in TERMINAL:
                raise WrongState(f"build {build} is over: {row['state']}")
            if row["state"] in WAITING and not self._begun(db, build):
                self._move(db, row, "cancelled", why)
            else:
                db.execute("UPDATE builds SET cancel = ? WHERE id = ?", (why, build))
            state: State = self._row(db, build)["state"]
            return state
