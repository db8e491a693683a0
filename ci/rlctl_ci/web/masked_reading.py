"""Queries for pages and API with secrets masked, also those that became secret after a text was stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from rlctl_ci.core.service import Service
from rlctl_ci.store.reading import Reading
from rlctl_ci.store.records import Build, Deploy


class MaskedReading(Reading):
    """Queries of what pages and API show, with secrets masked.

    Args:
        service: owner of the database and of the secrets.
    """

    def __init__(self, service: Service) -> None:
        super().__init__(service.database)
        self._mask, self._looks = service.hiding, service.looks

    def build(self, number: int) -> Build:
        found = super().build(number)
        return replace(found, reason=self._mask(found.project)(found.reason))

    def builds(self, *, project: str | None = None, before: int | None = None, limit: int = 50) -> list[Build]:
        found = super().builds(project=project, before=before, limit=limit)
        masks = self._masks(one.project for one in found)
        return [replace(one, reason=masks[one.project](one.reason)) for one in found]

    def events(self, build: int) -> list[tuple[float, str, str]]:
        mask = self._mask(super().build(build).project)
        return [(at, state, mask(note)) for at, state, note in super().events(build)]

    def deploy(self, build: int) -> Deploy | None:
        found = super().deploy(build)
        return None if found is None else replace(found, note=self._mask(found.project)(found.note))

    def deploys(self, *, project: str | None = None, before: int | None = None, limit: int = 50) -> list[Deploy]:
        found = super().deploys(project=project, before=before, limit=limit)
        masks = self._masks(one.project for one in found)
        return [replace(one, note=masks[one.project](one.note)) for one in found]

    def ignored(self, *, project: str | None = None, limit: int = 10) -> list[tuple[float, str, str, str]]:
        found = super().ignored(project=project, limit=limit)
        masks = self._masks(name for _, name, _, _ in found)
        return [(at, name, event, masks[name](why)) for at, name, event, why in found]

    def pins(self) -> dict[tuple[str, str], tuple[str, str]]:
        found = super().pins()
        masks = self._masks(project for project, _ in found)
        return {key: (sha, masks[key[0]](why)) for key, (sha, why) in found.items()}

    def pauses(self) -> dict[str, str]:
        return {name: self._mask(name)(why) for name, why in super().pauses().items()}

    def blind(self) -> dict[str, tuple[float, str]]:
        """Projects whose branches cannot be looked at: since when, 0: from the start on, and why."""
        return {name: (at, self._mask(name)(why)) for name, (at, why) in self._looks.items() if why}

    def mark(self) -> str:
        return "-".join([super().mark(), *(name for name, (_, why) in self._looks.items() if why)])

    def _masks(self, names: Iterable[str]) -> dict[str, Callable[[str], str]]:
        """Masks by project, so that the files of its secrets are read once for a list."""
        return {name: self._mask(name) for name in set(names)}
