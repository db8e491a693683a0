"""The manager without its sockets: what it decides about a run, what it answers, what it does as time passes."""

from __future__ import annotations

from collections.abc import Callable

from rlctl.spec.layout import Layout
from rlctl.spec.schema import Spec
from rlctl_agents.manager import timing
from rlctl_agents.manager.accounting.counters import WINDOW_S
from rlctl_agents.manager.accounting.outliers import Outliers
from rlctl_agents.manager.checkpoints.fencing_term import next_term, standing_term
from rlctl_agents.manager.checkpoints.manifests import Manifests
from rlctl_agents.manager.checkpoints.schedule import Checkpoints
from rlctl_agents.manager.duties import Duties
from rlctl_agents.manager.evaluation.evaluations import Evaluations
from rlctl_agents.manager.events import Events
from rlctl_agents.manager.lifecycle import stopping
from rlctl_agents.manager.lifecycle.stop import Closing
from rlctl_agents.manager.membership.experience_spec import ExperienceSpec, require_ours
from rlctl_agents.manager.membership.learner_groups import Groups
from rlctl_agents.manager.membership.learner_progress import Learners
from rlctl_agents.manager.membership.leases import Holder
from rlctl_agents.manager.membership.registry import Members, load_members
from rlctl_agents.manager.state_store import StateStore
from rlctl_agents.manager.timing import Clock
from rlctl_agents.manager.web.profiles import Profiles
from rlctl_agents.runtime.addresses import CHANNELS, Addresses
from rlctl_agents.runtime.process import FAILED_GENERATION, STOPPING, UserFault, group_of
from rlctl_agents.types.control import (
    Commit,
    Enlist,
    EvalResult,
    Generation,
    Hello,
    Lease,
    Note,
    Noted,
    Orders,
    Place,
    Report,
    Said,
    Sampled,
)

SPEAKS_REPORTS = 2.5
"""Who was heard within so many times the time between reports still runs."""
LEASED_S = 120.0
"""At least so long a learner gives credit to a boot that the manager does not hear of any more."""


class Coordinator:
    """One life of a manager. Called by one thread; others may read `events` and the members' `lines`.

    Args:
        boot: of this process.
        settings: the manager's part of the spec, what applies live included.
        layout: of the run; its folders exist.
        ticket: proof for learners that a boot was leased at a unix time; "" where there are no keys.
        admit: is asked about each hello, and whether its boot is known; raises ValueError for one too many.

    Raises:
        Damaged: what an earlier manager stored cannot be read.
        OSError: the volume refuses.
    """

    def __init__(
        self,
        *,
        run: str,
        uid: str,
        boot: str,
        settings: Spec,
        layout: Layout,
        addresses: Addresses,
        clock: Clock,
        ticket: Callable[[str, int], str] = lambda boot, made_s: "",
        admit: Callable[[Hello, bool], None] = lambda hello, known: None,
    ) -> None:
        self.run, self.uid, self.boot, self.settings, self.layout = run, uid, boot, settings, layout
        self._ticket, self._admit = ticket, admit
        self.addresses, self.clock = addresses, clock
        self.policies = settings.policy_names
        self.began = clock.monotonic()
        self.events = Events(layout.results / "events.jsonl", clock.unix)
        self._shelf = StateStore(layout.results)
        self.progress, self.lost = self._shelf.progress, self._shelf.lost
        self.progress.met = None  # conditions may be others now
        self._wall_before_s = self.progress.wall_s
        manifests = Manifests(layout.checkpoints)
        for policy in self.policies:
            self.progress.catch_up(policy, manifests.of(policy), lost=bool(self.lost))
        self.term = next_term(layout.run, max(manifests.newest_term, self.progress.term))
        self.progress.term = self.term
        self.checkpoints = Checkpoints(
            manifests, self.term, self.progress.issued, clock.monotonic,
            standing_term=lambda: standing_term(layout.run, self.term),
        )  # fmt: skip
        self.learners = Learners(
            {name: settings.policy(name).population for name in self.policies},
            lambda policy: self.settings.policy(policy).algorithm.batch_rows, self.progress, manifests.of,
            clock.monotonic,
        )  # fmt: skip
        self.members = Members(load_members(layout.results), clock.monotonic)
        addresses.alive((one.role, one.index) for one in self.members.leases.live())
        self.groups = Groups(clock.monotonic, self.events.add)
        self.agreement = ExperienceSpec(self.members.leases.alive)
        self.evaluations = Evaluations(
            settings.seed, self.progress, self.learners, self.events, layout.results, clock, self.members.cpu
        )
        self.profiles = Profiles(layout.root, run, clock)
        self.outliers = Outliers(clock.monotonic)
        self.refusal = ("", -1e9)  # newest refused hello, and when
        self.curve: list[tuple[int, float | None]] = []  # not yet drawn: rows, mean of an evaluation or None: went back
        self._told: set[str] = set()
        self.closing = Closing(
            self.policies, progress=self.progress, learners=self.learners, checkpoints=self.checkpoints,
            evaluations=self.evaluations, events=self.events, learning=self._learning, store=self._store_progress,
            clock=clock.monotonic,
        )  # fmt: skip
        self.ending = self.closing.ending
        self._duties = Duties(
            self.policies, learners=self.learners, checkpoints=self.checkpoints, evaluations=self.evaluations,
            members=self.members, agreement=self.agreement, ending=self.ending,
        )  # fmt: skip
        self._joined: set[str] = set()  # roles
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
        return timing.report_every_s(len(self.members.leases))

    # what is asked

    def hello(self, hello: Hello) -> Lease:
        """A process introduces itself.

        Raises:
            ValueError: it does not belong here, and why.
        """
        try:
            self._admit(hello, self.members.leases.known(hello.boot))
            return self._lease(hello)
        except ValueError as fault:
            text, now = str(fault), self.clock.monotonic()
            if text != self.refusal[0] or now - self.refusal[1] >= 60.0:
                self.events.add("refused", text, role=hello.role)
            self.refusal = (text, now)
            raise

    def report(self, report: Report) -> Orders:
        """A process says how it stands, and hears what to do."""
        boot, leases = report.boot, self.members.leases
        if leases.is_other(boot, report.role):  # nobody speaks for another role
            return Orders(self.term, known=False, peers={})
        if leases.refused(boot):
            return Orders(self.term, known=True, peers={}, stop=True)
        if not leases.known(boot):
            return Orders(self.term, known=False, peers={})
        holder = leases.hear(boot, leaving=report.gauges.get(STOPPING, 0.0) > 0)
        quarantined = self.members.take(report)
        for sender, fault in quarantined.items():
            text = f"{self.members.place(sender)} is quarantined by the learner: {fault}"
            self.events.add("quarantined", text, boot=sender)
        if holder is None or report.term != self.term or report.role != holder.role:
            return Orders(self.term, known=False, peers={})
        if self.ending.tells:
            self._told.add(boot)
        if holder.role == "learner":
            self.groups.hear(boot, group_of(report))
        if holder.role == "learner" and (resumed := self.learners.hear(holder.index, report)) is not None:
            self.curve.append((resumed.rows, None))
            self.events.add("resumed", resumed.text, number=resumed.number, rows=resumed.rows)
        if holder.role == "learner" and self.checkpoints.failed(
            self.learners.policy_of(holder.index), int(report.gauges.get(FAILED_GENERATION, 0.0))
        ):
            self._store_progress()
        return Orders(
            term=self.term,
            known=True,
            peers=self.addresses.peers(holder.role, holder.index),
            match=self._duties.match(holder, report, self.settings),
            checkpoint=self._duties.generation(holder),
            stop=self.ending.tells,
            stop_rows=self._duties.stop_rows(holder, self.settings),
            report_every_s=timing.report_every_s(len(leases), holder.role),
            group=self.groups.wanted if holder.role == "learner" else 0,
            profile=self.profiles.wanted(boot),
            ticket=self._ticket(boot, int(self.clock.unix())) if holder.role == "actor" else "",
            leased_since_s=self._leased_since_s if holder.role == "learner" else 0,
        )

    def enlist(self, ask: Enlist) -> Place:
        """A learner asks for a place among those that step together."""
        return self.groups.enlist(ask, self.members.leases.live("learner"), self._expected)

    def note(self, note: Note) -> Noted:
        """A member of a group of learners tells the others where it is."""
        return self.groups.note(note)

    def result(self, result: EvalResult) -> Said:
        """An evaluator has played its quota."""
        try:
            done = self.evaluations.believe(result, self.wall_s)
        except ValueError as fault:
            return Said(False, str(fault))
        self.curve.append((done.rows, done.mean))
        return Said(True)

    def sampled(self, sampled: Sampled) -> Said:
        """A process that was asked says what it does."""
        try:
            self.profiles.take(sampled)
        except ValueError as fault:
            return Said(False, str(fault))
        return Said(True)

    def commit(self, commit: Commit) -> Said:
        """A learner has written a generation."""
        generation = commit.generation
        holder = next((one for one in self.members.leases.live("learner") if one.boot == commit.boot), None)
        try:
            if holder is None or self.learners.policy_of(holder.index) != generation.policy:
                raise ValueError(f"process {commit.boot} is not the learner of {generation.policy}")
            self.checkpoints.commit(generation)
        except (ValueError, OSError) as fault:
            text = f"generation {generation.number} refused: {fault}"
            self.events.add("refused", text, number=generation.number)
            return Said(False, str(fault))
        self.learners.know(generation.ref, generation.rows)
        self.events.add(
            "checkpoint",
            f"generation {generation.number} committed: version {generation.ref.version}, {generation.rows} rows",
            number=generation.number, rows=generation.rows, version=generation.ref.version,
        )  # fmt: skip
        self.checkpoints.tidy(generation, self.settings.checkpoint.keep)
        return Said(True)

    def reload(self, settings: Spec) -> list[str]:
        """Other values of what applies live; the changes in words.

        A run that has done what was asked, and now is asked for more, goes on as long as nobody was told to stop.

        Raises:
            ValueError: it is too late for that, or it cannot be judged.
        """
        stopping.require_measurable(settings.stop, self.agreement.seats)
        changes = stopping.changes(self.settings, settings)
        goes_on = self.closing.goes_on(self.settings.stop, settings.stop, self.wall_s)
        self.settings = settings
        if changes:
            self.events.add("reload", f"settings changed: {', '.join(changes)}", changes=changes)
        if goes_on:
            self.closing.go_on(f"{self.progress.met} is not enough any more")
        return changes

    def order_checkpoint(self) -> int:
        """Want a generation of every policy now; the number of the newest."""
        number = max(self.checkpoints.order(policy) for policy in self.policies)
        self._store_progress()
        return number

    # as time passes

    def turn(self) -> None:
        """Whatever is due now; often called.

        Raises:
            UserFault: the time is over, and nothing was ever learned from; or what is asked cannot be judged.
        """
        now, leases = self.clock.monotonic(), self.members.leases
        leases.expires_s = timing.expires_s(len(leases))
        self.members.rates.window_s = max(WINDOW_S, 3.0 * self.report_every_s)
        self._expire()
        live = leases.live()
        self.addresses.alive((one.role, one.index) for one in live)
        if self.ending.step == "not":
            for policy in self.policies:
                if self.checkpoints.due(policy, self.learners.rows(policy), self.settings.checkpoint.every):
                    self.checkpoints.order(policy)
                    self._store_progress()
            self._judge()
        else:
            self.closing.require_weights(self.settings.stop)
        if self.evaluations.awaits:
            self.evaluations.turn(
                self.members.published,
                final=self.members.rested,
                evaluators=len(leases.live("evaluator")),
                expected=self.settings.roles.evaluator.replicas,
                served=self.members.root is not None,
            )
        self.outliers.turn(self.agreement.figures, lambda: self._duties.playing(self.settings))
        within_s = SPEAKS_REPORTS * self.report_every_s
        speaking = [one for one in live if now - one.heard < within_s]
        self.closing.turn(
            saving=any(map(self._duties.generation, speaking)),
            everybody_gone=all(
                one.boot in self._told and one.leaving and now - one.heard >= timing.REPORT_EVERY_S for one in speaking
            ),
        )

    def store(self) -> None:
        """Keep everything for the next manager."""
        self._store_progress()
        self._shelf.save_books(self.members.store())

    def store_at_last(self) -> None:
        """The same; nobody tries again a few seconds later.

        Raises:
            OSError: the volume refuses.
        """
        self.store()
        self._shelf.require_stored()

    def store_end(self, end: bytes) -> None:
        """Say on the volume that the run is finished.

        Raises:
            OSError: the volume refuses.
        """
        path = self.layout.run / "finished.json"
        self._shelf.save(path, end, durable=True)
        self._shelf.require_stored(path)

    @property
    def disk(self) -> str:
        """Why something could not be stored, or removed; "" when all was."""
        return self._shelf.failure or self.events.failure or self.evaluations.failure or self.checkpoints.failure

    # inside

    def _judge(self) -> None:
        stop, started, wall_s = self.settings.stop, self.progress.started, self.wall_s
        try:
            stopping.require_measurable(stop, self.agreement.seats)
        except ValueError as error:
            self.events.add("failed", str(error))
            self.store()
            raise UserFault(str(error)) from error
        if self.closing.judge(stop, wall_s):
            return
        if (fault := stopping.in_vain(stop, wall_s=wall_s, learned=started, joined=self._joined)) is not None:
            self._wall_before_s -= wall_s  # the next up has all its time again
            self.events.add("failed", fault)
            self.store()
            raise UserFault(fault)

    def _lease(self, hello: Hello) -> Lease:
        leases = self.members.leases
        require_ours(hello, self.run, self.uid)
        if self.ending.tells and not leases.alive(hello.boot):
            raise ValueError("the run is finished")
        if leases.refused(hello.boot):
            leases.grant(hello.role, hello.boot, hello.prefer)  # says why not
        if self.agreement.hear(hello):
            self.events.add("experience", f"{hello.role} says what the environment looks like", role=hello.role)
        # off this machine only who listens has an index of its own, which goes with its name
        prefer = hello.prefer if self.addresses.one_machine or hello.role in CHANNELS else None
        grant = leases.grant(hello.role, hello.boot, prefer)
        role, index = grant.holder.role, grant.holder.index
        self._joined.add(role)
        self.members.origins[hello.boot] = hello.origin
        if grant.replaced is not None:
            self._gone(grant.replaced, f"{role} {index} was replaced by a new process")
        if grant.new:
            self.members.rates.begin(hello.boot)
            self.events.add("lease", f"{role} {index} joined", role=role, index=index, boot=hello.boot)
        policy = self.learners.policy_of(index)
        lineage, generations = 0, tuple[Generation, ...]()
        if role == "learner":
            self.members.ledger.receiver(hello.boot, policy)
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
            report_every_s=timing.report_every_s(len(leases), role),
            expires_s=timing.expires_s(len(leases)),
            bind=self.addresses.bind(role, index),
            peers=self.addresses.peers(role, index),
            experience=self.agreement.experience,
            match=self._duties.match(grant.holder, None, self.settings),
            generations=generations,
            next_lineage=lineage,
            stop_rows=self._duties.stop_rows(grant.holder, self.settings),
            learners=max(self._expected, len(leases.live("learner"))),
            ticket=self._ticket(hello.boot, int(self.clock.unix())) if role == "actor" else "",
            leased_since_s=self._leased_since_s if role == "learner" else 0,
        )

    @property
    def _leased_since_s(self) -> int:
        """Unix time; 0 as long as a live actor may not have had a ticket of this manager yet."""
        window_s = max(LEASED_S, 2 * timing.expires_s(len(self.members.leases)))
        return int(self.clock.unix() - window_s) if self.clock.monotonic() - self.began >= window_s else 0

    @property
    def _expected(self) -> int:
        """Learners that step together, as the spec has it now."""
        return self.settings.roles.learner.replicas

    def _learning(self) -> set[str]:
        """Policies that a live learner trains."""
        return {self.learners.policy_of(one.index) for one in self.members.leases.live("learner")}

    def _expire(self) -> None:
        for holder in self.members.leases.expire():
            silent_s = self.clock.monotonic() - holder.heard
            how = "ended" if holder.leaving else f"was not heard for {silent_s:.0f} s and lost its lease"
            self._gone(holder, f"{holder.role} {holder.index} {how}")
        for boot in self.members.bury():
            self.learners.bury(boot)

    def _gone(self, holder: Holder, text: str) -> None:
        self.events.add("gone", text, role=holder.role, index=holder.index, boot=holder.boot)
        self.members.forget(holder.boot)
        self.evaluations.drop(holder.boot)
        self.profiles.drop(holder.boot)

    def _store_progress(self) -> bool:
        self.progress.wall_s = self.wall_s
        self.progress.issued = max(self.progress.issued, self.checkpoints.issued)
        return self._shelf.save_progress()
