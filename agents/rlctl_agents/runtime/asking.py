"""A value that only one thread can make whole, for another thread that asks now and then."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Asked(Generic[T]):
    """The owner looks between two pieces of work whether somebody asks; looking costs nothing.

    Args:
        value: given as long as the owner has not answered.
    """

    def __init__(self, value: T) -> None:
        self._value = value
        self._wanted = False
        self._made = threading.Event()

    def ask(self, timeout_s: float) -> T:
        """The owner's newest answer; the one before when it does not answer in time."""
        self._made.clear()
        self._wanted = True
        self._made.wait(timeout_s)
        return self._value

    def answer(self, make: Callable[[], T]) -> None:
        """Called by the owner, often: make the value if somebody waits for it."""
        if self._wanted:
            self._wanted = False
            self._value = make()
            self._made.set()
