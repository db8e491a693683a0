"""`rlctl` is killed after one of its writes; the same command then goes on, and nothing is left over.

The full form tries each write in turn, `make test-cluster` a sample of them. The write has reached the server and its
answer never arrives, which is the worst moment.
"""

import os
import signal

import pytest

from rlctl.spec.names import selector
from tests.cluster.support.gateway import Gateway
from tests.cluster.support.people import Person
from tests.cluster.support.specs import parked
from tests.cluster.support.telling import TALLY
from tests.cluster.support.witness import KINDS, Witness
from tests.support.kills import Kills, killed_at_every_step

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800)]


def killed_at(number: int, gateway: Gateway, who: Person, *arguments: str) -> bool:
    """Run a command, and kill it once the server has done its `number`-th write; False when it ends before."""
    pid = 0
    gateway.lose_at_write(number, lambda: os.kill(pid, signal.SIGKILL))
    with who.started(*arguments) as command:
        pid = command.pid
        done = command.done()
    gateway.leave_alone()
    assert done.code in (0, -signal.SIGKILL), done
    return done.code != 0


def writes(gateway: Gateway, who: Person, *arguments: str) -> int:
    """Number of writes of a command: it is run once, undisturbed."""
    gateway.forget()
    who(*arguments)
    return gateway.done


def told(what: str, kills: Kills) -> None:
    TALLY.figures.append(f"kill at a write of {what}: {len(kills.tried)} of {kills.steps} points tried, all converged")


def test_up_converges_after_a_kill_at_any_write(counted: Person, gateway: Gateway, witness: Witness) -> None:
    spec = parked(counted)
    there: set[str] = set()
    counts: list[int] = []

    def whole() -> int:
        counts.append(writes(gateway, counted, "up", spec, "-d"))
        there.update(_objects(witness, counted, "parked"))
        return counts[0]

    def killed(number: int) -> None:
        run = f"k{number}"
        changed = ("up", spec, "-d", "--set", f"run={run}")
        # a later run of a namespace may have a write less than the one that was counted
        assert killed_at(number, gateway, counted, *changed) or number == counts[0]
        counted(*changed)
        gateway.forget()
        counted("diff", spec, "--set", f"run={run}")
        counted(*changed)
        assert not gateway.writes, "the third up writes"
        assert _objects(witness, counted, run) == there

    kills = killed_at_every_step("up", 5, whole, killed)
    assert kills.steps > 40
    told("`up`", kills)


def test_a_change_converges_after_a_kill_at_any_write(counted: Person, gateway: Gateway, witness: Witness) -> None:
    """Another image, fewer shards, other live fields: changes, removals, and what the manager is told."""
    spec = parked(counted)
    before = ("up", spec, "-d", "--set", "roles.actor.max_replicas=3000")
    after = ("up", spec, "-d", "--set", "algorithm.lr=0.0005", "--set", "roles.actor.replicas=3")

    def whole() -> int:
        counted(*before, "--set", "run=whole")
        return writes(gateway, counted, *after, "--set", "run=whole")

    def killed(number: int) -> None:
        name = ("--set", f"run=c{number}")
        counted(*before, *name)
        assert killed_at(number, gateway, counted, *after, *name)
        counted(*after, *name)
        gateway.forget()
        counted("diff", *after[1:2], *after[3:], *name)
        counted(*after, *name)
        assert not gateway.writes, "the third up writes"

    kills = killed_at_every_step("a changed up", 3, whole, killed)
    assert kills.steps > 4
    told("a changed `up`", kills)


def test_down_converges_after_a_kill_at_any_write(counted: Person, gateway: Gateway, witness: Witness) -> None:
    spec = parked(counted)

    def whole() -> int:
        counted("up", spec, "-d", "--set", "run=whole")
        return writes(gateway, counted, "down", "whole", "--volumes", "--yes")

    def killed(number: int) -> None:
        run = f"d{number}"
        counted("up", spec, "-d", "--set", f"run={run}")
        gone = ("down", run, "--volumes", "--yes")
        killed_at(number, gateway, counted, *gone)  # how many writes a removal has depends on what is gone by itself
        counted(*gone)
        witness.until(
            "PersistentVolumeClaim", counted.namespace, lambda claims: not claims, what=f"the volume of {run} to go",
            timeout_s=30, labels=selector(run),
        )  # fmt: skip
        assert not _objects(witness, counted, run)

    kills = killed_at_every_step("down", 5, whole, killed)
    assert kills.steps > 30
    told("`down --volumes`", kills)


def test_a_command_beside_another_waits_for_nobody_and_says_who_is_at_work(
    counted: Person, gateway: Gateway, ana: Person
) -> None:
    """The first one's answer is held back in its middle, so that it lives and holds the lock."""
    spec = parked(counted)
    with gateway.held_at_write(12) as held, counted.started("up", spec, "-d") as first:
        held.wait(60)
        second = counted("up", spec, "-d", code=5)
        assert "ana@" in second.stderr
        assert "rlctl up" in second.stderr
        held.release()
        assert first.done().code == 0
    counted("diff", spec)


def _objects(witness: Witness, who: Person, run: str) -> set[str]:
    """Everything of a run, under names that do not say which."""
    labels = selector(run)
    found = [(kind, thing["metadata"]["name"]) for kind in KINDS for thing in witness.list(kind, who.namespace, labels)]
    return {f"{kind}/{_hash_free(name.replace(run, 'run', 1))}" for kind, name in found}


def _hash_free(name: str) -> str:
    """A run file is named by the hash of what is in it, and that says the run."""
    stem, _, last = name.rpartition("-")
    return stem if len(last) == 12 and stem else name
