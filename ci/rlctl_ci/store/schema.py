"""Tables, and the migrations from every older version of them."""

from __future__ import annotations

from typing import Final

FIRST: Final = """
CREATE TABLE builds (
    id INTEGER PRIMARY KEY AUTOINCREMENT, project TEXT NOT NULL, ref TEXT NOT NULL, sha TEXT NOT NULL,
    recipe TEXT NOT NULL, generation INTEGER NOT NULL DEFAULT 0, state TEXT NOT NULL, reason TEXT NOT NULL DEFAULT '',
    phase TEXT NOT NULL DEFAULT '', code TEXT NOT NULL DEFAULT '', author TEXT NOT NULL DEFAULT '',
    title TEXT NOT NULL DEFAULT '', source TEXT NOT NULL DEFAULT 'hook', created REAL NOT NULL, updated REAL NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0, not_before REAL NOT NULL DEFAULT 0, lease_owner TEXT NOT NULL DEFAULT '',
    lease_until REAL NOT NULL DEFAULT 0, cancel TEXT NOT NULL DEFAULT '',
    UNIQUE (project, ref, sha, recipe, generation)
) STRICT;
CREATE INDEX builds_by_branch ON builds (project, ref, id);
CREATE TABLE deliveries (
    project TEXT NOT NULL, delivery TEXT NOT NULL, at REAL NOT NULL, event TEXT NOT NULL, outcome TEXT NOT NULL,
    build INTEGER REFERENCES builds (id), PRIMARY KEY (project, delivery)
) STRICT;
CREATE TABLE attempts (
    build INTEGER NOT NULL REFERENCES builds (id), number INTEGER NOT NULL, owner TEXT NOT NULL, started REAL NOT NULL,
    ended REAL, outcome TEXT NOT NULL DEFAULT '', PRIMARY KEY (build, number)
) STRICT;
CREATE TABLE events (
    id INTEGER PRIMARY KEY AUTOINCREMENT, build INTEGER NOT NULL REFERENCES builds (id), at REAL NOT NULL,
    state TEXT NOT NULL, note TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX events_by_build ON events (build, id);
CREATE TABLE artifacts (
    build INTEGER NOT NULL REFERENCES builds (id), name TEXT NOT NULL, reference TEXT NOT NULL, base TEXT NOT NULL,
    bytes INTEGER NOT NULL, PRIMARY KEY (build, name)
) STRICT;
CREATE TABLE deploys (
    build INTEGER PRIMARY KEY REFERENCES builds (id), project TEXT NOT NULL, ref TEXT NOT NULL, run TEXT NOT NULL,
    state TEXT NOT NULL, before_revision INTEGER, revision INTEGER, baseline TEXT NOT NULL DEFAULT '{}',
    note TEXT NOT NULL DEFAULT '', started REAL NOT NULL, updated REAL NOT NULL
) STRICT;
CREATE TABLE pins (
    project TEXT NOT NULL, ref TEXT NOT NULL, sha TEXT NOT NULL, why TEXT NOT NULL, at REAL NOT NULL,
    PRIMARY KEY (project, ref)
) STRICT;
CREATE TABLE pauses (project TEXT PRIMARY KEY, why TEXT NOT NULL, at REAL NOT NULL) STRICT;
CREATE TABLE tokens (
    hash TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, scopes TEXT NOT NULL, created REAL NOT NULL, expires REAL,
    used REAL
) STRICT;
CREATE TABLE audit (
    id INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, who TEXT NOT NULL, action TEXT NOT NULL,
    object TEXT NOT NULL
) STRICT;
"""
SECOND: Final = """
CREATE INDEX builds_by_state ON builds (state, id);
CREATE INDEX deploys_by_branch ON deploys (project, ref, build);
"""
THIRD: Final = """
CREATE TABLE heads (
    id INTEGER PRIMARY KEY AUTOINCREMENT, project TEXT NOT NULL, ref TEXT NOT NULL, sha TEXT NOT NULL,
    UNIQUE (project, ref, sha)
) STRICT;
INSERT INTO heads (project, ref, sha)
    SELECT project, ref, sha FROM builds WHERE source != 'person' GROUP BY project, ref, sha ORDER BY max(id);
"""
SLIM: Final = """
DROP TABLE attempts;
ALTER TABLE tokens DROP COLUMN used;
CREATE INDEX deliveries_by_build ON deliveries (build);
CREATE TABLE forgotten (state TEXT PRIMARY KEY, builds INTEGER NOT NULL) STRICT;
"""
TARGETS: Final = """
CREATE TABLE targets (context TEXT NOT NULL, namespace TEXT NOT NULL, PRIMARY KEY (context, namespace)) STRICT;
"""
FAULTS: Final = "ALTER TABLE builds ADD COLUMN faults INTEGER NOT NULL DEFAULT 0;"
MIGRATIONS: Final = (FIRST, SECOND, THIRD, SLIM, TARGETS, FAULTS)
"""Migrations in order; `PRAGMA user_version` holds how many were applied."""
