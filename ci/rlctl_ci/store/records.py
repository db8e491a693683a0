"""Rows as the rest of the service sees them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rlctl_ci.core.states import TERMINAL, State


@dataclass(frozen=True, slots=True)
class Push:
    """A push as a forge reports it, reduced to what is used: nothing of it is an address to fetch from."""

    ref: str  # refs/heads/...
    sha: str  # full, lower case
    author: str = ""
    title: str = ""  # first line of the commit's message


@dataclass(frozen=True, slots=True)
class Build:
    """One commit of one branch, on its way to a run."""

    id: int
    project: str
    ref: str
    sha: str
    recipe: str
    generation: int  # counts returns of a branch to the same commit
    state: State
    reason: str
    phase: str  # where it failed
    code: str
    author: str
    title: str
    source: str  # hook, poll, person
    created: float
    updated: float
    attempts: int
    not_before: float
    lease_owner: str
    lease_until: float
    cancel: str  # reason for which its end was asked for; empty: it was not
    faults: int = 0  # attempts that something unreachable has ended before a deployment

    @classmethod
    def of(cls, row: sqlite3.Row) -> Build:
        return cls(**{name: row[name] for name in cls.__slots__})

    @property
    def spent(self) -> int:
        """Attempts that count towards MAX_ATTEMPTS."""
        return self.attempts - self.faults

    @property
    def terminal(self) -> bool:
        return self.state in TERMINAL

    @property
    def branch(self) -> str:
        return self.ref.removeprefix("refs/heads/")


@dataclass(frozen=True, slots=True)
class Accepted:
    """Outcome of an accepted delivery."""

    build: int | None  # None: it was deleted
    new: bool


@dataclass(frozen=True, slots=True)
class Artifact:
    """Artifact of a build: an image by digest, or `code`, a folder."""

    name: str
    reference: str
    base: str = ""
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Deploy:
    """The one deployment of a build."""

    build: int
    project: str
    ref: str
    run: str
    state: str  # planned, applied, verified, rolling_back, rolled_back, failed
    before_revision: int | None
    revision: int | None
    note: str
    started: float
    updated: float
    baseline: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, row: sqlite3.Row) -> Deploy:
        values = {name: row[name] for name in cls.__slots__}
        return cls(**{**values, "baseline": json.loads(values["baseline"])})
