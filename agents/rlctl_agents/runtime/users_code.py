"""What of a traceback is the user's own code, and not ours."""

from __future__ import annotations

import traceback
from pathlib import Path

_OURS = str(Path(__file__).parents[1])


def users_traceback(error: BaseException) -> str:
    """The innermost story of an error that is told by code outside this package: its frames there, and its last line.

    Returns:
        "" when none of its causes has been in such code.
    """
    cause = error.__cause__
    while cause is not None:
        told = traceback.TracebackException.from_exception(cause)
        theirs = [frame for frame in told.stack if not Path(frame.filename).is_relative_to(_OURS)]
        if theirs:
            told.stack = traceback.StackSummary.from_list(theirs)
            return "".join(told.format(chain=False)).rstrip()
        cause = cause.__cause__
    return ""
