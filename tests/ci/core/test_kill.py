"""kill -9 anywhere: what was acknowledged ends once, and is deployed at most once."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rlctl_ci.core.states import TERMINAL
from rlctl_ci.store.database import Database
from tests.ci.counts import tell
from tests.ci.world import Outside, Service, sha
from tests.support.kills import Fuse, killed_at_every_step
from tests.support.samples import chance, seed, size

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]
BAD = sha(3)
STEPS = "steps"
"""File with the number of steps of a life that was not killed."""


class Mortal(Database):
    """A step before each transaction, one before and one after its commit."""

    fuse = Fuse(0)

    @contextmanager
    def write(self) -> Iterator:  # type: ignore[type-arg]
        self.fuse.step()
        with super().write() as db:
            yield db
            self.fuse.step()  # not committed yet
        self.fuse.step()


def life(folder: Path, number: int, kill_at: int) -> bool:
    """One life of the service in a process of its own, from recovery to an empty queue; whether it got there."""
    child = os.fork()
    if child == 0:
        fuse = Mortal.fuse = Fuse(kill_at)
        try:
            service = Service(folder, owner=f"life-{number}", database_class=Mortal)
            service.clock.s += number * 1000.0
            service.outside.bad.add(BAD)
            said = service.outside.say
            service.outside.say = lambda *a, **k: (said(*a, **k), fuse.step())  # type: ignore[method-assign,return-value]
            service.queue.recover(at_start=True)
            for commit in range(1, 5):
                if service.outside.said("hooks") and len(service.outside.said("hooks")) >= commit:
                    continue
                service.hook(commit)
                said("hooks")  # acknowledged: the sender does not send it again
                service.drain()
            service.drain()
            (folder / STEPS).write_text(str(fuse.steps))
        except BaseException:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "the service itself failed"
    return not os.WIFSIGNALED(status)


def check(folder: Path) -> Counter[str]:
    """Every acknowledged delivery has one build, every build one end, and at most one deployment, which is decided.

    Returns:
        What there was: deliveries, builds, deploys.
    """
    service = Service(folder)
    builds = {build.id: build for build in service.reading.builds(limit=200)}
    for build in builds.values():
        events = [state for _, state, _ in service.reading.events(build.id)]
        assert build.state in TERMINAL, (build.id, events)
        assert sum(state in TERMINAL for state in events) == 1, events
    applied = [line["build"] for line in service.outside.said("revision") if line["by"] == "apply"]
    assert len(applied) == len(set(applied)), f"a build was deployed twice: {applied}"
    rows = service.database.connection().execute("SELECT delivery, build FROM deliveries").fetchall()
    assert len(rows) == len({row["delivery"] for row in rows})
    assert len(rows) >= len(service.outside.said("hooks")), "an acknowledged delivery is not stored"
    assert {row["build"] for row in rows} <= set(builds)
    deploys = service.reading.deploys(limit=200)
    assert set(applied) <= {deploy.build for deploy in deploys}
    assert all(deploy.state in ("verified", "rolled_back", "failed") for deploy in deploys)
    assert service.database.connection().execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    service.database.close()
    return Counter(deliveries=len(rows), builds=len(builds), deploys=len(applied))


def test_a_kill_at_every_boundary_loses_nothing_and_deploys_nothing_twice(tmp_path: Path) -> None:
    counts: Counter[str] = Counter()

    def whole() -> int:
        folder = tmp_path / "whole"
        folder.mkdir()
        assert life(folder, 1, 0)
        return int((folder / STEPS).read_text())

    def killed(at: int) -> None:
        folder = tmp_path / f"at-{at}"
        folder.mkdir()
        if not life(folder, 1, at):
            counts["kills"] += 1
            assert life(folder, 2, 0)
        counts.update(check(folder))
        assert Outside(folder / "outside.jsonl").history[-1] == sha(4), "the last good commit runs"

    kills = killed_at_every_step("kill at a boundary", 6, whole, killed)
    points = len(kills.tried)
    tell("ci-kills-at-every-boundary", {**counts, "points": points, "boundaries": kills.steps, "seed": seed()})
    assert kills.steps >= 100
    assert counts["kills"] >= points // 2


def test_random_kills_lose_nothing_and_deploy_nothing_twice(tmp_path: Path) -> None:
    moments = chance("kill at random")
    kills = size(8, 200)
    counts: Counter[str] = Counter()
    while counts["kills"] < kills:
        counts["services"] += 1
        folder = tmp_path / f"random-{counts['services']}"
        folder.mkdir()
        lives = 1
        # five kills in a row reach builds that have used up their attempts
        while lives <= 5 and not life(folder, lives, moments.randrange(1, 90)):
            counts["kills"], lives = counts["kills"] + 1, lives + 1
        assert lives <= 5 or life(folder, lives, 0)
        counts += check(folder)
    tell("ci-kills-at-random", {**counts, "seed": seed()})
