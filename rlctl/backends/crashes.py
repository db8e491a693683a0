"""A process that crashes too often: the rule of every target."""

from __future__ import annotations

from typing import Final

USER_FAULT: Final = 3
"""Exit code of a role for a fault that only the user can mend: it is not started again."""
SHORT_LIVES: Final = 5
"""The last of so many in a row is given up: until then a neighbour may not have been up yet."""

SIGNALS: Final = {
    4: "SIGILL: native code for another processor",
    6: "SIGABRT: native code gave up",
    7: "SIGBUS: a fault in native code, or a full or vanished memory file",
    8: "SIGFPE: a fault in native code",
    11: "SIGSEGV: a fault in native code",
}


def too_often(short_lives: int) -> bool:
    """Whether a process that has died after so many short lives in a row will not make it."""
    return short_lives >= SHORT_LIVES
