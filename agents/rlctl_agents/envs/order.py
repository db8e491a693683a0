"""Check of the order of decisions that the protocol `Env` promises, from answer to answer."""

from __future__ import annotations

import numpy as np

from rlctl_agents.types.experience import Decisions


class Order:
    """Check that first decisions come first and bring no reward, and an episode ends at once for all seats that acted.

    It runs at every training step: a few passes over the slots, into arrays that are reused.

    Args:
        envs: number of environments side by side.
        seats: seats of each environment.
    """

    def __init__(self, envs: int, seats: int) -> None:
        slots = envs * seats
        self._seats = seats
        self._playing = np.zeros(slots, np.bool_)  # has had a decision in this episode, which is not over
        self._final = np.zeros(slots, np.bool_)  # has its last decision in this answer
        self._had, self._ended, self._odd = (np.zeros(slots, np.bool_) for _ in range(3))  # the first K are used
        self._over, self._open = (np.zeros(envs, np.bool_) for _ in range(2))

    def begin(self) -> None:
        """Expect the answer of a reset next."""
        self._playing[:] = False

    def fault(self, decisions: Decisions) -> tuple[str, int] | None:
        """Fault in an answer, given the answers before it; by itself it has passed `check.fault`.

        Returns:
            The broken rule in words and the number of its environment; None when there is none. After a fault only
            `begin` may be called.
        """
        slot, first = decisions.slot, decisions.first
        count = len(slot)
        had, ended, odd = self._had[:count], self._ended[:count], self._odd[:count]
        np.take(self._playing, slot, out=had, mode="clip")  # the default mode fills a copy first
        np.logical_or(decisions.terminated, decisions.truncated, out=ended)

        np.equal(first, had, out=odd)
        if odd.any():
            return self._first_fault(decisions, int(odd.argmax()))

        np.not_equal(decisions.reward, 0, out=odd)
        np.logical_or(odd, ended, out=odd)
        np.logical_and(odd, first, out=odd)
        if odd.any():
            return self._hasty_fault(decisions, int(odd.argmax()))

        np.logical_not(ended, out=odd)
        self._playing[slot] = odd
        if not ended.any():
            return None
        # no slot plays on in an episode that has ended: neither one that was left out, nor one that acts all the same
        self._final[:] = False
        self._final[slot] = ended
        np.any(self._final.reshape(-1, self._seats), axis=1, out=self._over)
        np.any(self._playing.reshape(-1, self._seats), axis=1, out=self._open)
        np.logical_and(self._over, self._open, out=self._over)
        return self._end_fault(decisions, int(self._over.argmax())) if self._over.any() else None

    def _first_fault(self, decisions: Decisions, index: int) -> tuple[str, int]:
        slot = int(decisions.slot[index])
        if decisions.first[index]:
            what = f"the decision of slot {slot} is marked as first, but its episode goes on; it needs first = False"
        elif self._ended[index]:
            what = f"slot {slot} sees the end of an episode in which it has not acted; leave it out of this answer"
        else:
            what = f"the decision of slot {slot} is not marked as first, but begins an episode; it needs first = True"
        return what, slot // self._seats

    def _hasty_fault(self, decisions: Decisions, index: int) -> tuple[str, int]:
        slot = int(decisions.slot[index])
        got = f"reward {decisions.reward[index]}, {'an end' if self._ended[index] else 'no end'}"
        what = f"the first decision of slot {slot} has a reward or an end, got {got}; both come with a later decision"
        return what, slot // self._seats

    def _end_fault(self, decisions: Decisions, env: int) -> tuple[str, int]:
        seats = slice(env * self._seats, (env + 1) * self._seats)
        slot = seats.start + int(self._playing[seats].argmax())
        if decisions.first[decisions.slot == slot].any():
            what = f"slot {slot} acts in an episode that has ended; it can begin the next one in the next answer"
        else:
            what = f"the episode ended, but slot {slot}, which had played, does not see its end; it needs a last answer"
        return what, env
