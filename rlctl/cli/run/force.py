"""Ownership of runs, and --force-conflicts, on targets that know owners."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from rlctl.backends.base import Backend


@runtime_checkable
class Forcible(Protocol):
    """A backend that may take over what others own: fields, and runs."""

    force_conflicts: bool


@runtime_checkable
class Owned(Protocol):
    """A backend on which several users have runs."""

    def check_owner(self, run: str, verb: str) -> str:
        """Owner of a run, user@host.

        Raises:
            Conflict: it is another user, and nothing is to be forced.
        """


def force(backend: Backend, wanted: bool) -> None:
    """Let a backend take over what others own, when that is wanted."""
    if wanted and isinstance(backend, Forcible):
        backend.force_conflicts = True


def owner_of(backend: Backend, run: str, verb: str) -> str:
    """Owner of the run, user@host; "" on a target that knows no owners.

    Raises:
        Conflict: it is another user, and nothing is to be forced.
    """
    return backend.check_owner(run, verb) if isinstance(backend, Owned) else ""
