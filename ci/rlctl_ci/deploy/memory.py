"""Memory limit for rendering a commit: one line of a template may ask for all there is."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rlctl_ci.core.errors import BuildStopped

RENDERING_MIB: Final = 1024
_STATM: Final = Path("/proc/self/statm")


@contextmanager
def bounded(most_mib: int = RENDERING_MIB) -> Iterator[None]:
    """Limit the further address space of this process while the block lasts; on Linux alone.

    Only for the block: a supervisor that the process starts, and all its roles, would inherit the limit.

    Raises:
        BuildStopped: the block needs more than `most_mib`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if not _STATM.exists():  # Linux alone reports what is mapped already
        yield
        return
    mapped = int(_STATM.read_text().split()[0]) * resource.getpagesize()
    most = mapped + (most_mib << 20)
    limits = [most, *(limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_AS, (min(limits), hard))
    try:
        yield
    except MemoryError as error:
        raise BuildStopped(
            "memory", f"its spec, templates and patches take more than {most_mib} MiB while they are rendered"
        ) from error
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
