"""What the system allows a process, raised as far as it goes without rights."""

from __future__ import annotations

import logging
import resource

ENOUGH = 65_536
"""Open files: one for each process that is connected."""

log = logging.getLogger(__name__)


def allow_many_files(enough: int = ENOUGH) -> int:
    """Raise the soft limit of open files towards the hard one; what it is now.

    Container runtimes start processes with 1024, which a thousand actors use up.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return enough
    wanted = enough if hard == resource.RLIM_INFINITY else min(enough, hard)
    if soft >= wanted:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        log.warning("the limit of open files stays at %d: %s", soft, error)
        return soft
    return wanted
