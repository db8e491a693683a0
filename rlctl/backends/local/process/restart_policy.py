"""Restart policy: which dead process is restarted and when, and when a run is given up; no clock, no process.

Supervisor's own restarts are off: it tries three times within eight seconds and then never again.

- A process that had been of use for 10 s is restarted at once; after a shorter life with a backoff of 1, 2, 4, 8 s. It
  is of use once it has joined: half a minute of importing a simulator before a crash is of no use.
- A death with the same error as the one before counts as a short life: an error of its first game recurs in the next.
- Ten minutes are a long life in any case.
- The fifth short life in a row, or exit code 3 (the user's own fault, which restarting cannot help), ends the run.
- The manager's exit code 3 may mean that a run has achieved nothing: the cause is then a process that was in trouble
  before, or one that died repeatedly although it seems well now.
- The cause reported is the trouble that began first among those that last: a learner that dies takes actors with it.
- Exit code 0: the process was told to end. It is restarted after 5 s unless the run ends by then, which the manager
  reports by writing finished.json before it exits; a manager that an outside SIGTERM ended has finished nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from rlctl.backends.crashes import SHORT_LIVES, USER_FAULT, too_often
from rlctl.backends.local.names import in_order, split_name

HEALTHY_S = 10.0
LONG_S = 600.0
OFTEN = 3
"""Deaths within LONG_S that count as trouble, however long each life was."""
DELAYS_S = tuple(2.0**lives for lives in range(SHORT_LIVES - 1))
ORDERLY_S = 5.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Observation:
    """Observation of one process."""

    name: str  # "actor-3"
    state: Literal["live", "dead", "stopped"]  # stopped: by a command
    pid: int = 0  # live
    age_s: float = 0.0  # live: since its start; dead: its lifetime, by the supervisor's whole seconds
    exit_status: int | None = None  # dead; -1: by a signal, None: could not be started
    startup_s: float | None = 0.0  # from its start until it joined; None: not yet; measured only where `unsure`


@dataclass(frozen=True, slots=True)
class Death:
    """End of a process that no command had asked for."""

    name: str
    exit_status: int | None
    lived_s: float
    startup_s: float | None = 0.0  # of lived_s, until it had joined; None: it never did


@dataclass(frozen=True, slots=True)
class Restart:
    """Verdict: restart the process, `delay_s` from now."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class GiveUp(Generic[T]):
    """Verdict: the run has failed."""

    process: str  # the one whose trouble began first
    report: T  # of its first death in this trouble; of the newest if that is the one just judged
    short_lives: int  # of that process, in a row


@dataclass(slots=True)
class _Record(Generic[T]):
    pid: int = 0
    born: float | None = None
    restarts: int = 0
    short_lives: int = 0
    trouble_since: float | None = None
    first: T | None = None
    well: bool = False  # since its last death it has been of use; whether that lasts shows when it dies again
    error: str = ""  # of its last death, without numbers
    died: tuple[float, ...] = ()  # times of its last few deaths
    due: float | None = None

    def begin_trouble(self, now: float, report: T) -> None:
        self.trouble_since, self.first, self.well = now, report, False


@dataclass(slots=True)
class RestartPolicy(Generic[T]):
    """Restart policy of one run: takes in observations, judges deaths, and names the processes to be started now."""

    records: dict[str, _Record[T]] = field(default_factory=dict)

    def observe(self, seen: Iterable[Observation], now: float) -> list[Death]:
        """Record an observation of all processes of the run.

        Args:
            seen: all processes; a missing name was removed.
            now: monotonic seconds.

        Returns:
            Deaths not reported before, in role and index order.
        """
        seen = sorted(seen, key=lambda process: in_order(process.name))
        for name in self.records.keys() - {process.name for process in seen}:
            del self.records[name]
        deaths = []
        for process in seen:
            record = self.records.setdefault(process.name, _Record())
            if process.state == "stopped":
                self.records[process.name] = _Record(restarts=record.restarts)
            elif process.state == "live":
                self._live(record, process, now)
            elif record.due is None:
                lived_s = process.age_s if record.born is None else now - record.born
                deaths.append(Death(process.name, process.exit_status, lived_s, process.startup_s))
        return deaths

    def _live(self, record: _Record[T], process: Observation, now: float) -> None:
        if record.pid != process.pid or record.born is None:
            record.pid, record.born = process.pid, now - process.age_s
        record.due = None
        lived_s = now - record.born
        if lived_s >= LONG_S:
            record.short_lives, record.trouble_since, record.first, record.error = 0, None, None, ""
        elif _of_use_s(lived_s, process.startup_s) >= HEALTHY_S:
            record.well = True

    def unsure(self, process: Observation) -> bool:
        """Whether the policy needs `startup_s` of a process: it has just died, or it has died before and may again."""
        record = self.records.get(process.name)
        if process.state == "dead":
            return process.exit_status != 0 and (record is None or record.due is None)
        return record is not None and record.trouble_since is not None and not record.well

    def judge(self, death: Death, report: T, now: float, error: str = "") -> Restart | GiveUp[T]:
        """Decide about one death.

        Args:
            report: description of this death; returned in GiveUp.
            error: the last error that it logged; empty when it logged none.
        """
        record = self.records[death.name]
        record.pid, record.born = 0, None
        if death.exit_status == 0:
            return self._again(record, ORDERLY_S, now)
        if death.exit_status == USER_FAULT:
            record.short_lives += 1
            if split_name(death.name)[0] == "manager":
                if record.first is None or record.well:
                    record.begin_trouble(now, report)
                return self._first_cause(death.name, report, in_vain=True)
            return GiveUp(death.name, report, record.short_lives)
        error = _without_numbers(error)
        alike = bool(error) and error == record.error
        record.error, record.died = error, (*record.died, now)[-OFTEN:]
        if death.lived_s >= LONG_S or (_of_use_s(death.lived_s, death.startup_s) >= HEALTHY_S and not alike):
            record.short_lives = 0
            record.begin_trouble(now, report)
            return self._again(record, 0.0, now)
        record.short_lives += 1
        record.well = False
        if record.first is None:
            record.begin_trouble(now, report)
        if too_often(record.short_lives):
            return self._first_cause(death.name, report)
        return self._again(record, DELAYS_S[record.short_lives - 1], now)

    def _again(self, record: _Record[T], delay_s: float, now: float) -> Restart:
        record.due = now + delay_s
        return Restart(delay_s)

    def _first_cause(self, name: str, report: T, *, in_vain: bool = False) -> GiveUp[T]:
        troubles = [
            (record.trouble_since, in_order(other), other, record.first)
            for other, record in self.records.items()
            if record.trouble_since is not None and record.first is not None
        ]
        lasting = [trouble for trouble in troubles if not self.records[trouble[2]].well]
        if in_vain and [trouble[2] for trouble in lasting] == [name]:
            repeated = [trouble for trouble in troubles if self.records[trouble[2]].short_lives > 1]
            lasting = [trouble for trouble in repeated if trouble[2] != name] or lasting
        _, _, culprit, first = min(lasting, key=lambda trouble: trouble[:2])
        return GiveUp(culprit, report if culprit == name else first, self.records[culprit].short_lives)

    def due(self, now: float) -> list[str]:
        """Names of processes to be started now; each is named again until it is seen alive or `started`."""
        return sorted((name for name, record in self.records.items() if _past(record.due, now)), key=in_order)

    def started(self, name: str) -> None:
        """Record that a process was started, here or by a command; a death observed from now on is a new one."""
        record = self.records[name]
        record.due, record.pid, record.born = None, 0, None
        record.restarts += 1

    def next_due(self) -> float | None:
        """Time at which `due` will name the next process; None: no process waits."""
        return min((record.due for record in self.records.values() if record.due is not None), default=None)

    def troubled(self, now: float) -> set[str]:
        """Names of processes that have died and not been of use since, or have died often recently."""
        return {
            name
            for name, record in self.records.items()
            if (record.trouble_since is not None and not record.well)
            or (len(record.died) == OFTEN and now - record.died[0] < LONG_S)
        }

    def stored(self, now: float, unix: float) -> dict[str, dict[str, Any]]:
        """State by process name, to be stored: for the watch that replaces a killed one, and for `rlctl status`."""
        troubled = self.troubled(now)
        return {
            name: {
                "restarts": record.restarts,
                "short_lives": record.short_lives,
                "error": record.error,
                "in_trouble": name in troubled,
                "next_start": None if record.due is None else unix + record.due - now,
            }
            for name, record in self.records.items()
            if record.restarts or record.due is not None
        }

    def restore(self, stored: Mapping[str, Mapping[str, Any]], now: float) -> None:
        """Resume from the output of `stored`. A process that waited for its restart is started at once."""
        for name, values in stored.items():
            due = None if values["next_start"] is None else now
            self.records[name] = _Record(
                restarts=int(values["restarts"]),
                short_lives=int(values["short_lives"]),
                trouble_since=now if values.get("in_trouble") else None,  # the report of its first death is lost
                error=str(values.get("error", "")),
                due=due,
            )


def _past(due: float | None, now: float) -> bool:
    return due is not None and now >= due


def _of_use_s(lived_s: float, startup_s: float | None) -> float:
    return 0.0 if startup_s is None else lived_s - startup_s


def _without_numbers(error: str) -> str:
    """An error without its numbers: the same error names another seed, step or address each time."""
    return re.sub(r"0x[0-9a-f]+|[0-9]+", "", error)
