"""Profiles of a run: ordered through the control API, made by a process of the run, stored by the manager."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from rlctl.spec.base import ROLES
from rlctl_agents.manager.membership.leases import Holder
from rlctl_agents.manager.timing import Clock
from rlctl_agents.manager.web import flame
from rlctl_agents.runtime.http_server import Response
from rlctl_agents.runtime.profiling import ANSWER_S, unpacked
from rlctl_agents.runtime.storage import replace_file
from rlctl_agents.types.control import Sampled, Sampling

LONGEST_S = 600.0
DEFAULT_S = 10.0
KEPT = 8
"""Profiles in memory, at most, for the client that asked; the files stay."""


class Profile(msgspec.Struct):
    """One profile of one process."""

    id: str
    process: str  # "actor/7"
    boot: str
    seconds: float
    until: float  # monotonic seconds after which it has failed
    state: Literal["waiting", "done", "failed"] = "waiting"
    why: str = ""  # why it failed, or why its files are not on the volume
    samples: int = 0
    threads: dict[str, float] = {}
    files: list[str] = []  # below the folder of the run
    svg: str = ""
    collapsed: str = ""


class Profiles:
    """Profiles of processes: ordered by the main loop, accepted and read in any thread.

    Args:
        root: folder of the run; files go to `results/profiles` in it.
        run: name of the run.
        clock: source of time.
    """

    def __init__(self, root: Path, run: str, clock: Clock) -> None:
        self._root, self._run, self._clock = root, run, clock
        self._lock = threading.Lock()
        self._known: dict[str, Profile] = {}

    def order(self, asked: Mapping[str, Any], live: Callable[[str], list[Holder]], report_every_s: float) -> Profile:
        """Order a profile of a process.

        Args:
            asked: `role`, `index` (None: the lowest live one) and `seconds`.
            live: holders of a lease of a role.
            report_every_s: seconds between two reports; orders go out with the replies.

        Raises:
            ValueError: the order is malformed, no such process lives, or it is being profiled already.
        """
        role, index, seconds = _asked(asked)
        holders = sorted((one for one in live(role) if not one.leaving), key=lambda one: one.index)
        holder = next((one for one in holders if index in (None, one.index)), None)
        if holder is None:
            who = role if index is None else f"{role}/{index}"
            lives = ", ".join(str(one.index) for one in holders[:8]) + (", ..." if len(holders) > 8 else "")
            raise ValueError(f"no {who} runs now" + (f"; {role}s that do: {lives}" if holders else ""))
        with self._lock:
            self._expire()
            if any(one.boot == holder.boot and one.state == "waiting" for one in self._known.values()):
                raise ValueError(f"{role}/{holder.index} is being profiled already; ask again when that is done")
            until = self._clock.monotonic() + 2 * report_every_s + seconds + ANSWER_S
            made = Profile(self._name(role, holder.index), f"{role}/{holder.index}", holder.boot, seconds, until)
            self._known[made.id] = made
            over = [one.id for one in self._known.values() if one.state != "waiting"]
            for id in over[: max(len(self._known) - KEPT, 0)]:
                del self._known[id]
        return made

    def wanted(self, boot: str) -> Sampling | None:
        """Order for this process, sent with the reply to its report; None: none."""
        if not self._known:
            return None
        with self._lock:
            self._expire()
            found = next((one for one in self._known.values() if one.boot == boot and one.state == "waiting"), None)
        return None if found is None else Sampling(found.id, found.seconds)

    def take(self, sampled: Sampled) -> None:
        """Accept the profile that a process has made.

        Raises:
            ValueError: it was not ordered, or cannot be used.
        """
        with self._lock:
            found = self._known.get(sampled.id)
        if found is None or found.boot != sampled.boot or found.state != "waiting":
            raise ValueError(f"profile {sampled.id[:80]!r} was not asked of this process, or is there already")
        stacks = unpacked(sampled)
        if not stacks:
            self._fail(found, f"{found.process} was looked at and no thread was seen")
            return
        title = f"{found.process} of {self._run}: {sampled.seconds:.1f} s, {sampled.samples} samples"
        made = msgspec.structs.replace(
            found, seconds=sampled.seconds, samples=sampled.samples, threads=sampled.threads,
            svg=flame.svg(stacks, title), collapsed=flame.collapsed(stacks), state="done",
        )  # fmt: skip
        made.files, made.why = self._store(made)
        with self._lock:
            self._known[made.id] = made

    def drop(self, boot: str) -> None:
        """Fail the profile of a process that has gone."""
        for one in list(self._known.values()):
            if one.boot == boot and one.state == "waiting":
                self._fail(one, f"{one.process} ended meanwhile")

    def answer(self, query: Mapping[str, str]) -> Response:
        """Handle `GET /profiles?id=...`. Thread-safe."""
        with self._lock:
            self._expire()
            found = self._known.get(query.get("id", ""))
        if found is None:
            return Response.refusal(404, "there is no such profile; this manager may have started after it was ordered")
        return Response.of({name: value for name, value in msgspec.to_builtins(found).items() if name != "until"})

    def _fail(self, one: Profile, why: str) -> None:
        with self._lock:
            self._known[one.id] = msgspec.structs.replace(one, state="failed", why=why)

    def _expire(self) -> None:
        now = self._clock.monotonic()
        for one in self._known.values():
            if one.state == "waiting" and now >= one.until:
                one.state, one.why = "failed", f"{one.process} did not say within the time what it does"

    def _name(self, role: str, index: int) -> str:
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self._clock.unix()))
        name, number = f"{role}-{index}-{stamp}", 1
        while (id := name if number == 1 else f"{name}-{number}") in self._known:
            number += 1
        return id

    def _store(self, made: Profile) -> tuple[list[str], str]:
        """Store the files; returns their names below the folder of the run, and why there are none."""
        files = {f"results/profiles/{made.id}.svg": made.svg, f"results/profiles/{made.id}.collapsed": made.collapsed}
        try:
            (self._root / "results" / "profiles").mkdir(mode=0o700, parents=True, exist_ok=True)
            for name, text in files.items():
                replace_file(self._root / name, text.encode())
        except OSError as error:
            return [], f"cannot be stored in results/profiles: {error.strerror}"
        return list(files), ""


def _asked(asked: Mapping[str, Any]) -> tuple[str, int | None, float]:
    role, index, seconds = asked.get("role"), asked.get("index"), asked.get("seconds", DEFAULT_S)
    if not isinstance(role, str) or role not in ROLES:
        raise ValueError(f"role must be one of {', '.join(ROLES)}, got {str(role)[:40]!r}")
    if index is not None and (not isinstance(index, int) or isinstance(index, bool) or index < 0):
        raise ValueError(f"index must be a number from 0 or null, got {str(index)[:40]!r}")
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 < seconds <= LONGEST_S:  # NaN neither
        raise ValueError(f"seconds must be above 0 and at most {LONGEST_S:g}, got {str(seconds)[:40]!r}")
    return role, index, float(seconds)
