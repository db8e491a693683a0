"""Every error that the command line reports to a user, with its exit code.

RlctlError                 1   base: the answer is "no"
├── BadSignature           1   a model is not as its signer left it, or is not signed
├── UsageError             2   the command line itself is wrong
├── SpecError              3   the spec (or a template) is invalid; carries every problem found
├── EnvironmentRefused     3   the environment of a stored model's spec cannot be made here
├── BackendUnreachable     4   the target does not answer, or refuses us
│   └── Unreadable         4   the record of a run cannot be read; its processes, logs and data are unaffected
├── Conflict               5   another user owns it, or the change needs a new run
│   └── Locked             5   another command holds its lock
├── TimedOut               6   the wait ran out; what was applied stays
│   └── Left               6   a wait in which nothing is written was left; the same command goes on
├── WorkloadFailed         7   the run itself failed
├── PartlyApplied          8   applied in part; the same command again continues
└── Refused                9   needs a confirmation (--yes) or --force

An exception that is none of these is a bug in rlctl: exit 70, its traceback goes to a file whose path is printed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


class RlctlError(Exception):
    """An error as the command line reports it: the fault and its cause, and what to do next.

    Args:
        message: one sentence that names the object by kind and name.
        hint: the next command or edit, one sentence; empty when there is none.
        objects: the things concerned, for machines (`-o json`).
    """

    exit_code: ClassVar[int] = 1
    reason: ClassVar[str] = "no"

    def __init__(self, message: str, *, hint: str = "", objects: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.objects = objects

    def as_plain(self) -> dict[str, object]:
        """The error as `-o json` has it."""
        return {
            "code": self.exit_code, "reason": self.reason, "message": self.message, "hint": self.hint,
            "objects": [*self.objects],
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault of a spec: location, cause and remedy. Prints as `file:line:column: path: message`."""

    path: str  # dotted, as the user wrote it: roles.actor.replicas
    message: str  # what is wrong with which value, and the remedy
    file: str = ""
    line: int = 0  # from 1; 0 = not from a file (a default or --set)
    column: int = 0  # from 1

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}:{self.column}: " if self.line else f"{self.file}: " if self.file else ""
        return f"{where}{self.path}: {self.message}" if self.path else f"{where}{self.message}"


class BadSignature(RlctlError):
    """A model without a valid signature of the expected key."""

    reason = "bad_signature"


class UsageError(RlctlError):
    exit_code = 2
    reason = "usage"


class SpecError(RlctlError):
    """A spec that cannot be used; `problems` holds every fault, in file order."""

    exit_code = 3
    reason = "invalid_spec"

    def __init__(self, problems: list[Problem], *, hint: str = "") -> None:
        count = f"{len(problems)} problem{'s' if len(problems) != 1 else ''}"
        super().__init__(count, hint=hint, objects=tuple(str(problem) for problem in problems))
        self.problems = problems


class EnvironmentRefused(RlctlError):
    """The environment of a stored model's spec cannot be constructed on this machine."""

    exit_code = 3
    reason = "invalid_spec"


class BackendUnreachable(RlctlError):
    exit_code = 4
    reason = "unreachable"


class Unreadable(BackendUnreachable):
    """The record of a run cannot be read; its processes, logs and data are unaffected.

    Args:
        message, hint, objects: as above.
        run: its name.
        storage: its folder, or its volume.
    """

    reason = "unreadable"

    def __init__(self, message: str, *, run: str, storage: str, hint: str = "", objects: tuple[str, ...] = ()) -> None:
        super().__init__(message, hint=hint, objects=objects)
        self.run = run
        self.storage = storage


class Conflict(RlctlError):
    exit_code = 5
    reason = "conflict"


class Locked(Conflict):
    """The lock of a run or a sweep is held by another command."""


class TimedOut(RlctlError):
    exit_code = 6
    reason = "timeout"


class Left(TimedOut):
    """A wait in which nothing is written was left, by Ctrl-C or --timeout."""


class WorkloadFailed(RlctlError):
    exit_code = 7
    reason = "workload_failed"


class PartlyApplied(RlctlError):
    """A change was applied only in part; the same command again continues it.

    Args:
        message, hint, objects: as above.
        remedy: the part of the hint that addresses the cause, and still holds after the change is undone.
    """

    exit_code = 8
    reason = "partial"

    def __init__(self, message: str, *, hint: str = "", objects: tuple[str, ...] = (), remedy: str = "") -> None:
        super().__init__(message, hint=hint, objects=objects)
        self.remedy = remedy


class Refused(RlctlError):
    exit_code = 9
    reason = "refused"
