"""Errors of a build, by what the queue does: try again, or end it."""

from __future__ import annotations

from rlctl.errors import RlctlError


class CiError(RlctlError):
    """The base; the message is shown on the page of the build."""

    reason = "ci"


class CodedError(CiError):
    """An error of which machines read one word.

    Args:
        code: spec, build, signature, ...
    """

    def __init__(self, code: str, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code


class BuildStopped(CodedError):
    """The build cannot succeed, however often it is tried."""


class Transient(CodedError):
    """The network or a registry was away: another attempt may succeed."""


class Overtaken(CiError):
    """A newer commit of the branch has come: this one must not be deployed."""


class Occupied(CiError):
    """The run is being changed for another build: this one comes later."""


class Cancelled(CiError):
    """The build was cancelled."""


class LostLease(CiError):
    """Another worker, or another life of the service, has this build now: not a step further."""


class Ending(LostLease):
    """The service ends: its next life goes on with this build."""


class Settled(CiError):
    """The build is over, or not over yet: what was asked for does not fit its state."""


class Busy(CiError):
    """The database cannot be written to right now: locked, or its disk is full."""
