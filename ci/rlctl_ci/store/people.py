"""Rights and actions of people: tokens, pauses, pins, the audit trail."""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, Literal, get_args

from rlctl_ci.core.errors import CiError
from rlctl_ci.store.database import Database
from rlctl_ci.store.inbox import NOWHERE

Scope = Literal["read", "trigger", "deploy", "admin"]
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)
PREFIX: Final = "rlctl_ci_"


@dataclass(frozen=True, slots=True)
class Person:
    """Owner of a token."""

    name: str
    scopes: frozenset[str]

    def may(self, scope: Scope) -> bool:
        return scope in self.scopes or "admin" in self.scopes


class People:
    """Tokens, pauses, pins and the audit trail.

    Args:
        database: of the service.
        now: seconds since the epoch.
    """

    def __init__(self, database: Database, now: Callable[[], float] = time.time) -> None:
        self.database = database
        self.now = now

    def issue(self, name: str, scopes: Collection[str], *, valid_s: float | None = None) -> str:
        """Issue a token, which is shown once and stored as its hash; one of the same name is revoked.

        Raises:
            CiError: a scope is unknown or there is none, or the name is invalid.
        """
        unknown = sorted(set(scopes) - set(SCOPES))
        if unknown or not scopes:
            raise CiError(f"no such scope: {', '.join(unknown) or 'none given'}", hint=f"scopes: {', '.join(SCOPES)}")
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}", name):
            raise CiError(f"{name!r} is no name for a token", hint="letters, digits, . _ @ -")
        token, now = PREFIX + secrets.token_urlsafe(32), self.now()
        expires = None if valid_s is None else now + valid_s
        with self.database.write() as db:
            db.execute("DELETE FROM tokens WHERE name = ?", (name,))
            db.execute(
                "INSERT INTO tokens VALUES (?, ?, ?, ?, ?)",
                (_hash(token), name, " ".join(sorted(set(scopes))), now, expires),
            )
        return token

    def revoke(self, name: str) -> bool:
        """End a token; False: there was none."""
        with self.database.write() as db:
            return db.execute("DELETE FROM tokens WHERE name = ?", (name,)).rowcount > 0

    def whose(self, token: str) -> Person | None:
        """Owner of a token; None: it is unknown or has expired. Writes nothing: reading works on a full disk.

        Looked up by its hash: 256 random bits need neither salt nor a slow hash, and no comparison leaks
        where it differs.
        """
        if not token.startswith(PREFIX) or len(token) > 200:
            return None
        rows = self.database.read("SELECT * FROM tokens WHERE hash = ?", _hash(token))
        if not rows:
            return None
        row = rows[0]
        if row["expires"] is not None and row["expires"] <= self.now():
            return None
        return Person(row["name"], frozenset(row["scopes"].split()))

    def any_token(self) -> bool:
        """Whether there is any token."""
        return bool(self.database.read("SELECT 1 FROM tokens LIMIT 1"))

    def pause(self, project: str, why: str) -> None:
        """Pause a project: no build of it starts until `resume`."""
        with self.database.write() as db:
            db.execute("INSERT OR REPLACE INTO pauses VALUES (?, ?, ?)", (project, why, self.now()))

    def resume(self, project: str) -> int:
        """End the pause and the pins of a project; returns how many there were.

        The next poll of a branch that was pinned builds its head.
        """
        with self.database.write() as db:
            db.execute(
                "INSERT OR REPLACE INTO heads (project, ref, sha) SELECT project, ref, ? FROM pins WHERE project = ?",
                (NOWHERE, project),
            )
            found = db.execute("DELETE FROM pauses WHERE project = ?", (project,)).rowcount
            return found + db.execute("DELETE FROM pins WHERE project = ?", (project,)).rowcount

    def audit(self, who: str, action: str, thing: str) -> None:
        with self.database.write() as db:
            db.execute(
                "INSERT INTO audit (at, who, action, object) VALUES (?, ?, ?, ?)", (self.now(), who, action, thing)
            )

    def audited(self, limit: int = 100) -> list[tuple[float, str, str, str]]:
        """Audit trail: time, person, action, object; newest first."""
        rows = self.database.read("SELECT * FROM audit ORDER BY id DESC LIMIT ?", limit)
        return [(row["at"], row["who"], row["action"], row["object"]) for row in rows]


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()
