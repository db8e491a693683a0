"""Names of stored policies: `RUN`, `RUN@best`, `RUN@7`, or a folder that `rlctl pull` has made."""

from __future__ import annotations

import re
from typing import Final

from rlctl.errors import UsageError

TRIES: Final = 3
"""Attempts at a model of a live run, whose files others keep replacing, before the last fault is told."""
_WHICH: Final = re.compile("goal|best|last|[0-9]{1,9}")


def is_folder(model: str) -> bool:
    """Whether a folder is meant, not a run or one of its models: a name without a `/` is a run."""
    return "/" in model or model.startswith(".")


def split(model: str) -> tuple[str, str | None]:
    """Run and model of `RUN` or `RUN@WHICH`; None: the first of goal, best and last that there is.

    Raises:
        UsageError: neither.

    Example:
        `split("cartpole@007")` is `("cartpole", "7")`.
    """
    run, at, which = model.partition("@")
    if not run or (at and not _WHICH.fullmatch(which)):
        raise UsageError(
            f"{model!r} names no model", hint="as in cartpole@best, cartpole@goal, cartpole@last, cartpole@7"
        )
    return run, (str(int(which)) if which.isdigit() else which) or None
