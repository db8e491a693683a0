"""Registry of the processes of a run: their leases, newest reports, ledger, counters and log lines."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import TypeVar

import msgspec

from rlctl_agents.manager import timing
from rlctl_agents.manager.accounting.counters import (
    LONGEST_NAME,
    WINDOW_S,
    Cpu,
    LagWindow,
    Rates,
    StoredTotals,
    Totals,
    sound,
)
from rlctl_agents.manager.accounting.ledger import RunLedger, StoredLedger
from rlctl_agents.manager.accounting.outliers import ActorEpisodes, printable
from rlctl_agents.manager.membership.experience_spec import ExperienceSpec, StoredExperience
from rlctl_agents.manager.membership.leases import Holder, Leases, StoredLeases
from rlctl_agents.runtime.addresses import Addresses
from rlctl_agents.runtime.gauges import BASE_ROWS, RANK, RESTS, group_of
from rlctl_agents.runtime.logs import Lines
from rlctl_agents.runtime.storage import read_file
from rlctl_agents.types.control import Origin, Report
from rlctl_agents.types.experience import ModelRef

T = TypeVar("T")

FORMAT = 1
RECEIVERS = ("learner", "replay")
"""Roles that receive rows of actors."""

MOST_GAUGES = 1000
"""Gauges of one process, at most, with names of at most LONGEST_NAME characters; and of its histograms and averages."""

log = logging.getLogger(__name__)


class StoredMembers(msgspec.Struct):
    """Content of results/ledger.json: the totals of every boot, by its own count."""

    format: int = FORMAT
    leases: StoredLeases = msgspec.field(default_factory=StoredLeases)
    ledger: StoredLedger = msgspec.field(default_factory=StoredLedger)
    totals: StoredTotals = msgspec.field(default_factory=StoredTotals)
    experience: StoredExperience = msgspec.field(default_factory=StoredExperience)


def load_members(folder: Path) -> StoredMembers:
    """Members as the last manager stored them; none if the file is damaged: processes report their totals again.

    Raises:
        OSError: the volume cannot be read just then.
    """
    path = folder / "ledger.json"
    data = read_file(path)
    try:
        found = StoredMembers() if data is None else msgspec.json.decode(data, type=StoredMembers)
        if found.format != FORMAT:
            raise ValueError(f"format {found.format}")
    except (ValueError, msgspec.MsgspecError) as error:
        log.error("%s cannot be read, the ledger begins anew: %s", path, error)
        return StoredMembers()
    return found


class Members:
    """Leases, addresses and books of every process. Called by one thread; others may read `lines`.

    Args:
        stored: members stored by an earlier manager.
        clock: monotonic seconds.
    """

    def __init__(self, stored: StoredMembers, addresses: Addresses, clock: Callable[[], float]) -> None:
        self.addresses = addresses
        self.leases = Leases(clock)
        self.ledger = RunLedger(self.leases.name)
        self.totals = Totals()
        self.ledger.restore(stored.ledger)
        self.totals.restore(stored.totals)
        self.leases.restore(stored.leases, [*sorted(self.ledger.boots()), *sorted(self.totals.boots())])
        self.experience = ExperienceSpec(self.leases.alive)
        self.experience.restore(stored.experience)
        self.addresses.alive((one.role, one.index) for one in self.leases.live())
        self.rates = Rates(clock)
        self.lag = LagWindow(clock)
        self.lines = Lines()
        self.seen: dict[str, Report] = {}
        """Boot -> its newest report to this manager, without its books."""
        self._groups: dict[str, int] = {}  # boot of a learner in `seen` -> group in which it steps, 0: in none
        self.origins: dict[str, Origin] = {}
        """Boot -> where it runs, or ran; of all boots that have said hello to this manager."""

    @property
    def report_every_s(self) -> float:
        """Seconds between two reports of each actor."""
        return timing.report_every_s(len(self.leases))

    def reports(self, role: str) -> list[Report | None]:
        """Newest report of each holder of a lease, by index; None: it has not reported to this manager yet."""
        return [self.seen.get(one.boot) for one in self.leases.live(role)]

    def heard(self, role: str) -> list[Report]:
        """Newest report of each holder of a lease that has reported to this manager, by index."""
        return [one for one in self.reports(role) if one is not None]

    @property
    def root(self) -> Holder | None:
        """Modelpool that gets weights from learners, and from which evaluators get theirs; None: it does not live."""
        return next((one for one in self.leases.live("modelpool") if one.index == 0), None)

    @property
    def published(self) -> ModelRef | None:
        """Newest model of that modelpool; None: none."""
        report = self.seen.get(self.root.boot) if self.root is not None else None
        return None if report is None else report.model

    @property
    def rested(self) -> bool:
        """True if no newer model will be published: all learners rest and the modelpool has their weights."""
        learners, published = self.reports("learner"), self.published
        return all(one is not None and one.gauges.get(RESTS, 0.0) > 0 and one.model == published for one in learners)

    def playing(self) -> list[ActorEpisodes]:
        """Live actors, and the moments of their episodes, as they report them."""
        found = []
        for one in self.leases.live("actor"):
            if (seen := self.seen.get(one.boot)) is not None:
                origin, epsilon = self.origins.get(one.boot, Origin()), seen.gauges.get("epsilon", 0.0)
                found.append(ActorEpisodes(one.boot, f"actor/{one.index}", origin, seen.figures, epsilon))
        return found

    def cpu(self) -> Cpu:
        """CPU seconds of the run so far, as its processes report them, and those of its evaluators."""
        each = {role: self.totals.sum(role, "cpu_seconds") for role in self.totals.roles()}
        return Cpu(each.get("evaluator", 0.0), sum(each.values()))

    def train_return(self) -> float | None:
        """Mean raw return of the newest training episodes, over actors; None: none has ended yet."""
        told = [one.gauges["train_return"] for one in self.heard("actor") if "train_return" in one.gauges]
        return sum(told) / len(told) if told else None

    def take(self, report: Report) -> dict[str, str]:
        """Enter a report of a process in the books.

        Returns:
            Boot of each sender that this process has newly quarantined -> the fault in its values.
        """
        boot, quarantined, counters = report.boot, dict[str, str](), sound(report.counters)
        self.totals.hear(report.role, boot, counters)
        self.rates.hear(boot, counters)
        self.ledger.hear_sender(boot, report.sent, report.pending, self.leases.is_buried)
        if report.role in RECEIVERS:
            for sender in report.accounts:
                self.leases.mention(sender)
            faults = {sender: one.fault for sender, one in report.accounts.items() if one.fault}
            before = self.ledger.quarantined() if faults else {}
            self.ledger.hear_receiver(boot, report.accounts, self.leases.is_buried)
            # a late report of a replaced learner begins no life, nor does one of a replay shard
            if report.role == "learner" and report.gauges.get(RANK, 0.0) >= 0.0 and self.leases.alive(boot):
                base = report.gauges.get(BASE_ROWS)
                self.ledger.begin(boot, None if base is None else int(base), self._together(report))
            after = self.ledger.quarantined() if faults else {}
            quarantined = {sender: why for sender, why in after.items() if sender not in before}
            if "lag_versions" in report.histograms:
                self.lag.hear(boot, report.histograms["lag_versions"])
        known_lines = self.seen[boot].log_from if boot in self.seen else 0
        self.lines.add(report.log[max(0, known_lines - report.log_from) :], report.role)
        learns, model = report.role == "learner", report.model  # only learners average
        if learns:
            self._groups[boot] = group_of(report) or 0
        self.seen[boot] = msgspec.structs.replace(
            report, log=[], log_from=report.log_from + len(report.log), accounts={}, sent={}, counters=counters,
            gauges=_bounded(report.gauges),
            histograms=_bounded(report.histograms) if learns else {},
            averages=_bounded(report.averages) if learns else {},
            model=model if model is None or len(model.policy) <= LONGEST_NAME else None,
        )  # fmt: skip
        return quarantined

    def place(self, boot: str) -> str:
        """Name of a process and where it runs: "actor/3 (node n7, image sha256:...)"."""
        return printable(f"{self.leases.name(boot)} ({self.origins.get(boot, Origin())})")

    def quarantined(self) -> dict[str, str]:
        """Quarantined processes: "actor/3" -> the fault in the values that it sends, or sent, in words.

        A quarantined process that has ended is listed as long as its books are open, so that one that is restarted
        again and again is seen although its present boot has not sent anything yet.
        """
        by_name: dict[str, list[tuple[str, str]]] = {}
        for boot, fault in self.ledger.quarantined().items():
            by_name.setdefault(self.leases.name(boot), []).append((boot, fault))
        found = {}
        for name, lives in sorted(by_name.items()):
            boot, fault = next((one for one in lives if self.leases.alive(one[0])), lives[-1])
            if self.leases.alive(boot):
                does = "sends values that cannot be, and is not learned from until it is started anew"
            else:
                does = "has ended after it had sent values that cannot be"
            again = f" (the same of {len(lives) - 1} before it)" if len(lives) > 1 else ""
            found[name] = f"{self.place(boot)} {does}: {fault}{again}"
        return found

    def _together(self, report: Report) -> set[str]:
        """Boots of the learners that step together with this one, as they report."""
        group = group_of(report) or 0
        others = (boot for boot, number in self._groups.items() if number == group > 0)
        return {report.boot, *others}

    def forget(self, boot: str) -> None:
        """Drop the recent figures of a boot that lost its lease. Its books stay open."""
        self.rates.forget(boot)
        self.lag.forget(boot)
        self.seen.pop(boot, None)
        self._groups.pop(boot, None)

    def expire(self) -> list[Holder]:
        """Expire the leases of silent processes; returns their holders."""
        self.rates.window_s = max(WINDOW_S, 3.0 * self.report_every_s)
        return self.leases.expire()

    def bury(self) -> list[str]:
        """Close the books of boots that have been gone for long enough; returns these boots."""
        buried = []
        for boot in self.leases.to_bury():
            if self.ledger.close(boot, self.leases.alive, self.leases.is_buried):
                self.totals.close(boot)
                self.leases.bury(boot)
                self.origins.pop(boot, None)
                self.forget(boot)  # a report may have come after it lost its lease
                buried.append(boot)
        return buried

    def store(self) -> StoredMembers:
        """The members, for the next manager."""
        experience = self.experience.store()
        return StoredMembers(FORMAT, self.leases.store(), self.ledger.store(), self.totals.store(), experience)


def _bounded(values: Mapping[str, T]) -> dict[str, T]:
    """The first MOST_GAUGES values whose names are not too long."""
    return dict(islice(((name, one) for name, one in values.items() if len(name) <= LONGEST_NAME), MOST_GAUGES))
