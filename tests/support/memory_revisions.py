"""Revisions that the memory target keeps, one of each changed `up`, and its answers when asked about itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from rlctl.backends.base import Applied, Check, Difference, Document, Revision, RunState
from rlctl.backends.differences import differences
from rlctl.backends.revisions import KEPT, check_fits, images_of, missing, rollback_note
from rlctl.errors import Conflict
from rlctl.plan import Plan


@dataclass
class MemoryRevision:
    """One revision with all that is needed to apply it again."""

    revision: Revision
    plan: Plan
    documents: list[Document]


@dataclass
class Revisions:
    """Those of one run, oldest first."""

    kept: list[MemoryRevision] = field(default_factory=list)

    def note(self, state: RunState, plan: Plan, documents: list[Document], at: datetime, note: str) -> None:
        """Keep the present revision of the run, unless it is kept already."""
        if self.kept and self.kept[-1].revision.number == state.revision:
            return
        revision = Revision(
            state.revision, at, "somebody@memory", state.rlctl_version, dict(state.spec), images_of(state.spec), note
        )
        self.kept = [*self.kept, MemoryRevision(revision, plan, list(documents))][-KEPT:]

    def of(self, run: str, number: int) -> MemoryRevision:
        """
        Raises:
            Conflict: it is not kept.
        """
        found = next((each for each in self.kept if each.revision.number == number), None)
        if found is None:
            raise missing(run, number, [each.revision.number for each in self.kept])
        return found


class Remembering(ABC):
    """The verbs of a backend that need nothing but what was applied; `checks` and `ails` plan the answers."""

    def __init__(self) -> None:
        self._revisions: dict[str, Revisions] = {}
        self.checks: list[Check] = []  # of the preflight
        self.ails: list[Check] = [Check("memory", "ok", "it is there")]  # what `doctor` finds
        self.forwarded: list[str] = []  # pages that are open now

    @abstractmethod
    def find(self, run: str) -> RunState | None: ...

    @abstractmethod
    def documents(self, run: str, revision: int | None = None) -> list[Document]: ...

    @abstractmethod
    def apply(
        self, plan: Plan, documents: Iterable[Document], spec: Mapping[str, Any], *, note: str = "", **more: Any
    ) -> Iterator[Applied]: ...

    def differences(self, plan: Plan, documents: Iterable[Document]) -> Iterator[Difference]:
        known = self.find(plan.run)
        yield from differences([] if known is None else self.documents(plan.run), documents)

    def preflight(self, plan: Plan, documents: Iterable[Document]) -> list[Check]:
        return list(self.checks)

    def doctor(self) -> list[Check]:
        return list(self.ails)

    def revisions(self, run: str) -> list[Revision]:
        self._there(run)
        return [each.revision for each in reversed(self._revisions[run].kept)]

    def rollback(self, run: str, number: int) -> Iterator[Applied]:
        state = self._there(run)
        kept = self._revisions[run].of(run, number)
        check_fits(state, kept.revision)
        yield from self.apply(kept.plan, kept.documents, kept.revision.spec, note=rollback_note(number))

    @contextmanager
    def forward(self, run: str, what: Literal["tensorboard", "status"]) -> Iterator[str]:
        state = self._there(run)
        if state.phase != "running":
            raise Conflict(f"run {run} is {state.phase}", hint="rlctl up SPEC", objects=(run,))
        self.forwarded.append(what)
        try:
            yield f"http://127.0.0.1:12345/{what}"
        finally:
            self.forwarded.remove(what)

    def _there(self, run: str) -> RunState:
        found = self.find(run)
        if found is None:
            raise Conflict(f"there is no run {run}", objects=(run,))
        return found

    def _note(self, state: RunState, plan: Plan, documents: list[Document], at: datetime, note: str) -> None:
        self._revisions.setdefault(state.run, Revisions()).note(state, plan, documents, at, note)
