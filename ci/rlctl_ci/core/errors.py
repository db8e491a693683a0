"""Errors of a build, by what the queue does: retry the build, or end it."""

from __future__ import annotations

import errno
from typing import Final

from rlctl.errors import RlctlError

ENDED: Final = "ended"
"""Code of a `Transient`: a program was ended from outside, which costs no attempt."""
UNTOUCHED: Final = ("locked", "away")
"""Codes of a `Transient` of a deployment that has changed nothing: the run is held, or something cannot be asked."""
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)


class CiError(RlctlError):
    """Base class; the message is shown on the page of the build."""

    reason = "ci"


class CodedError(CiError):
    """Error with a code for machines.

    Args:
        code: one word: spec, build, signature, ...
    """

    def __init__(self, code: str, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code


class BuildStopped(CodedError):
    """The build cannot succeed, however often it is tried."""


class Transient(CodedError):
    """The network or a registry was unavailable: another attempt may succeed."""


class Overtaken(CiError):
    """A newer commit of the branch has come: this one must not be deployed."""


class Occupied(CiError):
    """The run is being changed for another build: this one is retried later."""


class Cancelled(CiError):
    """The build was cancelled."""


class LostLease(CiError):
    """Another worker, or the restarted service, holds the lease of this build: this attempt ends at once."""


class ShuttingDown(LostLease):
    """The service shuts down, and resumes this build when it is started again."""


class WrongState(CiError):
    """The request does not fit the state of the build: it is over, or not over yet."""


class Busy(CiError):
    """The database cannot be written to right now: locked, or its disk is full."""


def no_room(error: BaseException | None) -> OSError | None:
    """A full disk among the causes of an error, which says nothing about the commit; None: there is none."""
    while error is not None and not (isinstance(error, OSError) and error.errno in _NO_ROOM):
        error = error.__cause__
    return error
