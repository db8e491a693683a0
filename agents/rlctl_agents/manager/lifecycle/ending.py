"""The last seconds of a manager: a last generation is saved, then everybody is told, then it ends itself."""

from __future__ import annotations

from typing import Literal

SAVE_S = {"finish": 60.0, "leave": 5.0}
"""Longest wait for the last generation, from the last evaluation on: a learner that was killed meanwhile comes back
within that, and says what it has. A manager that was asked to leave has ten seconds in all."""
TELL_S = 8.0
"""Longest wait for everybody to hear and to go; a learner saves once more when it goes."""

Step = Literal["not", "saving", "telling", "over"]


class Ending:
    """Where it stands; time is passed in.

    finish: the run is done, all roles end. leave: only the manager ends; another one may go on.
    """

    def __init__(self) -> None:
        self.step: Step = "not"
        self.how: Literal["finish", "leave"] = "leave"
        self._since = 0.0

    @property
    def tells(self) -> bool:
        """Whoever reports is told to stop."""
        return self.step == "telling"

    def begin(self, how: Literal["finish", "leave"], now: float) -> None:
        """Start to end. Asked to leave while it finishes, it saves no longer, and the run is not finished unless the
        roles were told so already.
        """
        if self.step == "not":
            self.step, self.how, self._since = "saving", how, now
        elif how == "leave":
            if self.step == "saving":
                self.how = "leave"
            self.step = "over"

    def hold(self, now: float) -> None:
        """Something else is waited for: what is to be saved has all its time after that."""
        self._since = now

    def cancel(self) -> None:
        """Not yet: nobody was told."""
        assert self.step in ("not", "saving"), "who was told goes"
        self.step, self.how = "not", "leave"

    def turn(self, now: float, *, saved: bool, everybody_gone: bool) -> None:
        """Go on as far as possible.

        Args:
            saved: nothing is wanted that a learner could still save.
            everybody_gone: all who live have heard that they must stop, and gone silent.
        """
        if self.step == "saving" and (saved or now - self._since >= SAVE_S[self.how]):
            self.step, self._since = ("telling" if self.how == "finish" else "over"), now
        elif self.step == "telling" and (everybody_gone or now - self._since >= TELL_S):
            self.step = "over"
