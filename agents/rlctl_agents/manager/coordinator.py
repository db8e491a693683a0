"""Coordinator of a run: routes requests of processes to the objects that hold the state, and orders back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from rlctl.spec.layout import EVENTS, Layout
from rlctl.spec.schema import Spec
from rlctl_agents.checkpoint.parts import SHARD, generation_of, name_of
from rlctl_agents.manager import timing
from rlctl_agents.manager.accounting.outliers import Outliers
from rlctl_agents.manager.checkpoints.assembly import End
from rlctl_agents.manager.checkpoints.fencing_term import next_term, standing_term
from rlctl_agents.manager.checkpoints.manifests import Manifests
from rlctl_agents.manager.checkpoints.schedule import Checkpoints
from rlctl_agents.manager.evaluation.evaluations import Evaluations
from rlctl_agents.manager.evaluation.matches import training
from rlctl_agents.manager.events import Events
from rlctl_agents.manager.lifecycle.beginning import InitialPolicySource
from rlctl_agents.manager.lifecycle.stop import RunStop, require_measurable
from rlctl_agents.manager.membership.admission import LeaseAdmission, MustWait
from rlctl_agents.manager.membership.learner_groups import Groups
from rlctl_agents.manager.membership.learner_progress import Learners
from rlctl_agents.manager.membership.leases import Holder
from rlctl_agents.manager.membership.registry import Members, load_members
from rlctl_agents.manager.settings import changes
from rlctl_agents.manager.state_store import StateStore
from rlctl_agents.manager.status.view import ManagerLife
from rlctl_agents.manager.timing import Clock
from rlctl_agents.manager.web.profiles import Profiles
from rlctl_agents.runtime.addresses import Addresses
from rlctl_agents.runtime.gauges import FAILED_GENERATION, STOPPING, UNREADABLE, group_of
from rlctl_agents.types.control import (
    Commit,
    Contribute,
    Enlist,
    EvalResult,
    Generation,
    GroupPlace,
    Hello,
    Lease,
    Match,
    Note,
    Orders,
    Recorded,
    Reply,
    Report,
    Sampled,
    StoreReply,
)

RECORDS = {("actor", "crash"), ("evaluator", "crash"), ("evaluator", "worst"), ("evaluator", "best")}
"""Pairs of a role and a kind of episode that it records."""
SPEAKS_REPORTS = 2.5
"""Report intervals within which a process must have been heard to count as running."""


class Coordinator:
    """State and request handlers of one manager. Called by one thread; others may read `events` and the members' lines.

    Args:
        boot: boot of this process.
        settings: the manager's part of the spec, live settings included.
        layout: folders of the run; they exist.
        ticket, admit: as those of `LeaseAdmission`.

    Raises:
        Damaged: the state that an earlier manager stored cannot be read.
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
        self.settings, self.clock = settings, clock
        self.state = StateStore(layout.results, clock.monotonic)
        self.events = Events(layout.results / EVENTS, clock.unix)
        manifests, progress = Manifests(layout.checkpoints), self.state.progress
        progress.met = None  # conditions may have changed
        for policy in settings.policy_names:
            progress.catch_up(policy, manifests.of(policy), lost=bool(self.state.lost))
        progress.term = term = next_term(layout.run, max(manifests.newest_term, progress.term))
        self.life = ManagerLife(run, uid, boot, term)
        self.checkpoints = Checkpoints(
            manifests, progress, clock.monotonic, standing_term=lambda: standing_term(layout.run, term),
            owners=self._shard_parts, every_s=lambda: self.settings.checkpoint.every,
        )  # fmt: skip
        for policy in settings.policy_names:
            if (newest := manifests.newest(policy)) is not None:
                self.checkpoints.resume(policy, clock.unix() - newest.created)
        self.learners = Learners(
            {name: settings.policy(name).population for name in settings.policy_names},
            lambda policy: self.settings.policy(policy).algorithm.batch_size, progress, manifests.of, clock.monotonic,
        )  # fmt: skip
        self.members = Members(load_members(layout.results), addresses, clock.monotonic)
        self.admission = LeaseAdmission(run, uid, self.members, self.events, clock, ticket=ticket, admit=admit)
        self.groups = Groups(clock.monotonic, self.events.add)
        self.evaluations = Evaluations(
            lambda: self.settings, self.state, self.learners, self.events, layout, clock, self.members.cpu,
            self.members.train_return, stands=lambda: standing_term(layout.run, term) == term,
        )  # fmt: skip
        self.stop = RunStop(
            self.state, self.members, self.learners, self.checkpoints, self.evaluations, self.events, clock
        )
        self.beginning = InitialPolicySource(settings.init, layout.init)
        self.profiles = Profiles(layout.root, run, clock)
        self.outliers = Outliers(clock.monotonic)
        self.events.add("start", f"manager started, term {term}", term=term)
        if self.state.lost:
            self.events.add("lost", self.state.lost)

    @property
    def shards(self) -> int:
        """Number of replay shards in the present spec; 0: no replay."""
        replay = self.settings.roles.replay
        return 0 if replay is None else replay.replicas

    @property
    def disk(self) -> str:
        """Failure to store or remove something, in words; "" without one."""
        return self.state.failure or self.events.failure or self.evaluations.failure or self.checkpoints.failure

    # requests

    def answer(self, request: msgspec.Struct) -> msgspec.Struct:
        """Handle any of the requests below.

        Raises:
            ValueError: the request is refused; the message says why.
        """
        return ROUTES[type(request)](self, request)

    def hello(self, hello: Hello) -> Lease:
        """Grant a lease to a process that introduces itself, or have it wait.

        Raises:
            ValueError: the process does not belong here; the message says why.
        """
        try:
            return self._lease(hello)
        except MustWait as wait:
            return Lease(-1, self.life.term, 0.0, {}, {}, wait=str(wait))
        except ValueError as fault:
            self.admission.refuse(hello.role, str(fault))
            raise

    def report(self, report: Report) -> Orders:
        """Take in a report of a process; returns its orders."""
        boot, leases = report.boot, self.members.leases
        if leases.is_other(boot, report.role):  # a boot keeps its role
            return Orders(self.life.term, known=False, peers={})
        if leases.refused(boot):
            return Orders(self.life.term, known=True, peers={}, stop=True)
        if not leases.known(boot):
            return Orders(self.life.term, known=False, peers={})
        holder = leases.hear(boot, leaving=report.gauges.get(STOPPING, 0.0) > 0)
        before = self.members.seen.get(boot)
        quarantined = self.members.take(report)
        for sender, fault in quarantined.items():
            text = f"{self.members.place(sender)} is quarantined by the learner: {fault}"
            self.events.add("quarantined", text, boot=sender)
        outdated = self.admission.experience.outdated(boot)
        if holder is None or report.term != self.life.term or report.role != holder.role or outdated:
            return Orders(self.life.term, known=False, peers={})
        if holder.role == "learner":
            self._hear_learner(holder, report)
        elif holder.role == "replay":
            self._hear_shard(holder, report, before)
        return Orders(
            term=self.life.term,
            known=True,
            peers=self.members.addresses.peers(holder.role, holder.index, self.shards),
            match=self._match(holder, report),
            checkpoint=self._ordered_generation(holder),
            stop=self.stop.tell(boot),
            stop_steps=self.stop.stop_steps(holder, self.settings.stop),
            report_every_s=timing.report_every_s(len(leases), holder.role),
            group=self.groups.wanted if holder.role == "learner" else 0,
            profile=self.profiles.wanted(boot),
            ticket=self.admission.ticket(holder),
            leased_since_s=self.admission.leased_since_s(holder),
        )

    def enlist(self, ask: Enlist) -> GroupPlace:
        """Place of a learner among those that step together."""
        return self.groups.enlist(ask, self.members.leases.live("learner"), self._expected)

    def note(self, note: Note) -> StoreReply:
        """Exchange notes between the members of a group of learners."""
        return self.groups.note(note)

    def result(self, result: EvalResult) -> Reply:
        """Accept the result of a quota that an evaluator has played."""
        return _accepted(lambda: self.evaluations.believe(result))

    def sampled(self, sampled: Sampled) -> Reply:
        """Accept the profile of a process that was ordered to sample itself."""
        return _accepted(lambda: self.profiles.take(sampled))

    def recorded(self, recorded: Recorded) -> Reply:
        """Store an episode; `why` of the reply is its name, or why it is not stored."""
        holder = self.members.leases.holder(recorded.boot)
        if holder is None or (holder.role, recorded.kind) not in RECORDS:
            return Reply(False, f"process {recorded.boot} has no role that records {recorded.kind} episodes")
        try:
            if recorded.kind == "crash" and not recorded.header:
                self.state.episodes.reserve(recorded.boot)
                return Reply(True)
            name = self.state.episodes.keep(f"{holder.role}-{holder.index}", recorded)
        except (ValueError, OSError) as fault:
            return Reply(False, getattr(fault, "strerror", None) or str(fault))
        if recorded.kind == "crash":
            again = f"rlctl repro {self.life.run} {name}"
            text = f"{holder.role} {holder.index} kept the episode in which its environment failed: {again}"
            self.events.add("episode", text, role=holder.role, index=holder.index, episode=name)
        return Reply(True, name)

    def commit(self, commit: Commit) -> Reply:
        """Commit a generation that a learner has written."""
        generation, assembly = commit.generation, self.checkpoints.assembly
        holder = self.members.leases.holder(commit.boot, "learner")
        try:
            if holder is None or self._policy(holder) != generation.policy:
                raise ValueError(f"process {commit.boot} is not the learner of {generation.policy}")
            if (why := assembly.outcome(generation)) is not None:
                return Reply(not why, why)
            if (newest := self.checkpoints.already(generation)) is not None:
                return Reply(True, f"generation {newest} has these weights or newer ones")
            self.checkpoints.require_ours(generation)
            if assembly.hold(generation):
                return Reply(False, "it waits for the parts of replay shards", again=True)
        except (ValueError, OSError) as fault:
            return self._refused(generation, fault)
        return self._commit(generation)

    def contribute(self, told: Contribute) -> Reply:
        """Note the part of a generation that a replay shard has written, or why it has not."""
        holder = self.members.leases.holder(told.boot, "replay")
        if holder is None or told.term != self.life.term:
            why = f"process {told.boot} holds no lease of a replay shard under term {self.life.term}"
            return Reply(False, f"{why}: its part of generation {told.number} is not noted")
        part = f"{SHARD}{holder.index}"
        if why := self._add_part(part, told):
            self.checkpoints.assembly.unseen[told.number, part] = told
            return Reply(False, why, again=True)
        return Reply(True)

    def _add_part(self, part: str, told: Contribute) -> str:
        """Note a part; returns why this must be retried, in words, "" when it is noted."""
        try:
            fault = told.fault or self._fault(part, told)
        except OSError as error:
            return f"the volume does not say whether it is there: {error.strerror}; the manager looks again"
        self.checkpoints.assembly.add(part, replace(told, fault=fault))
        return ""

    def _fault(self, part: str, told: Contribute) -> str:
        """Fault of the part that a shard names, "" without one: a faulty part is absent, and holds up no other.

        Raises:
            OSError: the volume cannot be read.
        """
        own = Path(name_of(self.settings.policy_names[0], told.number, part)).stem
        try:
            self.checkpoints.manifests.require_part(part, told.file)
        except ValueError as fault:
            return str(fault)
        ours = told.file.startswith(f"{own}-") and generation_of(told.file) is not None
        return "" if ours else f"part {part}: {told.file!r} is a file of others"

    def commit_held(self, *, last: bool = False) -> None:
        """Commit generations with all parts there or given up.

        Args:
            last: no process is left that could write a part.
        """
        assembly = self.checkpoints.assembly
        assembly.unseen = {key: told for key, told in assembly.unseen.items() if self._add_part(key[1], told)}
        end: End = "last" if last else "ending" if self.stop.phase != "running" else ""
        for generation in assembly.ready(end):
            said = self._commit(generation)
            assembly.end(generation, said.why)

    def _refused(self, generation: Generation, fault: Exception) -> Reply:
        self.events.add("refused", f"generation {generation.number} refused: {fault}", number=generation.number)
        return Reply(False, str(fault))

    def _commit(self, generation: Generation) -> Reply:
        try:
            generation = self.checkpoints.commit(generation)
        except (ValueError, OSError) as fault:
            return self._refused(generation, fault)
        for part, why in generation.absent.items():
            text = f"generation {generation.number} is without {part}: {why}; its rows are filled anew, or older ones"
            self.events.add("absent", text, number=generation.number, part=part)
        self.learners.know(generation.ref, generation.steps)
        self.events.add(
            "checkpoint",
            f"generation {generation.number} committed: version {generation.ref.version}, {generation.steps} steps",
            number=generation.number, steps=generation.steps, version=generation.ref.version,
        )  # fmt: skip
        self.checkpoints.tidy(generation, self.settings.checkpoint.keep)
        return Reply(True)

    def reload(self, settings: Spec) -> list[str]:
        """Apply other live settings; returns the changes in words.

        A run that has done what was asked, and is now asked for more, continues as long as no process was told to stop.

        Raises:
            TooLate: the run is ending.
            ValueError: a stop condition cannot be measured.
        """
        require_measurable(settings.stop, self.admission.experience.seats)
        changed = changes(self.settings, settings)
        goes_on = self.stop.goes_on(self.settings.stop, settings.stop)
        self.settings = settings
        if changed:
            self.events.add("reload", f"settings changed: {', '.join(changed)}", changes=changed)
        if goes_on:
            self.stop.go_on(f"{self.state.progress.met} is not enough any more")
        return changed

    def order_checkpoint(self) -> int:
        """Order a generation of every policy now; returns the highest number."""
        number = max(self.checkpoints.order(policy) for policy in self.learners.policies)
        self.state.save_progress()
        return number

    # periodic tasks

    def turn(self) -> None:
        """Do all that is due now; to be called often.

        Raises:
            NothingLearned: the time is over, and nothing was ever learned.
            UserFault: a stop condition cannot be measured.
        """
        self._expire()
        self.commit_held()
        self.beginning.look(self.events, begun=any(map(self.checkpoints.manifests.of, self.learners.policies)))
        members, live = self.members, self.members.leases.live()
        members.addresses.alive((one.role, one.index) for one in live if not one.leaving)
        if self.stop.phase == "running":
            for policy in self.learners.policies:
                steps, version = self.learners.steps(policy), self.learners.updates(policy)
                if self.checkpoints.due(policy, steps, version, self.settings.checkpoint.every):
                    self.checkpoints.order(policy)
                    self.state.save_progress()
            self.stop.judge(self.settings.stop, seats=self.admission.experience.seats, joined=self.admission.joined)
        else:
            self.stop.require_weights(self.settings.stop)
        if self.evaluations.awaits:
            self.evaluations.turn(
                members.published,
                final=members.rested,
                evaluators=len(members.leases.live("evaluator")),
                expected=self.settings.roles.evaluator.replicas,
                served=members.root is not None,
            )
        self.outliers.turn(self.admission.experience.figures, members.playing)
        now, within_s = self.clock.monotonic(), SPEAKS_REPORTS * members.report_every_s
        self.stop.turn([one for one in live if now - one.heard < within_s])

    def store(self) -> None:
        """Store everything for the next manager."""
        self.evaluations.store()
        self.state.save_progress()
        self.state.save_members(self.members.store())

    # internal

    def _lease(self, hello: Hello) -> Lease:
        grant = self.admission.grant(hello, closed=self.stop.tells)
        holder, role, index = grant.holder, grant.holder.role, grant.holder.index
        if grant.replaced is not None:
            self._gone(grant.replaced, f"{role} {index} was replaced by a new process", lost=not grant.replaced.leaving)
        if grant.new:
            self.members.rates.begin(hello.boot)
            self.members.lag.begin(hello.boot)
            self.events.add("lease", f"{role} {index} joined", role=role, index=index, boot=hello.boot)
        lineage, generations = 0, tuple[Generation, ...]()
        if role == "replay":
            self.members.ledger.receiver(hello.boot, self.settings.policy_names[0])
            if self._saves_replay:
                generations = self.checkpoints.manifests.of(self.settings.policy_names[0])
        if role == "learner":
            policy = self._policy(holder)
            self.members.ledger.receiver(hello.boot, policy)
            if grant.new and len(self.members.leases.live("learner")) == 1:
                self.commit_held(last=True)  # it resumes from what the last one has written, and shards take too long
            generations = self.checkpoints.manifests.of(policy)
            if grant.new:
                self.learners.join(hello.boot, generations)
            progress = self.state.progress
            opens = hello.boot not in progress.lineage_of
            lineage = progress.open_lineage(policy, hello.boot, self.members.leases.alive)
            if (opens or self.state.progress_failed) and not self.state.save_progress():
                raise ValueError(f"the lineage of learner {index} cannot be stored: {self.state.failure}")
        if self.settings.sync and role in ("actor", "learner"):
            learned = self.learners.steps(self.learners.policies[0])
            step = learned if role == "actor" else max((one.steps for one in generations), default=0)
            if (broken := self.state.progress.break_lock_step(f"{role}/{index}", hello.boot, step)) is not None:
                self.events.add("lock_step", broken.text, step=step)
        leases, addresses = self.members.leases, self.members.addresses
        return Lease(
            index=index,
            term=self.life.term,
            report_every_s=timing.report_every_s(len(leases), role),
            bind=addresses.bind(role, index),
            peers=addresses.peers(role, index, self.shards),
            experience=self.admission.experience.experience,
            match=self._match(holder),
            generations=generations,
            next_lineage=lineage,
            stop_steps=self.stop.stop_steps(holder, self.settings.stop),
            learners=max(self._expected, len(leases.live("learner"))),
            shards=self.shards,
            ticket=self.admission.ticket(holder),
            leased_since_s=self.admission.leased_since_s(holder),
        )

    def _hear_learner(self, holder: Holder, report: Report) -> None:
        self.groups.hear(holder.boot, group_of(report))
        if (resumed := self.learners.hear(holder.index, report)) is not None:
            self.evaluations.void_from(resumed.steps)
            self.events.add("resumed", resumed.text, number=resumed.number, steps=resumed.steps)
        number = int(report.gauges.get(FAILED_GENERATION, 0.0))
        if self.checkpoints.note_failure(self._policy(holder), number):
            text = f"generation {number} was not saved: rlctl logs learner/{holder.index} says why; it is ordered again"
            self.events.add("not_saved", text, number=number)
            self.state.save_progress()

    def _hear_shard(self, holder: Holder, report: Report, before: Report | None) -> None:
        told = before is not None and UNREADABLE in before.gauges
        if (parts := int(report.gauges.get(UNREADABLE, 0.0))) and not told:
            text = f"replay {holder.index} could not use {parts} of its parts and began with older rows or none"
            self.events.add("unreadable", text, index=holder.index, parts=parts)

    @property
    def _saves_replay(self) -> bool:
        return self.settings.replay is not None and self.settings.replay.checkpoint == "full"

    def _shard_parts(self) -> dict[str, bool]:
        """Part of each shard that is wanted or lives, in a generation -> whether the shard lives; {}: none is saved."""
        if not self._saves_replay:
            return {}
        live = {one.index for one in self.members.leases.live("replay")}
        return {f"{SHARD}{index}": index in live for index in sorted({*range(self.shards), *live})}

    def _ordered_generation(self, holder: Holder) -> int:
        if holder.role == "learner":
            return self.checkpoints.wanted(self._policy(holder))
        if holder.role != "replay" or not self._saves_replay:
            return 0
        policy = self.settings.policy_names[0]
        wanted = 0 if self.checkpoints.came_to_nothing(policy) else self.checkpoints.wanted(policy)
        return self.checkpoints.assembly.number(policy, wanted)

    def _match(self, holder: Holder, report: Report | None = None) -> Match | None:
        """Match that a process is to play.

        Args:
            report: report of an evaluator; None: it has not reported yet what it plays.
        """
        seats = self.admission.experience.seats
        if holder.role == "actor":
            return training(self.learners.policies[0], seats, self.settings.seed) if seats else None
        plays = self.stop.phase == "running" or self.evaluations.awaits
        if holder.role != "evaluator" or report is None or not seats or not plays:
            return None
        return self.evaluations.match(report, self.members.published, seats)

    def _policy(self, learner: Holder) -> str:
        return self.learners.policy_of(learner.index)

    @property
    def _expected(self) -> int:
        """Number of learners that step together, in the present spec."""
        return self.settings.roles.learner.replicas

    def _expire(self) -> None:
        for holder in self.members.expire():
            silent_s = self.clock.monotonic() - holder.heard
            how = "ended" if holder.leaving else f"was not heard for {silent_s:.0f} s and lost its lease"
            self._gone(holder, f"{holder.role} {holder.index} {how}", lost=not holder.leaving)
        for boot in self.members.bury():
            self.learners.bury(boot)
            self.admission.experience.bury(boot)

    def _gone(self, holder: Holder, text: str, *, lost: bool) -> None:
        self.events.add("gone", text, role=holder.role, index=holder.index, boot=holder.boot, lost=lost)
        self.members.forget(holder.boot)
        self.evaluations.drop(holder.boot)
        self.profiles.drop(holder.boot)


ROUTES: dict[type[msgspec.Struct], Callable[[Coordinator, Any], msgspec.Struct]] = {
    Hello: Coordinator.hello,
    Report: Coordinator.report,
    EvalResult: Coordinator.result,
    Commit: Coordinator.commit,
    Contribute: Coordinator.contribute,
    Enlist: Coordinator.enlist,
    Note: Coordinator.note,
    Recorded: Coordinator.recorded,
    Sampled: Coordinator.sampled,
}
"""Type of a request -> its handler."""


def _accepted(take: Callable[[], object]) -> Reply:
    """Reply to a request that `take` may refuse with a ValueError."""
    try:
        take()
    except ValueError as fault:
        return Reply(False, str(fault))
    return Reply(True)
