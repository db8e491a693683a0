"""A service without a network: a repository, a builder and a run that exist in one file and outlive a kill."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlctl.errors import WorkloadFailed
from rlctl_ci.builders.source import Contents, Part, contents
from rlctl_ci.config.settings import Project
from rlctl_ci.core.build_attempt import Adapters, BuildAttempt, Job, Live
from rlctl_ci.core.errors import BuildStopped, Transient
from rlctl_ci.store.database import Database
from rlctl_ci.store.people import People
from rlctl_ci.store.queue import Queue
from rlctl_ci.store.reading import Reading
from rlctl_ci.store.records import Artifact, Build, Deploy, Push

MAIN = "refs/heads/main"


def sha(number: int) -> str:
    """The commit of that number."""
    return f"{number:040x}"


def project(**fields: Any) -> Project:
    values = {"forge": "github", "repository": "/srv/pole.git", "secret_file": "/none", "run": "pole", **fields}
    return Project.model_validate(values)


@dataclass
class Clock:
    """Time that passes when it is told to."""

    s: float = 1_000_000.0

    def __call__(self) -> float:
        return self.s


@dataclass
class Outside:
    """The world that a push acts upon; every change of it is appended to a file at once.

    Attributes:
        faults: step -> errors that it raises, one a call.
        bad: commits with which the run gets worse.
        paths: commit -> the file that it has changed.
    """

    path: Path
    faults: dict[str, list[Exception]] = field(default_factory=dict)
    bad: set[str] = field(default_factory=set)
    paths: dict[str, str] = field(default_factory=dict)
    live: bool = True

    def say(self, what: str, **values: Any) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps({"what": what, **values}) + "\n")

    def said(self, what: str = "") -> list[dict[str, Any]]:
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        found = [json.loads(line) for line in lines if line.endswith("}")]
        return [line for line in found if not what or line["what"] == what]

    @property
    def history(self) -> list[str]:
        """The commit of every revision of the run, from the first on."""
        return [sha(0), *(line["sha"] for line in self.said("revision"))]

    def push(self, commit: str, ref: str = MAIN) -> None:
        self.say("head", ref=ref, sha=commit)

    def _fault(self, step: str) -> None:
        waiting = self.faults.get(step)
        if waiting:
            raise waiting.pop(0)

    # Fetcher

    def head(self, job: Job) -> str | None:
        self._fault("head")
        return self.at(job.build.ref) or job.build.sha

    def at(self, ref: str) -> str | None:
        """The commit that a branch is at."""
        found = [line["sha"] for line in self.said("head") if line["ref"] == ref]
        return found[-1] if found else None

    def fetch(self, job: Job) -> Path:
        self._fault("fetch")
        self.say("fetch", build=job.build.id)
        return job.folder

    def before_or_same(self, job: Job, bad: str) -> bool:
        return int(job.build.sha, 16) <= int(bad, 16)

    def changed(self, job: Job, before: str) -> list[str] | None:
        low, high = sorted((int(before, 16), int(job.build.sha, 16)))
        return [self.paths.get(sha(number), "agents/a.py") for number in range(low + 1, high + 1)]

    # ArtifactBuilder

    def make(self, job: Job, source: Path) -> str:
        self._fault("make")
        self.say("make", build=job.build.id)
        return job.build.sha

    def push_(self, job: Job, made: Any) -> Sequence[Artifact]:
        self._fault("push")
        return [Artifact("code", f"/code/{made}")]

    # Deployer

    def look(self, job: Job) -> Live | None:
        self._fault("look")
        return Live(len(self.history), {"rows_per_s": 100.0}) if self.live else None

    def apply(self, job: Job, deploy: Deploy, source: Path, artifacts: Sequence[Artifact]) -> int:
        self._fault("apply")
        if self.history[-1] != job.build.sha:
            self.say("revision", sha=job.build.sha, build=job.build.id, by="apply")
        return len(self.history)

    def verify(self, job: Job, deploy: Deploy, redeployed: Callable[[], object]) -> str:
        self._fault("verify")
        redeployed()
        if job.build.sha in self.bad:
            raise WorkloadFailed("learner 0 exited 1")
        return "ready, 100 steps/s"

    def undo(self, job: Job, deploy: Deploy) -> int:
        self._fault("undo")
        assert deploy.before_revision is not None
        before = self.history[deploy.before_revision - 1]
        if self.history[-1] != before:
            self.say("revision", sha=before, build=job.build.id, by="undo")
        return len(self.history)


def hands(outside: Outside) -> Adapters:
    """Repository, builder and target of every project, which act upon the world."""
    return Adapters(_Fetcher(outside), _Maker(outside), outside)


def no_hands(project: Project, service: object) -> Adapters:
    """For a service that works on nothing."""
    raise AssertionError("nothing is to be built")


def here(job: Job, source: Path, part: Part) -> Contents:
    """Reads a commit in the process of the test; the service has a child for it."""
    return contents(job.project, source, job.folder, part)


class _Fetcher:
    def __init__(self, outside: Outside) -> None:
        self.look, self.head = outside.at, outside.head
        self.fetch, self.before_or_same, self.changed = outside.fetch, outside.before_or_same, outside.changed


class _Maker:
    def __init__(self, outside: Outside) -> None:
        self.make = outside.make
        self.push = outside.push_


@dataclass
class Service:
    """The queue and the work of one life."""

    folder: Path
    owner: str = "life-1"
    clock: Clock = field(default_factory=Clock)
    database_class: type[Database] = Database
    project: Project = field(default_factory=project)

    def __post_init__(self) -> None:
        self.database = self.database_class(self.folder / "ci.db", synced=False)
        self.queue = Queue(self.database, self.clock)
        self.reading = Reading(self.database)
        self.people = People(self.database, self.clock)
        self.outside = Outside(self.folder / "outside.jsonl")
        self.lines: list[str] = []
        self.looks: dict[str, tuple[float, str]] = {}

    def hook(self, number: int, *, ref: str = MAIN, delivery: str = "", name: str = "pole") -> int | None:
        """A push of commit `number`, as the forge tells it."""
        self.outside.push(sha(number), ref)
        return self.told(number, ref=ref, delivery=delivery, name=name)

    def told(self, number: int, *, ref: str = MAIN, delivery: str = "", name: str = "pole") -> int | None:
        push = Push(ref, sha(number), "ana", f"commit {number}")
        return self.queue.accept(name, push, recipe="r", delivery=delivery or f"d-{ref}-{number}").build

    def work(self) -> BuildAttempt:
        return BuildAttempt(
            self.queue, self.reading, self.owner, *hands(self.outside), sleep=self._slept, beat_every_s=3600.0
        )

    def _slept(self, seconds: float) -> None:
        self.clock.s += seconds

    def claim(self, most: int = 1) -> Build | None:
        self.queue.admit()
        return self.queue.claim(self.owner, most=most, runs={"pole": "pole", "twin": "pole", "lab": "lab"})

    def run(self, build: Build) -> Build:
        """One attempt at a claimed build."""
        self.work().run(build, self.project, self.folder, self.lines.append)
        return self.reading.build(build.id)

    def drain(self) -> None:
        """Until nothing is left to do; pauses between attempts pass at once."""
        for _ in range(200):
            build = self.claim()
            if build is None:
                if not any(self.reading.counts().get(state) for state in ("received", "queued")):
                    return
                self.clock.s += 1000.0
                continue
            self.run(build)
        raise AssertionError("the queue does not come to an end")

    def states(self) -> dict[int, str]:
        """Build -> its state."""
        return {build.id: build.state for build in reversed(self.reading.builds(limit=200))}


@contextmanager
def no_file_beyond(most_bytes: int) -> Iterator[None]:
    """As on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def away(what: str) -> Transient:
    return Transient(what, f"{what} does not answer")


def hopeless(what: str) -> BuildStopped:
    return BuildStopped(what, f"{what} cannot be")
