"""One build from its commit to a verified run: the order of its steps, and the outcome of each failure."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from rlctl.backends.base import Say
from rlctl.errors import BackendUnreachable, RlctlError
from rlctl.images.ignore import Ignore
from rlctl_ci.config.settings import Project
from rlctl_ci.core.errors import (
    ENDED,
    UNTOUCHED,
    BuildStopped,
    Busy,
    Cancelled,
    LostLease,
    Occupied,
    Overtaken,
    ShuttingDown,
    Transient,
    no_room,
)
from rlctl_ci.core.lease_heartbeat import BEAT_S, LeaseHeartbeat
from rlctl_ci.core.states import MAX_ATTEMPTS, State
from rlctl_ci.store.inbox import SUPERSEDED
from rlctl_ci.store.queue import Queue
from rlctl_ci.store.reading import Reading
from rlctl_ci.store.records import Artifact, Build, Deploy

LOCK_POLL_S: Final = 0.5
LOCK_LOOKS: Final = 60

Stop = Callable[[], None]
"""Check that raises Cancelled, LostLease or Ending when the build has to end here."""


@dataclass(frozen=True, slots=True)
class Job:
    """One attempt at a build."""

    build: Build
    project: Project
    folder: Path  # empty; removed afterwards
    say: Say
    stop: Stop
    output: Say | None = None  # called with lines of programs, of which a log takes a limited number; None: as `say`


@dataclass(frozen=True, slots=True)
class Live:
    """A live run, which can be redeployed."""

    revision: int
    baseline: Mapping[str, Any]  # throughput, replicas, processes that were not ready, uid, cluster
    images: tuple[str, ...] = ()


class Fetcher(Protocol):
    """Repository of a project, at the address that the configuration has."""

    def look(self, ref: str) -> str | None:
        """Head commit of a branch, outside of any build; None: there is no such branch.

        Raises:
            Transient: the repository does not answer.
        """

    def head(self, job: Job) -> str | None:
        """Head commit of the build's branch; None: the branch is gone.

        Raises:
            Transient: the repository does not answer.
        """

    def fetch(self, job: Job) -> Path:
        """The files of the commit in a folder; nothing of them is executed."""

    def before_or_same(self, job: Job, sha: str) -> bool:
        """Whether the commit of the build is `sha` or an ancestor of it."""

    def changed(self, job: Job, before: str) -> list[str] | None:
        """Files in which the commit differs from `before`, another one that was fetched; None: not known."""


class ArtifactBuilder(Protocol):
    """A builder; see `rlctl_ci.builders`."""

    def make(self, job: Job, source: Path) -> Any:
        """Make what `push` sends; nothing is sent yet.

        Raises:
            BuildStopped: the commit cannot be built.
        """

    def push(self, job: Job, made: Any) -> Sequence[Artifact]:
        """Push what was made to where the target finds it, unless it is there already; returns the artifacts.

        Raises:
            Transient: the registry does not answer.
        """


class Deployer(Protocol):
    """The target of a project."""

    def look(self, job: Job) -> Live | None:
        """State of the run; None when it does not run, so there is nothing to redeploy.

        Raises:
            BuildStopped: there is no such run.
        """

    def apply(self, job: Job, deploy: Deploy, source: Path, artifacts: Sequence[Artifact]) -> int:
        """Apply the spec of this commit with these artifacts to the run; idempotent. Returns the revision of the run.

        Raises:
            BuildStopped: the spec is invalid, or asks for what this run cannot become, or the target refuses; this call
                has changed nothing.
            Transient: the target became unreachable, perhaps midway; or, with a code of UNTOUCHED, this call has
                changed nothing.
            RlctlError: some objects may have been changed.
        """

    def verify(self, job: Job, deploy: Deploy, redeployed: Callable[[], object]) -> str:
        """Wait until the run is ready and keeps up its throughput; returns a summary of it.

        Args:
            redeployed: called once every replica runs the new code and has reported.

        Raises:
            RlctlError: it is not ready, or too slow.
        """

    def undo(self, job: Job, deploy: Deploy) -> int:
        """Roll back to the revision before, and wait until the run is ready, if it was. Returns the new revision.

        Raises:
            BuildStopped: the run is not as this deployment has left it, and was not changed; with the code `ended`, it
                does not run any more.
            Transient, BackendUnreachable: the target is unreachable; the same call resumes the rollback.
        """


class Adapters(NamedTuple):
    """Adapters of one project: repository, builder and target."""

    fetcher: Fetcher
    artifact_builder: ArtifactBuilder
    deployer: Deployer


@dataclass
class BuildAttempt:
    """Runs one attempt at a build: fetch, build, push, deploy, verify.

    Args:
        queue, reading: of the service.
        owner: holder of the lease.
        fetcher, artifact_builder, deployer: of the project.
        sleep: called with the seconds between two polls of the run's lock.
        beat_every_s: seconds between two renewals of the lease.
        ends: whether the service shuts down, and every attempt with it.
    """

    queue: Queue
    reading: Reading
    owner: str
    fetcher: Fetcher
    artifact_builder: ArtifactBuilder
    deployer: Deployer
    sleep: Callable[[float], None] = time.sleep
    beat_every_s: float = BEAT_S
    ends: Callable[[], bool] = lambda: False

    def run(self, build: Build, project: Project, folder: Path, say: Say, output: Say | None = None) -> None:
        """Make one attempt; leaves the build in a terminal state or in the queue.

        Args:
            say, output: called with lines of the service, and of programs.

        Raises:
            LostLease: another worker holds the lease, and nothing was recorded; or the service shuts down.
            Busy: the database cannot be written.
            OSError: the disk is full; the build is as it was.
        """
        with LeaseHeartbeat(self.queue, build.id, self.owner, self.beat_every_s, self.ends) as heartbeat:
            heartbeat.look()
            job = Job(build, project, folder, say, heartbeat.stop, output)
            try:
                try:
                    self._attempt(job, heartbeat)
                except Exception as error:
                    if (full := no_room(error)) is not None:
                        raise full from None
                    raise
            except ShuttingDown as error:
                self.queue.retry_later(build.id, self.owner, error.message, spent=False, pause_s=0.0)
                raise
            except (LostLease, Busy):  # Busy: the lease expires, and another attempt resumes from what is stored
                raise
            except Occupied as error:
                say(error.message)
                self.queue.retry_later(build.id, self.owner, error.message, spent=False)
            except Cancelled as error:
                self._end_early(job, heartbeat, "cancelled", error.message)
            except Overtaken as error:
                self._end_early(job, heartbeat, "superseded", error.message)
            except (Transient, BackendUnreachable) as error:
                why = _with_hint(error)
                say(f"error: {why}")
                code = error.code if isinstance(error, Transient) else "unreachable"
                if not self.queue.retry_later(build.id, self.owner, why, spent=code != ENDED):
                    self._end_early(job, heartbeat, "failed", why, code)
            except RlctlError as error:
                say(f"error: {error.message}")
                for line in getattr(error, "details", ()):
                    say(f"  {line}")
                code = error.code if isinstance(error, BuildStopped) else error.reason
                self._end_early(job, heartbeat, "failed", _with_hint(error), code)
            except Exception as error:  # a bug must not leave the build hanging
                if no_room(error) is not None:
                    raise
                say(f"error: {type(error).__name__}: {error}")
                self._end_early(job, heartbeat, "failed", f"a bug: {type(error).__name__}: {error}", "bug")

    def _attempt(self, job: Job, heartbeat: LeaseHeartbeat) -> None:
        build, owner = job.build, self.owner
        begun = self.reading.deploy(build.id)
        if begun is not None:
            heartbeat.ignore_cancellation()
            if begun.state == "rolling_back" or build.cancel or build.spent > MAX_ATTEMPTS:
                self._undo(job, begun, begun.note or build.cancel or f"interrupted {build.spent - 1} times")
                return
            if begun.state == "applied":  # to verify it takes neither repository nor registry
                self.queue.step(build.id, owner, "deploying", "applied by an earlier attempt")
                self._verify(job, begun)
                return
        elif not self._wanted(job):
            return
        job.say(f"fetching {build.sha}")
        source = self.fetcher.fetch(job)
        job.stop()
        if begun is None and (why := self._untouched(job)):
            self.queue.end(build.id, owner, "ignored", why)
            return
        self.queue.step(build.id, owner, "building", f"builder {job.project.builder}")
        made = self.artifact_builder.make(job, source)
        job.stop()
        self.queue.step(build.id, owner, "pushing")
        artifacts = self.artifact_builder.push(job, made)
        self.queue.artifact(build.id, owner, artifacts)
        for one in artifacts:
            job.say(f"{one.name}: {one.reference}")
        job.stop()
        self.queue.step(build.id, owner, "deploying")
        self._deploy(job, heartbeat, source, artifacts, begun)

    def _wanted(self, job: Job) -> bool:
        """Whether this commit is still the head of its branch, and the branch is not pinned; else ends the build."""
        build = job.build
        pinned = self.reading.pins().get((build.project, build.ref))
        if pinned is not None and build.source != "person":
            bad, why = pinned
            if build.sha == bad or self.fetcher.before_or_same(job, bad):
                reason = f"the branch is pinned at {bad[:12]} ({why}); a newer commit or `rlctl ci resume` goes on"
                self.queue.end(build.id, self.owner, "ignored", reason)
                return False
        head = self.fetcher.head(job)
        if head is None:
            self.queue.end(build.id, self.owner, "ignored", "the branch is gone")
            return False
        if head == build.sha:
            return True
        if build.source != "person":
            self.queue.give_way(build.id, self.owner, head)
            return False
        if not self.fetcher.before_or_same(job, head):
            raise BuildStopped(
                "commit", f"{build.sha[:12]} is no commit of branch {build.branch}, which is at {head[:12]}",
                hint="push it to the branch",
            )  # fmt: skip
        return True

    def _untouched(self, job: Job) -> str:
        """Reason to skip a build by `paths`; empty: one of their files has changed, or not known, or a person asks.

        Compared with the branch's last commit that was deployed and kept, and with the pinned one. The hook of a commit
        in between may be lost, and a branch may be set back: the changes that a push names are not enough.
        """
        build, paths = job.build, job.project.paths
        if not paths or build.source == "person":
            return ""
        wanted = Ignore.parse("".join(f"{pattern}\n" for pattern in paths))
        pinned = self.reading.pins().get((build.project, build.ref))
        for before in (self.reading.stands(build), pinned and pinned[0]):
            changed = None if before is None else self.fetcher.changed(job, before)
            if before is not None and changed is not None and not any(map(wanted.leaves_out, changed)):
                return f"no file of paths: {', '.join(paths)} changed since {before[:12]}"
        return ""

    def _deploy(
        self, job: Job, heartbeat: LeaseHeartbeat, source: Path, artifacts: Sequence[Artifact], begun: Deploy | None
    ) -> None:
        build, owner = job.build, self.owner
        deploy = begun or self._planned(job)
        if deploy is None:
            self.queue.end(
                build.id, owner, "ignored", f"run {job.project.run} does not run: built, and nothing redeployed"
            )
            return
        heartbeat.ignore_cancellation()
        try:
            revision = self.deployer.apply(job, deploy, source, artifacts)
        except (LostLease, Transient, BackendUnreachable) as error:
            if begun is None and isinstance(error, Transient) and error.code in UNTOUCHED:
                self.queue.unplan(build.id, owner)
            raise
        except RlctlError as error:
            if begun is not None or not isinstance(error, BuildStopped):
                self._give_up(job, deploy, error)
            else:  # nothing was changed, and no earlier attempt was here
                job.say(f"error: {error.message}")
                self.queue.decide(build.id, owner, "failed", "failed", _with_hint(error))
            return
        self.queue.deployed(build.id, owner, "applied", revision=revision)
        if revision == deploy.before_revision:
            said = f"revision {revision} runs this already"
            self.queue.decide(build.id, owner, "verified", "succeeded", said, revision=revision)
            return
        self._verify(job, deploy)

    def _planned(self, job: Job) -> Deploy | None:
        """Record the deployment of a build before it begins; None when the run does not run.

        Raises:
            Occupied: another build holds the run for too long.
        """
        build, run = job.build, job.project.run
        for look in range(LOCK_LOOKS):
            job.stop()
            if self.queue.is_free(run):
                live = self.deployer.look(job)  # not earlier: a rollback goes to what the build before has made
                if live is None:
                    return None
                deploy = self.queue.plan_deploy(build.id, self.owner, run, live.revision, live.baseline)
                if deploy is not None:
                    return deploy
            if look == 0:
                job.say("waiting: another build of this run is being deployed")
            self.sleep(LOCK_POLL_S)
        raise Occupied(f"another build of run {run} is being deployed")

    def _verify(self, job: Job, deploy: Deploy) -> None:
        def redeployed() -> None:
            note = "redeployed: every replica runs the new code and has reported"
            self.queue.step(job.build.id, self.owner, "verifying", note)

        try:
            said = self.deployer.verify(job, deploy, redeployed)
        except (LostLease, Transient, BackendUnreachable):
            raise
        except RlctlError as error:
            self._give_up(job, deploy, error)
            return
        self.queue.decide(job.build.id, self.owner, "verified", "succeeded", said)

    def _give_up(self, job: Job, deploy: Deploy, error: RlctlError) -> None:
        job.say(f"error: {error.message}")
        for line in getattr(error, "details", ()):
            job.say(f"  {line}")
        self._undo(job, deploy, error.message)

    def _undo(self, job: Job, deploy: Deploy, why: str) -> None:
        """Roll back to the revision before, and pin the branch; changes that others have made to the run stay."""
        build, cancelled = job.build, _cancelled(job.build, why)
        self.queue.deployed(build.id, self.owner, "rolling_back", note=why)
        job.say(f"rolling back to revision {deploy.before_revision}: {why}")
        try:
            revision = self.deployer.undo(job, self.reading.deploy(build.id) or deploy)
        except BuildStopped as error:
            said = f"{why}; not rolled back: {_with_hint(error)}"
            job.say(f"error: {said}")
            self.queue.decide(
                build.id, self.owner, "failed", "cancelled" if cancelled else "failed", said,
                pin="" if cancelled or error.code == "ended" else said,
            )  # fmt: skip
            return
        job.say(f"revision {revision} runs")
        self.queue.decide(
            build.id, self.owner, "rolled_back", "cancelled" if cancelled else "rolled_back", why, revision=revision,
            pin="" if cancelled else why,
        )  # fmt: skip

    def _end_early(self, job: Job, heartbeat: LeaseHeartbeat, to: State, reason: str, code: str = "") -> None:
        """End the build; a deployment that has begun is rolled back first."""
        build = job.build
        if reason.startswith(SUPERSEDED):
            to, reason = "superseded", reason.removeprefix(SUPERSEDED)
        begun = self.reading.deploy(build.id)
        if begun is not None and begun.state in ("planned", "applied", "rolling_back"):
            heartbeat.ignore_cancellation()
            why = begun.note or reason
            pinned = not _cancelled(build, why)
            try:
                self._undo(job, begun, why)
            except (LostLease, Busy):
                raise
            except (Transient, BackendUnreachable) as error:  # the service resumes it, however long that takes
                why = f"{why}; rolled back as soon as the target answers ({error.message})"
                self.queue.decide(build.id, self.owner, "rolling_back", "failed", why, pin=why if pinned else "")
            except Exception as error:
                reason = f"{reason}; and the rollback failed: {error}"
                self.queue.decide(build.id, self.owner, "failed", "failed", reason, pin=reason if pinned else "")
            return
        self.queue.end(build.id, self.owner, to, reason, code=code)


def images_of(live: Live | None) -> tuple[str, ...]:
    """Images of a run; none when it does not run."""
    return () if live is None else live.images


def _cancelled(build: Build, why: str) -> bool:
    """Whether `why` is the cancellation of the build: it says nothing about the commit, and pins no branch."""
    return why != "" and why == build.cancel


def _with_hint(error: RlctlError) -> str:
    return error.message + (f"; {error.hint}" if error.hint else "")
