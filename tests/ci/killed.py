"""The real service in a process that is killed: a forge and a repository around it, and a target that is a file."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import socket
import sqlite3
import subprocess
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlctl_ci.config.settings import Config, Project
from rlctl_ci.core.build_attempt import Adapters, Job
from rlctl_ci.core.service import Service
from rlctl_ci.core.states import TERMINAL
from rlctl_ci.core.wiring import artifact_builder
from rlctl_ci.forges.github import GitHub
from rlctl_ci.git.repository import Git
from rlctl_ci.store.records import Artifact, Deploy, Push
from rlctl_ci.web.serve import serve
from tests.ci.world import MAIN, Outside
from tests.support.ports import free_ports

SECRET = "a secret of sixteen or more"
FASTER = 20.0
"""The clock of the service: pauses between attempts and leases are for networks, not for tests."""
LINGERS_S = 0.03
LAST_STAGES = ("deploying", "verifying")
STAGE_WITHIN_S = 5.0
"""Of a life that is to end in one of them."""
SPEC = "run: pole\nenv: {id: CartPole-v1}\ncode: {path: .}\nstop: {agent_steps: 1000}\n"


class Slow(Outside):
    """A target at which a kill finds something under way."""

    def apply(self, job: Job, deploy: Deploy, source: Path, artifacts: Sequence[Artifact]) -> int:
        time.sleep(LINGERS_S)
        revision = super().apply(job, deploy, source, artifacts)
        time.sleep(LINGERS_S)
        return revision

    def verify(self, job: Job, deploy: Deploy, redeployed: Callable[[], object]) -> str:
        time.sleep(LINGERS_S)
        said = super().verify(job, deploy, redeployed)
        time.sleep(LINGERS_S)
        return said


@dataclass
class Killed:
    """One service over many lives, its clients, and the answers that they got.

    Args:
        folder: empty.
        chance: when it is killed, and what is sent.
        commits: so many can be pushed; every seventh makes the run worse.
    """

    folder: Path
    chance: random.Random
    commits: int
    acknowledged: dict[str, int] = field(default_factory=dict)  # delivery -> build
    owed: list[tuple[str, str]] = field(default_factory=list)  # commit, delivery: sent, and not acknowledged
    sent: dict[str, str] = field(default_factory=dict)  # delivery -> commit
    at_work: Counter[str] = field(default_factory=Counter)  # state of a build -> kills that found one in it
    kills: int = 0

    def __post_init__(self) -> None:
        self.repository = self.folder / "pole.git"
        subprocess.run(["git", "init", "--quiet", "--bare", "--initial-branch=main", self.repository], check=True)
        self._names = self._history()
        self._pushed = 0
        (self._port,) = free_ports(1)
        (self.folder / "secret").write_text(SECRET)
        self.outside = Slow(self.folder / "outside.jsonl", bad=set(self._names[3::7]))
        self._born = time.time()

    def _history(self) -> list[str]:
        """Commits one after the other, on a branch that is not built."""
        lines = [
            f"commit refs/heads/all\nmark :{number}\ncommitter a <a> {number} +0000\ndata 1\nx\n"
            f"M 644 inline spec.yaml\ndata {len(SPEC)}\n{SPEC}\nM 644 inline n\ndata {len(str(number))}\n{number}\n"
            for number in range(1, self.commits + 1)
        ]
        self._git("fast-import", "--quiet", data="".join(lines))
        return self._git("rev-list", "--reverse", "refs/heads/all").split()

    def _git(self, *arguments: str, data: str = "") -> str:
        return subprocess.run(
            ["git", "-C", self.repository, *arguments], input=data, check=True, capture_output=True, text=True
        ).stdout

    def life(self, *, kill: bool = True) -> None:
        """One life of the service; without a kill it ends when nothing is left to do."""
        service = os.fork()
        if service == 0:
            self._serve()
        fuse = threading.Timer(self.chance.uniform(0.0, 0.5), lambda: os.kill(service, signal.SIGKILL))
        early = kill and self.chance.random() < 0.2  # perhaps before it listens
        # most of its time goes into fetching: the last stages are short, and would hardly ever be found
        stage = self.chance.choice(("", "", *LAST_STAGES))
        try:
            if early:
                fuse.start()
            self._await(lambda: _gone(service) or self._listens(), "the service")
            if kill and not early and not stage:
                fuse.start()
            until = time.monotonic() + STAGE_WITHIN_S
            while kill and not _gone(service):
                self._send()
                pause_s = self.chance.uniform(0.0, 0.3)
                if fuse.ident is not None:
                    time.sleep(pause_s)
                elif self._comes_to(stage, pause_s) or time.monotonic() > until:
                    os.kill(service, signal.SIGKILL)
                    break
            if not kill:
                self._finish()
        finally:
            fuse.cancel()
            if fuse.ident is not None:
                fuse.join()  # nobody forks while it runs
            if not _gone(service):
                os.kill(service, signal.SIGTERM)
            _, status = os.waitpid(service, 0)
        if kill:
            assert os.WIFSIGNALED(status), f"the service ended by itself: {status}"
            self.kills += 1
            self.at_work.update(state for (state,) in self.rows("SELECT DISTINCT state FROM builds") if busy(state))
        else:
            assert os.WEXITSTATUS(status) == 0, status

    def _comes_to(self, stage: str, within_s: float) -> bool:
        """Whether a build is in that state before so many seconds have passed."""
        deadline = time.monotonic() + within_s
        while not (found := (stage,) in self.rows("SELECT state FROM builds")) and time.monotonic() < deadline:
            time.sleep(0.005)
        return found

    def _serve(self) -> None:
        try:
            about = {"forge": "github", "repository": str(self.repository), "secret_file": self.folder / "secret"}
            config = Config.model_validate(
                {"listen": f"127.0.0.1:{self._port}", "state": self.folder / "state", "hooks_per_minute": 1_000_000,
                 "projects": {"pole": {**about, "run": "pole", "poll_s": 0}}}
            )  # fmt: skip
            serve(Service(config, self._hands, now=lambda: self._born + (time.time() - self._born) * FASTER))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    def _hands(self, project: Project, service: Service) -> Adapters:
        return Adapters(
            Git(project, service.folder / "git"), artifact_builder(project, service, self.outside.look), self.outside
        )

    def _send(self) -> None:
        """Send what was not acknowledged, or something again, or a new commit; perhaps to a service that is down."""
        known = [(commit, delivery) for delivery, commit in self.sent.items() if delivery in self.acknowledged]
        if self.owed:
            self._deliver(*self.owed[0])
        elif known and self.chance.random() < 0.2:
            self._deliver(*self.chance.choice(known))
        else:
            self._push()

    def _push(self) -> None:
        commit = self._names[self._pushed]
        self._pushed += 1
        self._git("update-ref", MAIN, commit)
        delivery = f"d-{self._pushed}"
        self.sent[delivery] = commit
        self.owed.append((commit, delivery))
        self._deliver(commit, delivery)

    def _deliver(self, commit: str, delivery: str) -> None:
        forge = GitHub()
        body = json.dumps(forge.example(Push(MAIN, commit, "ana", "x"))).encode()
        headers = dict(forge.sign(body, SECRET.encode(), delivery=delivery, now=0.0))
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            connection.request("POST", "/hooks/github/pole", body, headers)
            answer = connection.getresponse()
            told = answer.read()
        except (OSError, http.client.HTTPException):
            return  # it was killed; the forge's people send it again
        finally:
            connection.close()
        assert answer.status in (200, 202), (answer.status, told)
        build = int(json.loads(told)["build_id"])
        assert self.acknowledged.setdefault(delivery, build) == build, "one delivery, one build"
        self.owed = [one for one in self.owed if one[1] != delivery]

    def _finish(self) -> None:
        while self.owed:
            self._deliver(*self.owed[0])
        while self._names[self._pushed] in self.outside.bad:
            self._pushed += 1
        self._push()
        self._await(
            lambda: not any(busy(state) for (state,) in self.rows("SELECT state FROM builds")), "its last build"
        )

    @property
    def last(self) -> str:
        """The commit that was pushed last."""
        return self._names[self._pushed - 1]

    def rows(self, statement: str) -> list[Any]:
        """Of its database; none while there is no table."""
        try:
            with closing(sqlite3.connect(f"file:{self.folder}/state/ci.db?mode=ro", uri=True, timeout=30)) as database:
                return database.execute(statement).fetchall()
        except sqlite3.OperationalError:
            return []

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0

    def _await(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + 120.0
        while not condition():
            assert time.monotonic() < deadline, f"waited for {what}"
            time.sleep(0.005)


def busy(state: str) -> bool:
    """Whether a build in that state has no end yet."""
    return state not in TERMINAL


def _gone(pid: int) -> bool:
    """Whether a child has ended; it stays for `waitpid`."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
