"""Crash loops: the exit code, signals and limit that every target applies."""

from __future__ import annotations

from typing import Final

USER_FAULT: Final = 3
"""Exit code of a role for a fault that only the user can fix: it is not restarted."""
SHORT_LIVES: Final = 5
"""Short lives in a row after which a process is given up: with fewer, another process may not have been up yet."""

SIGNALS: Final = {
    4: "SIGILL: native code for another processor",
    6: "SIGABRT: native code gave up",
    7: "SIGBUS: a fault in native code, or a full or vanished memory file",
    8: "SIGFPE: a fault in native code",
    11: "SIGSEGV: a fault in native code",
}


def too_often(short_lives: int) -> bool:
    """Whether a process that has died after this many short lives in a row is in a crash loop, and given up."""
    return short_lives >= SHORT_LIVES
