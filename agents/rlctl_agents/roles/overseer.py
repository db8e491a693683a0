"""The manager without its sockets: what it knows of a run, what it answers, what it does as time passes."""

from __future__ import annotations

import logging

import msgspec

from rlctl.spec.layout import Layout
from rlctl.spec.schema import Policy, Spec
from rlctl_agents.roles import pace, stopping
from rlctl_agents.roles.addresses import Addresses
from rlctl_agents.roles.agreement import Agreement, require_ours
from rlctl_agents.roles.checkpoints import Checkpoints
from rlctl_agents.roles.ending import Ending
from rlctl_agents.roles.events import Events, JsonLines, Lines
from rlctl_agents.roles.lag import LagWindow
from rlctl_agents.roles.learners import Learners
from rlctl_agents.roles.leases import Holder, Leases
from rlctl_agents.roles.ledger import Books as Ledger
from rlctl_agents.roles.manifests import Manifests
from rlctl_agents.roles.matches import Evaluations, held_by_all, training
from rlctl_agents.roles.pace import Clock
from rlctl_agents.roles.process import STOPPING, UserFault
from rlctl_agents.roles.progress import Books, Shelf, load_books
from rlctl_agents.roles.rates import Rates
from rlctl_agents.roles.terms import next_term, standing_term
from rlctl_agents.roles.totals import Totals
from rlctl_agents.types.control import (
    Commit,
    EvalResult,
    Generation,
    Hello,
    Lease,
    Match,
    Orders,
    Report,
    Said,
    to_plain,
)

SPEAKS_REPORTS = 2.5
"""Who was heard within so many times the time between reports still runs."""
MATCHES_APART = 100
"""Numbers left out when a manager starts: the last one may have given away some that were not stored."""

log = logging.getLogger(__name__)


class Overseer:
    """One life of a manager. Called by one thread; others may read `events` and `lines`.

    Args:
        boot: of this process.
        settings: the manager's part of the spec, what applies live included.
        layout: of the run; its folders exist.

    Raises:
        Damaged: what an earlier manager stored cannot be read.
        OSError: the volume refuses.
    """

    def __init__(
        self, *, run: str, uid: str, boot: str, settings: Spec, layout: Layout, addresses: Addresses, clock: Clock
    ) -> None:
        self.run, self.uid, self.boot, self.settings, self.layout = run, uid, boot, settings, layout
        self.addresses, self.clock = addresses, clock
        self.policies = list(settings.policies or ["main"])
        self.began = clock.monotonic()
        self.events = Events(layout.results / "events.jsonl", clock.unix)
        self._evaluated = JsonLines(layout.results / "evaluations.jsonl")
        self._shelf = Shelf(layout.results)
        self.progress, self.lost = self._shelf.progress, self._shelf.lost
        self.progress.met = None  # conditions may be others now
        self._wall_before_s = self.progress.wall_s
        manifests = Manifests(layout.checkpoints)
        for policy in self.policies:
            self.progress.catch_up(policy, manifests.of(policy), lost=bool(self.lost))
        self.term = next_term(layout.run, max(manifests.newest_term, self.progress.term))
        self.progress.term = self.term
        self.checkpoints = Checkpoints(manifests, self.term, self.progress.issued, clock.monotonic)
        self.learners = Learners(
            {name: one.population for name, one in (settings.policies or {"main": Policy()}).items()},
            self.progress, manifests, clock.monotonic,
        )  # fmt: skip
        self.leases = Leases(expires_s=pace.EXPIRES_S, clock=clock.monotonic)
        self.ledger = Ledger(self.leases.name)
        self.totals = Totals()
        self._restore(load_books(layout.results))
        self.agreement = Agreement(self.leases.alive)
        self.evaluations = Evaluations(settings.seed, clock.monotonic, match=self.progress.match + MATCHES_APART)
        self.rates = Rates(clock.monotonic)
        self.lag = LagWindow(clock.monotonic)
        self.ending = Ending()
        self.seen: dict[str, Report] = {}  # boot -> newest report, without its books
        self.refusal = ("", -1e9)  # newest refused hello, and when
        self.lines = Lines()
        self.curve: list[tuple[int, float | None]] = []  # not yet drawn: rows, mean of an evaluation or None: went back
        self._told: set[str] = set()
        self._pruning = ""  # why old generations could not be removed
        self.events.add("start", f"manager started, term {self.term}", term=self.term)
        if self.lost:
            self.events.add("lost", self.lost)

    @property
    def wall_s(self) -> float:
        """Of the run, over all ups."""
        return self._wall_before_s + self.clock.monotonic() - self.began

    @property
    def rows(self) -> int:
        """That the weights of the first policy were learned from."""
        return self.learners.rows(self.policies[0])

    @property
    def over(self) -> bool:
        """Nothing is left to do."""
        return self.ending.step == "over"

    @property
    def report_every_s(self) -> float:
        return pace.report_every_s(len(self.leases))

    # what is asked

    def hello(self, hello: Hello) -> Lease:
        """A process introduces itself.

        Raises:
            ValueError: it does not belong here, and why.
        """
        try:
            return self._lease(hello)
        except ValueError as fault:
            text, now = str(fault), self.clock.monotonic()
            if text != self.refusal[0] or now - self.refusal[1] >= 60.0:
                self.events.add("refused", text, role=hello.role)
            self.refusal = (text, now)
            raise

    def report(self, report: Report) -> Orders:
        """A process says how it stands, and hears what to do."""
        boot = report.boot
        if self.leases.refused(boot):
            return Orders(self.term, known=True, peers={}, stop=True)
        if not self.leases.known(boot):
            return Orders(self.term, known=False, peers={})
        holder = self.leases.hear(boot, leaving=report.gauges.get(STOPPING, 0.0) > 0)
        self._take(report)
        if holder is None or report.term != self.term or report.role != holder.role:
            return Orders(self.term, known=False, peers={})
        if self.ending.tells:
            self._told.add(boot)
        if holder.role == "learner" and (resumed := self.learners.hear(holder.index, report)) is not None:
            self.curve.append((resumed.rows, None))
            self.events.add("resumed", resumed.text, number=resumed.number, rows=resumed.rows)
        return Orders(
            term=self.term,
            known=True,
            peers=self.addresses.peers(holder.role),
            match=self._match(holder, report),
            checkpoint=self._wanted(holder),
            stop=self.ending.tells,
            stop_rows=self._stop_rows(holder),
        )

    def result(self, result: EvalResult) -> Said:
        """An evaluator has played its quota."""
        try:
            done = self.evaluations.finish(result, wall_s=self.wall_s, unix=self.clock.unix())
        except ValueError as fault:
            return Said(False, str(fault))
        self.progress.measured(done)
        self._evaluated.append({**to_plain(done), "returns": result.returns, "lengths": result.lengths})
        self.curve.append((done.rows, done.mean))
        self.events.add(
            "evaluation",
            f"evaluation mean {done.mean:.4g} over {done.episodes} episodes ({done.mode}, version {done.ref.version})",
            mean=done.mean, rows=done.rows, version=done.ref.version,
        )  # fmt: skip
        return Said(True)

    def commit(self, commit: Commit) -> Said:
        """A learner has written a generation."""
        generation = commit.generation
        holder = next((one for one in self.leases.live("learner") if one.boot == commit.boot), None)
        try:
            if holder is None or self.learners.policy_of(holder.index) != generation.policy:
                raise ValueError(f"process {commit.boot} is not the learner of {generation.policy}")
            if (term := standing_term(self.layout.run, self.term)) != self.term:
                raise ValueError(f"a manager of term {term} has taken over")
            self.checkpoints.commit(generation)
        except (ValueError, OSError) as fault:
            text = f"generation {generation.number} refused: {fault}"
            self.events.add("refused", text, number=generation.number)
            return Said(False, str(fault))
        self.events.add(
            "checkpoint",
            f"generation {generation.number} committed: version {generation.ref.version}, {generation.rows} rows",
            number=generation.number, rows=generation.rows, version=generation.ref.version,
        )  # fmt: skip
        try:
            self.checkpoints.manifests.prune(self.settings.checkpoint.keep)
            self._pruning = ""
        except OSError as error:
            self._pruning = f"cannot remove old generations: {error.strerror}"
        return Said(True)

    def reload(self, settings: Spec) -> list[str]:
        """Other values of what applies live; the changes in words."""
        changes = stopping.changes(self.settings, settings)
        self.settings = settings
        if changes:
            self.events.add("reload", f"settings changed: {', '.join(changes)}", changes=changes)
        return changes

    def order_checkpoint(self) -> int:
        """Want a generation of every policy now; the number of the newest."""
        number = max(self.checkpoints.order(policy) for policy in self.policies)
        self._store_progress()
        return number

    def finish(self, why: str) -> None:
        """The run has done what was asked: end every role in good order."""
        if self.progress.met is None:
            self.progress.met = why
            self.events.add("stop", f"the run is finished: {why}")
        self._end("finish")

    def leave(self) -> None:
        """End this manager only; the run is not finished by it."""
        self._end("leave")

    # as time passes

    def turn(self) -> None:
        """Whatever is due now; often called.

        Raises:
            UserFault: the time is over, and nothing was ever learned from.
        """
        now = self.clock.monotonic()
        self.leases.expires_s = pace.expires_s(len(self.leases))
        self._expire()
        live = self.leases.live()
        self.addresses.alive((one.role, one.index) for one in live)
        if self.ending.step == "not":
            for policy in self.policies:
                if self.checkpoints.due(policy, self.learners.rows(policy), self.settings.checkpoint.every):
                    self.checkpoints.order(policy)
                    self._store_progress()
            self._judge()
        within_s = SPEAKS_REPORTS * self.report_every_s
        speaking = [one for one in live if now - one.heard < within_s]
        self.ending.turn(
            now,
            saved=not any(map(self._wanted, speaking)),
            everybody_gone=all(
                one.boot in self._told and one.leaving and now - one.heard >= pace.REPORT_EVERY_S for one in speaking
            ),
        )

    def store(self) -> None:
        """Keep everything for the next manager."""
        self._store_progress()
        self._shelf.save_books(Books(1, self.leases.store(), self.ledger.store(), self.totals.store()))

    # for whoever watches

    @property
    def disk(self) -> str:
        """Why something could not be stored, or removed; "" when all was."""
        return self._shelf.failure or self.events.failure or self._evaluated.failure or self._pruning

    # inside

    def _judge(self) -> None:
        stop, progress, wall_s = self.settings.stop, self.progress, self.wall_s
        why = stopping.met(
            stop, evaluation=progress.evaluation, rows=self.rows, wall_s=wall_s, learned=progress.started
        )
        if why is not None:
            self.finish(why)
        elif (fault := stopping.in_vain(stop, wall_s=wall_s, learned=progress.started)) is not None:
            self._wall_before_s -= wall_s  # the next up has all its time again
            self.store()
            raise UserFault(fault)

    def _lease(self, hello: Hello) -> Lease:
        require_ours(hello, self.run, self.uid)
        if self.ending.tells and not self.leases.alive(hello.boot):
            raise ValueError("the run is finished")
        if self.leases.refused(hello.boot):
            self.leases.grant(hello.role, hello.boot, hello.prefer)  # says why not
        if self.agreement.hear(hello):
            self.events.add("experience", f"{hello.role} says what the environment looks like", role=hello.role)
        grant = self.leases.grant(hello.role, hello.boot, hello.prefer)
        role, index = grant.holder.role, grant.holder.index
        if grant.replaced is not None:
            self._gone(grant.replaced, f"{role} {index} was replaced by a new process")
        if grant.new:
            self.rates.begin(hello.boot)
            self.events.add("lease", f"{role} {index} joined", role=role, index=index, boot=hello.boot)
        policy = self.learners.policy_of(index)
        lineage, generations = 0, tuple[Generation, ...]()
        if role == "learner":
            self.ledger.receiver(hello.boot, policy)
            generations = self.checkpoints.manifests.of(policy)
            if grant.new:
                self.learners.join(hello.boot, generations)
            lineage = self.progress.open_lineage(policy, hello.boot)
            if not self._store_progress():
                raise ValueError(f"the lineage of learner {index} cannot be stored: {self._shelf.failure}")
        if self.settings.sync and role in ("actor", "learner"):
            row = self.rows if role == "actor" else max((one.rows for one in generations), default=0)
            if (broken := self.progress.break_lock_step(f"{role}/{index}", hello.boot, row)) is not None:
                self.events.add("lock_step", broken.text, row=row)
        return Lease(
            index=index,
            term=self.term,
            manager=self.boot,
            report_every_s=self.report_every_s,
            expires_s=pace.expires_s(len(self.leases)),
            bind=self.addresses.bind(role, index),
            peers=self.addresses.peers(role),
            experience=self.agreement.experience,
            match=self._match(grant.holder, None),
            generations=generations,
            next_lineage=lineage,
            stop_rows=self._stop_rows(grant.holder),
        )

    def _wanted(self, holder: Holder) -> int:
        """The generation that this process should save; 0: none."""
        return self.checkpoints.wanted(self.learners.policy_of(holder.index)) if holder.role == "learner" else 0

    def _stop_rows(self, holder: Holder) -> int:
        """Rows after which this process makes no update: those of the first policy count; 0: no limit."""
        first = holder.role == "learner" and self.learners.policy_of(holder.index) == self.policies[0]
        return (self.settings.stop.rows or 0) if first else 0

    def _match(self, holder: Holder, report: Report | None) -> Match | None:
        seats = self.agreement.seats
        if holder.role == "actor":
            return training(self.policies[0], seats, self.settings.seed) if seats else None
        if holder.role != "evaluator" or report is None or not seats or self.ending.step != "not":
            return None
        self.evaluations.hear(report.boot, report.model, report.counters.get("agent_steps", 0.0))
        wanted = self.settings.evaluation
        model = held_by_all(self.seen.get(one.boot) for one in self.leases.live("modelpool"))
        match = self.evaluations.order(
            report.boot, model, seats=seats, rows=self.learners.rows_at(model),
            episodes=wanted.episodes, every_s=wanted.every, mode=wanted.mode,
        )  # fmt: skip
        self.progress.match = self.evaluations.match
        return match

    def _take(self, report: Report) -> None:
        boot = report.boot
        self.totals.hear(report.role, boot, report.counters)
        self.rates.hear(boot, report.counters)
        self.ledger.hear_sender(boot, report.sent, report.pending)
        if report.role == "learner":
            for sender in report.accounts:
                self.leases.mention(sender)
            self.ledger.hear_receiver(boot, report.accounts, self.leases.is_buried)
            if "lag_versions" in report.histograms:
                self.lag.hear(boot, report.histograms["lag_versions"])
        self.lines.add(report.log)
        self.seen[boot] = msgspec.structs.replace(report, log=[], accounts={}, sent={})

    def _expire(self) -> None:
        for holder in self.leases.expire():
            silent_s = self.clock.monotonic() - holder.heard
            how = "ended" if holder.leaving else f"was not heard for {silent_s:.0f} s and lost its lease"
            self._gone(holder, f"{holder.role} {holder.index} {how}")
        for boot in self.leases.to_bury():
            if self.ledger.close(boot, self.leases.alive, self.leases.is_buried):
                self.totals.close(boot)
                self.leases.bury(boot)
                self.learners.bury(boot)

    def _gone(self, holder: Holder, text: str) -> None:
        self.events.add("gone", text, role=holder.role, index=holder.index, boot=holder.boot)
        self.rates.forget(holder.boot)
        self.lag.forget(holder.boot)
        self.evaluations.drop(holder.boot)
        self.seen.pop(holder.boot, None)

    def _end(self, how: str) -> None:
        if self.ending.step == "not":
            learners = {self.learners.policy_of(one.index) for one in self.leases.live("learner")}
            for policy in learners:
                if self.checkpoints.worth_saving(policy, self.learners.rows(policy)):
                    self.checkpoints.order(policy)
            self._store_progress()
        self.ending.begin("finish" if how == "finish" else "leave", self.clock.monotonic())

    def _store_progress(self) -> bool:
        self.progress.wall_s = self.wall_s
        self.progress.issued = max(self.progress.issued, self.checkpoints.issued)
        return self._shelf.save_progress()

    def _restore(self, books: Books) -> None:
        self.ledger.restore(books.ledger)
        self.totals.restore(books.totals)
        self.leases.restore(books.leases, [*sorted(self.ledger.boots()), *sorted(self.totals.boots())])
