"""Deployments: once for each build, in order for each branch, one at a time for each run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from rlctl_ci.core.errors import CiError, Overtaken
from rlctl_ci.core.states import State, allowed
from rlctl_ci.store.records import Artifact, Deploy
from rlctl_ci.store.rows import NEWEST_HEAD, UNDECIDED, Rows


class Deployments(Rows):
    """Artifacts of builds, and their deployments to runs."""

    def artifact(self, build: int, owner: str, made: Iterable[Artifact]) -> None:
        """Record what was made, before anything is deployed."""
        with self.database.write() as db:
            self._mine(db, build, owner)
            for one in made:
                db.execute(
                    "INSERT OR REPLACE INTO artifacts VALUES (?, ?, ?, ?, ?)",
                    (build, one.name, one.reference, one.base, one.bytes),
                )

    def is_free(self, run: str) -> bool:
        """Whether no deployment of the run is in flight."""
        return not self._any(f"SELECT 1 FROM deploys WHERE run = ? AND state IN {UNDECIDED}", run)

    def plan_deploy(self, build: int, owner: str, run: str, before: int, baseline: Mapping[str, Any]) -> Deploy | None:
        """Record a deployment before it begins: once for each build, in order for each branch, one at a time per run.

        Returns:
            The deployment, perhaps of an earlier attempt; None: the run is changed for another build right now.

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
            if db.execute(  # a person builds an older commit again, which overtakes none
                "SELECT 1 FROM deploys d JOIN builds b ON b.id = d.build WHERE d.project = ? AND d.ref = ? AND b.id > ?"
                f" AND (b.source != 'person' OR b.sha = ({NEWEST_HEAD}))",
                (row["project"], row["ref"], build, row["project"], row["ref"]),
            ).fetchone():
                raise Overtaken(f"a newer commit of {row['ref']} was deployed meanwhile")
            if db.execute(
                f"SELECT 1 FROM deploys WHERE run = ? AND build != ? AND state IN {UNDECIDED}", (run, build)
            ).fetchone():
                return None
            if cluster := baseline.get("cluster"):  # never forgotten: what was deployed may run there for years
                db.execute("INSERT OR IGNORE INTO targets VALUES (?, ?)", tuple(cluster))
            db.execute(
                "INSERT INTO deploys VALUES (?, ?, ?, ?, 'planned', ?, NULL, ?, '', ?, ?)",
                (build, row["project"], row["ref"], run, before, json.dumps(baseline), now, now),
            )
            return Deploy.of(db.execute("SELECT * FROM deploys WHERE build = ?", (build,)).fetchone())

    def unplan(self, build: int, owner: str) -> None:
        """Delete a planned deployment that was not begun: its run is free."""
        with self.database.write() as db:
            self._mine(db, build, owner)
            db.execute("DELETE FROM deploys WHERE build = ?", (build,))

    def deployed(self, build: int, owner: str, state: str, *, revision: int | None = None, note: str = "") -> None:
        """Record the progress of a build's deployment."""
        with self.database.write() as db:
            self._mine(db, build, owner)
            self._deployed(db, build, state, revision, note)

    def decide(
        self, build: int, owner: str, deploy: str, to: State, reason: str, *, revision: int | None = None, pin: str = ""
    ) -> None:
        """Record the end of a deployment and of its build, in one transaction.

        Args:
            deploy: verified, which ends the pin of the branch, rolled_back or failed; or rolling_back, which
                `unfinished_rollbacks` then lists.
            pin: reason to pin the branch: neither this commit nor one before it is deployed again by itself; empty: no.
        """
        with self.database.write() as db:
            row = self._mine(db, build, owner)
            self._deployed(db, build, deploy, revision, reason)
            if pin:
                self._pin(db, row, pin)
            if deploy == "verified":
                self._unpin(db, row)
            phase = row["state"] if to in ("failed", "rolled_back") else ""
            self._move(db, row, to, reason)
            db.execute("UPDATE builds SET phase = ?, code = ? WHERE id = ?", (phase, "run" if phase else "", build))

    def take_back(self, project: str, run: str, why: str) -> Deploy:
        """Begin the rollback that a person asks for, of the newest deployment that has changed the run.

        The deployment holds the run from here on, and its branch is pinned at once.

        Raises:
            CiError: there is none, or the run is being changed.
        """
        with self.database.write() as db:
            other = db.execute(f"SELECT build FROM deploys WHERE run = ? AND state IN {UNDECIDED}", (run,)).fetchone()
            if other is not None:
                raise CiError(
                    f"run {run} is being changed by build {other['build']}",
                    hint=f"roll back when that has ended: rlctl ci log {other['build']} -f",
                )
            found = db.execute(
                "SELECT build FROM deploys WHERE project = ? AND run = ? AND state IN ('verified', 'failed')"
                " AND revision != before_revision ORDER BY started DESC, build DESC",
                (project, run),
            ).fetchone()
            if found is None:
                raise CiError(
                    f"project {project} has no deployment to go back from", hint=f"rlctl rollback --run {run}"
                )
            row = self._row(db, found["build"])
            self._deployed(db, row["id"], "rolling_back", None, why)
            later = db.execute(
                "SELECT 1 FROM pins JOIN builds b USING (project, ref, sha) WHERE project = ? AND ref = ? AND b.id > ?",
                (project, row["ref"], row["id"]),
            ).fetchone()
            if later is None:  # else an earlier rollback has pinned a newer commit, which stays bad
                self._pin(db, row, why)
            return Deploy.of(db.execute("SELECT * FROM deploys WHERE build = ?", (row["id"],)).fetchone())

    def taken_back(self, build: int, note: str, revision: int | None, *, refused: bool = False) -> None:
        """Record the end of a rollback that `take_back` has begun, also for the build.

        Args:
            revision: revision of the run now; None: the rollback failed, and may be asked for again.
            refused: nothing was changed, and the pin is removed, unless the commit had failed before.
        """
        with self.database.write() as db:
            row = self._row(db, build)
            before = "verified" if row["state"] == "succeeded" else "failed"
            self._deployed(db, build, before if revision is None else "rolled_back", revision, note)
            if revision is not None and allowed(row["state"], "rolled_back"):
                self._move(db, row, "rolled_back", note)
            if refused and before == "verified":
                db.execute(
                    "DELETE FROM pins WHERE project = ? AND ref = ? AND sha = ?",
                    (row["project"], row["ref"], row["sha"]),
                )
