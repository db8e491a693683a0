"""End of an environment: what its `close` raises costs no result."""

from __future__ import annotations

import bdb
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Closes(Protocol):
    """Object with a `close` of the user's."""

    def close(self) -> None:
        """Release what it holds."""


@contextmanager
def closed(env: Closes) -> Iterator[None]:
    """Close an environment at the end of the block; what `close` raises is printed to stderr, but a debugger's `q`."""
    try:
        yield
    finally:
        try:
            env.close()
        except bdb.BdbQuit:
            raise
        except Exception:
            traceback.print_exc()
