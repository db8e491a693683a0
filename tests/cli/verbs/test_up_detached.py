"""`up -d` looks at what it has started, and status names the way out of what a command left half done."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from rlctl.backends.base import Applied, Document, Failure
from rlctl.plan import Plan
from tests.cli.conftest import Rlctl
from tests.support.memory import MemoryBackend

KILLED = Failure("supervisord", "supervisord is gone without a word", (), datetime(2026, 11, 21, tzinfo=UTC))


class Killed(MemoryBackend):
    """A target that loses its supervisor to a kill while it starts a run."""

    def apply(
        self, plan: Plan, documents: Iterable[Document], spec: Mapping[str, Any], **more: Any
    ) -> Iterator[Applied]:
        yield from super().apply(plan, documents, spec, **more)
        self.fail(plan.run, KILLED)


def test_a_run_that_failed_while_it_was_started_is_not_up(rlctl: Rlctl) -> None:
    rlctl.backend = Killed(now=rlctl.now)
    result = rlctl("up", rlctl.spec, "-d", "-o", "json")
    assert result.code == 7
    assert "is up" not in result.err
    assert f"error: {KILLED.text}" in result.err
    assert result.json["error"]["reason"] == "workload_failed"


def test_a_replica_that_was_never_added_comes_with_the_command_that_adds_it(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl.backend.set_process("pole", "actor", 1, state="stopped", reason="not added to the supervisor yet")
    rlctl.backend.set_process("pole", "learner", 0, state="stopped", reason="not added to the supervisor yet")
    shown = rlctl("status").out
    assert "actor/1 has stopped: not added to the supervisor yet\n   next: rlctl scale actor=2 --run pole\n" in shown
    assert "learner/0 has stopped: not added to the supervisor yet\n   next: rlctl scale actor=2 --run pole\n" in shown
