"""Read-only queries for pages, verbs and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlctl_ci.core.errors import CiError
from rlctl_ci.store.database import Database
from rlctl_ci.store.records import Artifact, Build, Deploy
from rlctl_ci.store.rows import IGNORED, NEWEST_HEAD, TERMINAL_STATES


class Reading:
    """Queries of the database.

    Args:
        database: of the service.
    """

    def __init__(self, database: Database) -> None:
        self.database = database

    def build(self, number: int) -> Build:
        """Build by its number.

        Raises:
            CiError: there is none of that number.
        """
        row = self._all("SELECT * FROM builds WHERE id = ?", number)
        if not row:
            raise CiError(f"there is no build {number}", hint="rlctl ci builds")
        return Build.of(row[0])

    def builds(self, *, project: str | None = None, before: int | None = None, limit: int = 50) -> list[Build]:
        """Builds, newest first, with numbers below `before`; at most 200."""
        where, values = ["1"], []
        for clause, value in (("project = ?", project), ("id < ?", before)):
            if value is not None:
                where.append(clause)
                values.append(value)
        rows = self._all(
            f"SELECT * FROM builds WHERE {' AND '.join(where)} ORDER BY id DESC LIMIT ?", *values, min(limit, 200)
        )
        return [Build.of(row) for row in rows]

    def head(self, project: str, ref: str) -> str | None:
        """Head of a branch, by the last hook or poll."""
        rows = self._all(NEWEST_HEAD, project, ref)
        return rows[0]["sha"] if rows else None

    def stands(self, build: Build) -> str | None:
        """Commit of the build's branch that the run was given last, and has kept.

        None: there is none, or it has another recipe, or the last deployment has failed and was not rolled back: what
        the run has of it is not known.
        """
        rows = self._all(
            "SELECT sha, recipe, d.state FROM builds b JOIN deploys d ON d.build = b.id WHERE b.project = ?"
            " AND b.ref = ? AND d.state IN ('verified', 'failed') ORDER BY b.id DESC LIMIT 1",
            build.project, build.ref,
        )  # fmt: skip
        known = rows and rows[0]["state"] == "verified" and rows[0]["recipe"] == build.recipe
        return rows[0]["sha"] if known else None

    def events(self, build: int) -> list[tuple[float, str, str]]:
        """Events of a build in order: time, state, note."""
        rows = self._all("SELECT at, state, note FROM events WHERE build = ? ORDER BY id", build)
        return [(row["at"], row["state"], row["note"]) for row in rows]

    def artifacts(self, build: int) -> list[Artifact]:
        rows = self._all("SELECT name, reference, base, bytes FROM artifacts WHERE build = ? ORDER BY name", build)
        return [Artifact(**dict(row)) for row in rows]

    def all_made(self) -> list[Build]:
        """Every build that has made an artifact, newest first."""
        rows = self._all("SELECT * FROM builds WHERE id IN (SELECT build FROM artifacts) ORDER BY id DESC")
        return [Build.of(row) for row in rows]

    def made_since(self, project: str, content: str, since: float) -> bool:
        """Whether a build has made this content since then, by its digest, or a build of the project may be about to.

        An image that is there already is not pushed again: its build may rely on it, and not have recorded it yet.
        """
        return bool(
            self._all(
                "SELECT 1 FROM builds b LEFT JOIN artifacts a ON a.build = b.id WHERE"
                f" instr(a.reference, ?) AND (b.updated >= ? OR b.state NOT IN ({TERMINAL_STATES}))"
                " OR b.project = ? AND b.state IN ('building', 'pushing') LIMIT 1",
                content, since, project,
            )
        )  # fmt: skip

    def deploy(self, build: int) -> Deploy | None:
        rows = self._all("SELECT * FROM deploys WHERE build = ?", build)
        return Deploy.of(rows[0]) if rows else None

    def deploys(self, *, project: str | None = None, before: int | None = None, limit: int = 50) -> list[Deploy]:
        """Deployments, newest first, of builds with numbers below `before`; at most 200."""
        rows = self._all(
            "SELECT * FROM deploys WHERE (? IS NULL OR project = ?) AND (? IS NULL OR build < ?)"
            " ORDER BY build DESC LIMIT ?",
            project, project, before, before, min(limit, 200),
        )  # fmt: skip
        return [Deploy.of(row) for row in rows]

    def targets(self) -> list[tuple[str, str]]:
        """Context and namespace of every cluster that was ever deployed to."""
        return [(row["context"], row["namespace"]) for row in self._all("SELECT * FROM targets ORDER BY 1, 2")]

    def unfinished_rollbacks(self) -> list[Deploy]:
        """Deployments whose rollback has begun, of builds that are over."""
        rows = self._all(
            "SELECT d.* FROM deploys d JOIN builds b ON b.id = d.build"
            f" WHERE d.state = 'rolling_back' AND b.state IN ({TERMINAL_STATES})"
        )
        return [Deploy.of(row) for row in rows]

    def pins(self) -> dict[tuple[str, str], tuple[str, str]]:
        """Pins: (project, ref) -> bad commit, reason."""
        rows = self._all("SELECT * FROM pins")
        return {(row["project"], row["ref"]): (row["sha"], row["why"]) for row in rows}

    def pauses(self) -> dict[str, str]:
        """Pauses: project -> reason."""
        return {row["project"]: row["why"] for row in self._all("SELECT * FROM pauses")}

    def counts(self) -> Mapping[str, int]:
        """Number of builds in each state."""
        return {row[0]: row[1] for row in self._all("SELECT state, count(*) FROM builds GROUP BY state")}

    def ignored(self, *, project: str | None = None, limit: int = 10) -> list[tuple[float, str, str, str]]:
        """Deliveries that made no build, newest first: time, project, event and reason."""
        rows = self._all(
            "SELECT * FROM deliveries WHERE build IS NULL AND outcome LIKE ? AND (? IS NULL OR project = ?)"
            " ORDER BY rowid DESC LIMIT ?",
            f"{IGNORED}%", project, project, limit,
        )  # fmt: skip
        return [(row["at"], row["project"], row["event"], row["outcome"].removeprefix(IGNORED)) for row in rows]

    def ended(self) -> Mapping[str, int]:
        """Number of builds by terminal state, with deleted ones; one that was rolled back later is counted in both. One
        query: a build that is deleted between two would be counted twice, or not at all."""
        rows = self._all(
            "SELECT state, sum(builds) FROM (SELECT state, count(*) AS builds FROM builds"
            f" WHERE state IN ({TERMINAL_STATES})"
            " GROUP BY state UNION ALL SELECT e.state, count(*) FROM builds b JOIN events e ON e.build = b.id"
            " WHERE b.state = 'rolled_back' AND e.state IN ('succeeded', 'failed') GROUP BY e.state"
            " UNION ALL SELECT * FROM forgotten) GROUP BY state"
        )
        return dict(rows)

    def mark(self) -> str:
        """Version of the pages: another one whenever a page would look different."""
        newest = "(SELECT coalesce(max(id), 0) FROM events), (SELECT coalesce(max(rowid), 0) FROM deliveries)"
        rows = self._all(f"SELECT {newest}, (SELECT count(*) FROM pauses), (SELECT count(*) FROM pins)")
        return "-".join(map(str, rows[0]))

    def durations(self, most: int = 1000) -> list[tuple[str, float]]:
        """State and seconds in it, of the newest `most` events."""
        rows = self._all("SELECT build, at, state FROM events ORDER BY id DESC LIMIT ?", most)
        later: dict[int, float] = {}
        found = []
        for row in rows:
            if row["build"] in later:
                found.append((row["state"], max(0.0, later[row["build"]] - row["at"])))
            later[row["build"]] = row["at"]
        return found

    def _all(self, statement: str, *values: Any) -> list[Any]:
        return self.database.read(statement, *values)
