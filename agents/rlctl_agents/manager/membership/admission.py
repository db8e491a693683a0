"""Admission of processes to a run: hellos are granted a lease or refused, and actors get tickets for learners."""

from __future__ import annotations

from collections.abc import Callable

from rlctl_agents.manager import timing
from rlctl_agents.manager.events import Events
from rlctl_agents.manager.membership.experience_spec import require_ours
from rlctl_agents.manager.membership.leases import Holder, LeaseGrant
from rlctl_agents.manager.membership.registry import RECEIVERS, Members
from rlctl_agents.manager.timing import Clock
from rlctl_agents.runtime.addresses import CHANNELS
from rlctl_agents.types.control import Hello, Origin
from rlctl_agents.wire.log_throttle import LogThrottle

LEASED_S = 120.0
"""Seconds, at least, for which a learner gives credit to a boot that the manager does not hear of any more."""
TOLD_AGAIN_S = 60.0
"""Seconds between two events of the same refusal, at least."""


class MustWait(Exception):
    """A process may not join yet; the text says why."""


class LeaseAdmission:
    """Admission of processes: grants leases and tickets, or refuses.

    Args:
        run, uid: name and uid of the run.
        members: registry that holds the leases.
        ticket: makes the proof for learners that a boot was leased at a Unix time; "" where there are no keys.
        admit: called with each hello, and whether its boot is known; raises ValueError for one too many.
    """

    def __init__(
        self,
        run: str,
        uid: str,
        members: Members,
        events: Events,
        clock: Clock,
        *,
        ticket: Callable[[str, int], str],
        admit: Callable[[Hello, bool], None],
    ) -> None:
        self._run, self._uid, self._members, self._events, self._clock = run, uid, members, events, clock
        self._ticket, self._admit = ticket, admit
        self._began = clock.monotonic()
        self._refusals = LogThrottle(clock.monotonic, every_s=TOLD_AGAIN_S)
        self.experience = members.experience
        self.joined: set[str] = set()
        """Roles of which a process has joined."""
        self.refusal: tuple[str, float] | None = None
        """Newest refused hello, and its time in monotonic seconds."""
        self._waits: tuple[float, float] | None = None  # since when a learner waits for others, and its newest hello

    def grant(self, hello: Hello, *, closed: bool) -> LeaseGrant:
        """Grant a lease to a process that introduces itself.

        Args:
            closed: the run takes no more new processes.

        Raises:
            ValueError: it does not belong here; the message says why.
            MustWait: it may not join yet; the message says why.
        """
        leases = self._members.leases
        self._admit(hello, leases.known(hello.boot))
        require_ours(hello, self._run, self._uid)
        if closed and not leases.alive(hello.boot):
            raise ValueError("the run is finished and takes no new process")
        if leases.refused(hello.boot):
            leases.grant(hello.role, hello.boot, hello.prefer)  # raises, with the reason
        self._require_alike(hello)
        if self.experience.hear(hello):
            what = "segments have to look like" if hello.role == "learner" else "the environment looks like"
            self._events.add("experience", f"{hello.role} says what {what}", role=hello.role)
        # across machines only a process that listens has a fixed index, which belongs to its name
        prefer = hello.prefer if self._members.addresses.one_machine or hello.role in CHANNELS else None
        grant = leases.grant(hello.role, hello.boot, prefer)
        self.joined.add(grant.holder.role)
        self._members.origins[hello.boot] = hello.origin
        return grant

    @property
    def waited_s(self) -> float:
        """Seconds for which a learner has waited for others to leave; 0: none does."""
        return 0.0 if (since := self._waits_since()) is None else self._clock.monotonic() - since

    def _waits_since(self) -> float | None:
        if self._waits is None or self._clock.monotonic() - self._waits[1] >= TOLD_AGAIN_S:
            return None
        return self._waits[0]

    def _require_alike(self, hello: Hello) -> None:
        """Require that no other learner has a different run file or image.

        Learners that step together must make the same step. A StatefulSet replaces one after the other, so a new one
        waits until the old ones have left. The last of these saves its weights before it leaves, and the new ones
        resume from them.

        Raises:
            MustWait: another learner has, or has not said hello to this manager yet.
        """
        leases, known = self._members.leases, self._members.origins
        if hello.role != "learner" or leases.alive(hello.boot):
            return
        others = [
            f"learner/{one.index}"
            for one in leases.live("learner")
            if one.index != hello.prefer and (one.boot not in known or _kind(known[one.boot]) != _kind(hello.origin))
        ]
        if not others:
            return
        why, now = f"{', '.join(others)} of another spec or image must leave first", self._clock.monotonic()
        since = self._waits_since()
        if since is None:
            self._events.add("waits", f"a learner waits: {why}", role=hello.role)
        self._waits = now if since is None else since, now
        raise MustWait(why)

    def refuse(self, role: str, why: str) -> None:
        """Note a refused hello; each reason is reported once a minute."""
        if self._refusals.due(why):
            self._events.add("refused", why, role=role)
        self.refusal = (why, self._clock.monotonic())

    def ticket(self, holder: Holder) -> str:
        """Proof for learners that an actor is leased now; "" for other roles, and where there are no keys."""
        return self._ticket(holder.boot, int(self._clock.unix())) if holder.role == "actor" else ""

    def leased_since_s(self, holder: Holder) -> int:
        """Unix time of the oldest ticket that a receiver accepts; 0 for other roles, and while a live actor may not
        have a ticket of this manager yet.
        """
        window_s = max(LEASED_S, 2 * timing.expires_s(len(self._members.leases)))
        if holder.role not in RECEIVERS or self._clock.monotonic() - self._began < window_s:
            return 0
        return int(self._clock.unix() - window_s)


def _kind(origin: Origin) -> tuple[str, str]:
    """Image and run file of a process."""
    return origin.image, origin.settings
