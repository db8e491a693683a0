"""The service without HTTP: its state, and the threads that do its work."""

from __future__ import annotations

import math
import os
import secrets as random
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import unquote

from rlctl.errors import BackendUnreachable, RlctlError
from rlctl.images.registry.logins import passwords
from rlctl.spec.words import plain
from rlctl.waiting import Waiting
from rlctl_ci.config.settings import Config, Project, secrets
from rlctl_ci.core import stages
from rlctl_ci.core.build_attempt import Adapters, BuildAttempt, Job
from rlctl_ci.core.errors import BuildStopped, Busy, CiError, LostLease, Transient
from rlctl_ci.core.logs import MASK, Log, Masker
from rlctl_ci.forges.base import Event, text
from rlctl_ci.git.plumbing import PROXIES
from rlctl_ci.git.refs import HEADS
from rlctl_ci.sandbox.locks import taken
from rlctl_ci.store.database import Database
from rlctl_ci.store.people import People
from rlctl_ci.store.queue import Queue
from rlctl_ci.store.reading import Reading
from rlctl_ci.store.records import Accepted, Build, Deploy, Push

IDLE_S: Final = 2.0
DOUBT_S: Final = 5.0
"""Seconds from a hook that may be a replay to the poll of its branch: several such hooks cause one poll."""
MAX_NOTE: Final = 8000
"""Characters of a reason, at most: errors quote text of the commit."""
AWAY_S: Final = 30.0
"""Seconds between attempts at a rollback whose target is unreachable."""
LOCK_WITHIN_S: Final = 2.0
_DISK_S: Final = 60.0
"""Seconds until a build that has met a full disk is tried again."""


class Service:
    """The service: its queue, workers, polls and clean-up.

    Args:
        config: of the service.
        adapters: makes the adapters of a project; see `rlctl_ci.core.wiring`.
        now: seconds since the epoch.
        clock: monotonic seconds.

    Raises:
        SpecError: a secret is missing.
        CiError: another process holds the state folder.
    """

    def __init__(
        self, config: Config, adapters: Callable[[Project, Service], Adapters], now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.config, self._adapters, self.now, self._clock = config, adapters, now, clock
        for name, project in config.projects.items():
            secrets(name, project.secret_file)  # fail now, not at the first push
        self.folder = config.folder
        for folder in (self.folder, self.folder / "logs", self.folder / "work"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = _only_one(self.folder / "lock")
        self.database = Database(self.folder / "ci.db")
        self.queue = Queue(self.database, now, self.hidden)
        self.reading = Reading(self.database)
        self.people = People(self.database, now)
        self.owner = f"{os.getpid()}-{random.token_hex(4)}"
        self.started = now()
        self._at_work: set[str] = set()  # the owner of every attempt in flight
        self._guard = threading.Lock()
        self._taking_back: set[int] = set()  # builds whose deployment a thread of this process rolls back
        self._patient_until: dict[int, float] = {}  # build -> time before which its rollback is not retried
        self._due = {name: clock() if project.poll_s else math.inf for name, project in config.projects.items()}
        self.looks = {name: (0.0, "") for name, project in config.projects.items() if project.poll_s}
        """Project -> when all its branches were last looked at, 0: never; and why they could not be, since then."""
        self._wake = threading.Event()
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Recover what the process before this one has left, then start the threads."""
        self.queue.recover(at_start=True)
        self.queue.forget_others(
            {
                (name, f"{HEADS}{branch}")
                for name, project in self.config.projects.items()
                for branch in project.branches
            }
        )
        shutil.rmtree(self.folder / "work", ignore_errors=True)
        (self.folder / "work").mkdir(mode=0o700, exist_ok=True)
        for number in range(self.config.builds):
            self._threads.append(threading.Thread(target=self._work, name=f"build-{number}", daemon=True))
        for name in self.config.projects:  # a forge that does not answer delays the polls of its project alone
            self._threads.append(threading.Thread(target=self._poll, args=(name,), name=f"poll-{name}", daemon=True))
        for thread in self._threads:
            thread.start()

    def healthy(self) -> bool:
        """Whether every thread that was started is alive."""
        return all(thread.is_alive() for thread in self._threads)

    def end(self) -> None:
        """Start nothing new; what is in flight stops where it is, and is resumed after a restart."""
        self._over.set()
        self._wake.set()

    def close(self, grace_s: float = 3.0) -> None:
        """End, and wait for the threads; programs of theirs that do not end are killed with this process."""
        self.end()
        deadline = time.monotonic() + grace_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if not any(thread.is_alive() for thread in self._threads):
            self.database.close()
        self._lock.close()

    def take(self, name: str, event: Event) -> Accepted | str:
        """Accept a verified delivery; returns its build, or the reason why there is none.

        Raises:
            Busy: the delivery is not stored.
        """
        project, why = self.config.projects[name], event.why
        if event.push is not None and (branch := event.push.ref.removeprefix(HEADS)) not in project.branches:
            why = f"branch {text(branch)} is not built"
        if event.push is None or why:
            self.queue.ignore(name, delivery=event.delivery, event=event.name, why=why)
            return why
        accepted = self.queue.accept(
            name, event.push, recipe=project.recipe(), delivery=event.delivery, event=event.name
        )
        if not accepted.new and self.reading.head(name, event.push.ref) != event.push.sha:
            # the branch was set back to this commit, or the hook is a replay: the repository knows
            self._due[name] = min(self._due[name], self._clock() + DOUBT_S)
        self.wake()
        return accepted

    def take_all(self, told: Sequence[tuple[str, Event]]) -> list[Accepted | str]:
        """Accept deliveries that came at the same time in one transaction, with one sync of the disk.

        Raises:
            Busy: none of them is stored.
        """
        with self.database.write():
            found = [self.take(name, event) for name, event in told]
        self.wake()  # nothing is visible before the commit
        return found

    def trigger(self, name: str, push: Push) -> int:
        """Queue a build that a person asks for; returns its number.

        Raises:
            CiError: there is no such project, or it has no such branch.
        """
        project = self._project(name)
        if push.ref.removeprefix(HEADS) not in project.branches:
            raise CiError(f"project {name} does not build {push.ref}", hint=f"branches: {', '.join(project.branches)}")
        build = self.queue.again(name, push, recipe=project.recipe())
        self.wake()
        return build

    def roll_back(self, name: str, who: str) -> dict[str, Any]:
        """Roll back the newest deployment of a project to the revision before it, and pin its branch.

        Raises:
            CiError: there is nothing to roll back, or the run is being changed.
            BackendUnreachable: the target is unreachable; the rollback is resumed when it answers.
            RlctlError: the rollback failed.
        """
        project = self._project(name)
        with self._guard:
            deploy = self.queue.take_back(name, project.run, f"rolled back by {who}")
            self._taking_back.add(deploy.build)
        revision = self._take_back(deploy)
        pinned = self.reading.pins().get((name, deploy.ref))
        return {"project": name, "build_id": deploy.build, "revision": revision, "pinned": pinned and pinned[0]}

    def _take_back(self, deploy: Deploy) -> int:
        try:
            build, project = self.reading.build(deploy.build), self._project(deploy.project, deploy)
            log = Log(self.log(build.id), project.limits.log_mib << 20, self.masker_now(deploy.project, project))
            log(deploy.note)
            job = Job(build, project, self.folder / "work", log, self._check_running)
            revision = self.work_of(project, self.owner).deployer.undo(job, deploy)
        except (Busy, Transient, BackendUnreachable):
            self._patient_until[deploy.build] = self._clock() + AWAY_S
            raise
        except Exception as error:
            why = f"{deploy.note}, which failed: {_in_words(error)}"
            self.queue.taken_back(deploy.build, why, None, refused=isinstance(error, BuildStopped))
            raise
        else:
            self.queue.taken_back(deploy.build, deploy.note, revision)
            return revision
        finally:
            self._taking_back.discard(deploy.build)

    def _check_running(self) -> None:
        if self._over.is_set():
            raise Transient("end", "the service ends; its next life goes on with this rollback")

    def _left_over(self) -> Deploy | None:
        """A rollback asked for by a person, and interrupted by a crash or an unreachable target; None: none is due."""
        now = self._clock()
        with self._guard:
            due = (
                one for one in self.reading.unfinished_rollbacks()
                if one.build not in self._taking_back and self._patient_until.get(one.build, now) <= now
            )  # fmt: skip
            found = next(due, None)
            if found is not None:
                self._taking_back.add(found.build)
            return found

    def _project(self, name: str, deploy: Deploy | None = None) -> Project:
        """The project of that name, for a deployment that has begun.

        Raises:
            CiError: the project is no longer configured, or is of another run by now.
        """
        project = self.config.projects.get(name)
        if project is None:
            raise CiError(f"project {name} is no longer configured", hint="ci.yaml")
        if deploy is not None and deploy.run != project.run:
            raise CiError(f"project {name} is of run {project.run} by now, not of {deploy.run}", hint="ci.yaml")
        return project

    def wake(self) -> None:
        """Wake a worker: there may be something to do."""
        self._wake.set()

    def log(self, build: int) -> Path:
        return self.folder / "logs" / f"{build}.log"

    def masker(self, name: str, project: Project) -> Masker:
        hidden = list(secrets(name, project.secret_file))
        if project.git_token_file is not None and project.git_token_file.is_file():
            hidden.append(project.git_token_file.read_bytes().strip())
        if project.git_key_file is not None and project.git_key_file.is_file():
            hidden += [line for line in project.git_key_file.read_bytes().splitlines() if len(line) >= 12]
        hidden += passwords(project.logins(os.environ))
        for proxy in filter(None, map(os.environ.get, PROXIES)):
            password = proxy.rpartition("@")[0].rpartition(":")[2]
            hidden += [password.encode(), unquote(password).encode()]
        return Masker(hidden)

    def masker_now(self, name: str, project: Project) -> Masker:
        """The masker of a project, for what goes on later where that fails.

        Raises:
            Transient: its secrets cannot be read.
        """
        try:
            return self.masker(name, project)
        except (RlctlError, OSError) as error:
            raise Transient("secrets", f"the secrets of {name} cannot be read: {_in_words(error)}") from error

    def hidden(self, name: str, text: str) -> str:
        """Text that can be stored and shown: not too long, without the secrets of a project."""
        return self.hiding(name)(text)

    def hiding(self, name: str) -> Callable[[str], str]:
        """Like `hidden`, for many texts of a project: its secrets are read once."""
        project = self.config.projects.get(name)
        if project is None:
            return lambda text: plain(text)[:MAX_NOTE]  # no longer configured: it has no secrets
        try:
            masker = self.masker(name, project)
        except (RlctlError, OSError):  # secrets that cannot be read cannot be hidden
            return lambda _: MASK
        return lambda text: masker(plain(text))[:MAX_NOTE]

    def work_of(self, project: Project, owner: str) -> BuildAttempt:
        return BuildAttempt(self.queue, self.reading, owner, *self._adapters(project, self), ends=self._over.is_set)

    def one(self) -> bool:
        """Make one attempt at a build or a rollback; returns whether there was one to make."""
        self.queue.recover(frozenset(self._at_work), at_start=False)
        if (deploy := self._left_over()) is not None:
            self._take_back(deploy)
            return True
        eager = [name for name, project in self.config.projects.items() if project.cancel_running]
        self.queue.admit(eager)
        owner = f"{self.owner}-{random.token_hex(4)}"
        self._at_work.add(owner)  # before it holds a lease
        try:
            runs = {name: project.run for name, project in self.config.projects.items()}
            build = self.queue.claim(owner, most=self.config.builds, runs=runs)
            if build is None:
                return False
            deploy = self.reading.deploy(build.id)
            try:
                project = self._project(build.project, deploy)
            except CiError as error:
                self._end_without_project(build, deploy, error.message)
            else:
                self._attempt(build, project)
            return True
        finally:
            self._at_work.discard(owner)

    def _end_without_project(self, build: Build, deploy: Deploy | None, why: str) -> None:
        if deploy is None:
            self.queue.end(build.id, build.lease_owner, "ignored", why)
        else:  # the target of its run is not known; the deployment must not hold the run for ever
            self.queue.decide(
                build.id, build.lease_owner, "failed", "failed", f"{why}: its deployment is left as it is"
            )

    def _attempt(self, build: Build, project: Project) -> None:
        folder = self.folder / "work" / f"{build.id}-{build.attempts}"
        try:
            masker = self.masker_now(build.project, project)
        except Transient as error:  # says nothing about the commit
            _say(f"build {build.id}", error)
            with suppress(LostLease):
                self.queue.retry_later(build.id, build.lease_owner, error.message, spent=False)
            return
        log = Log(self.log(build.id), project.limits.log_mib << 20, masker)
        try:
            folder.mkdir(mode=0o700, parents=True)
            log(f"attempt {build.attempts}: {build.project} {build.branch} {build.sha}")
            self.work_of(project, build.lease_owner).run(build, project, folder, log, log.output)
            after = self.reading.build(build.id)
            log(f"{after.state}{': ' if after.reason else ''}{after.reason}")
            if after.terminal:
                log(stages.in_words(self.reading.events(build.id)))
        except LostLease as error:
            log(error.message)
        except OSError as error:  # a full disk, say: it costs no attempt, and says nothing about the commit
            why = f"the disk: {error.strerror or error}"
            with suppress(LostLease):
                self.queue.retry_later(build.id, build.lease_owner, why, spent=False, pause_s=_DISK_S)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _work(self) -> None:
        while not self._over.is_set():
            try:
                if self.one():
                    continue
            except Exception as error:  # a worker that ended here would not be replaced
                _say("a worker", error)
                self._over.wait(1.0)
            self._wake.wait(IDLE_S)
            self._wake.clear()

    def _poll(self, name: str) -> None:
        while not self._over.wait(1.0):
            self.look(name)

    def look(self, name: str) -> None:
        """Poll the branches of a project if they are due, because no forge repeats a delivery that was lost."""
        project = self.config.projects[name]
        if self._clock() < self._due[name]:
            return
        self._due[name] = self._clock() + (project.poll_s or math.inf)
        at, why = self.now(), ""
        for branch in project.branches:
            try:
                self._look(name, project, f"{HEADS}{branch}")
            except Exception as error:  # other branches are polled all the same
                _say(f"a look at {branch} of {name}", error)
                at, why = self.looks.get(name, (0.0, ""))[0], f"{branch}: {_in_words(error)}"
        if project.poll_s:
            self.looks[name] = at, why

    def _look(self, name: str, project: Project, ref: str) -> None:
        head = self._adapters(project, self).fetcher.look(ref)
        if self.queue.looked(name, ref, head, recipe=project.recipe()) is not None:
            self.wake()


def _in_words(error: Exception) -> str:
    return error.message if isinstance(error, RlctlError) else f"{type(error).__name__}: {error}"


def _say(what: str, error: Exception) -> None:
    print(f"ci: {what}: {_in_words(error)}", flush=True)


def _only_one(path: Path) -> IO[str]:
    """Take the lock of a folder; waits, since a child that a killed service had just forked keeps it until its exec."""
    file = path.open("a+")
    if not Waiting(LOCK_WITHIN_S).until(lambda: taken(file.fileno()), every_s=0.01):
        file.close()
        raise CiError(f"another `rlctl ci serve` uses {path.parent}", hint="one process for one folder")
    return file
