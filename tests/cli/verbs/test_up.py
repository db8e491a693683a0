"""`up`: idempotent, attached, and clear about how it ended."""

import functools
import json
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from rlctl.backends.base import Applied, Document, RunState
from rlctl.errors import Conflict, Left
from rlctl.plan import Plan
from rlctl.probe import Probed
from rlctl.spec.problems.messages import Fault
from tests.cli.conftest import STATUS, Rlctl, check_golden
from tests.cli.test_surface import FAILURE
from tests.support.memory import MemoryBackend

MET = "evaluation mean 487.3 >= 475 over 100 episodes"


def test_a_new_run_is_created_and_detached_ends_0(rlctl: Rlctl) -> None:
    result = rlctl("up", rlctl.spec, "-d")
    assert result.code == 0
    assert "created actor/0 to actor/1" in result.err
    assert "rlctl status pole" in result.err
    assert result.out == ""


def test_a_new_run_beside_the_folder_of_one_that_nothing_records_says_so(rlctl: Rlctl, tmp_path: Path) -> None:
    moved, other = tmp_path / "runs" / "pole-0123abcd", tmp_path / "runs" / "pole-2-0123abcd"
    for folder in (moved, other):
        (folder / "run").mkdir(parents=True)
    words = ("up", rlctl.spec, "-d", "--set", f"storage.path={tmp_path}")
    told = rlctl(*words).err
    assert f"note: {moved} is of an earlier run pole that the index does not know" in told
    assert str(other) not in told
    assert "note:" not in rlctl(*words).err


def test_the_second_up_says_unchanged_and_writes_nothing(rlctl: Rlctl) -> None:
    rlctl.up()
    writes = rlctl.backend.writes
    again = rlctl("up", rlctl.spec, "-d")
    assert again.code == 0
    assert "unchanged" in again.err
    assert rlctl.backend.writes == writes


def test_an_unchanged_run_says_which_roles_run_with_older_code_than_there_is(rlctl: Rlctl, tmp_path: Path) -> None:
    code = tmp_path / "mine"
    (code / ".venv").mkdir(parents=True)
    module, other = code / "reward.py", code / ".venv" / "six.py"
    for file in (module, other):
        file.touch()
        os.utime(file, (0, 0))
    words = ("up", rlctl.spec, "-d", "--set", f"code.path={code}")
    assert rlctl(*words).code == 0
    os.utime(other)
    assert "newer" not in rlctl(*words).err
    os.utime(module, (2e9, 2e9))
    told = rlctl(*words).err
    assert f"{module} is newer than what runs" in told
    roles = ("actor", "evaluator", "learner")
    assert [line.strip() for line in told.splitlines() if "restart" in line] == [
        f"rlctl restart {role} --run pole" for role in roles
    ]


def test_another_learning_rate_restarts_the_learner_alone(rlctl: Rlctl) -> None:
    rlctl.up()
    result = rlctl("up", rlctl.spec, "-d", "--set", "algorithm.lr=2e-3", "-o", "json")
    changed = [entry["object"] for entry in result.json["applied"] if entry["what"] != "unchanged"]
    assert changed == ["learner/0"]
    assert "algorithm.lr: 0.001 -> 0.002" in result.err


def test_a_field_that_cannot_change_is_refused_with_the_way_out(rlctl: Rlctl) -> None:
    rlctl.up()
    writes = rlctl.backend.writes
    result = rlctl("up", rlctl.spec, "-d", "--set", "env.id=Acrobot-v1", "--set", "seed=4")
    assert result.code == 5
    assert "env.id: CartPole-v1 -> Acrobot-v1" in result.err
    assert "seed: 0 -> 4" in result.err
    assert "rlctl down pole --volumes" in result.err
    assert rlctl.backend.writes == writes


def test_the_live_number_of_actors_stays_until_the_spec_changes_it(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl("scale", "actor=5")
    kept = rlctl("up", rlctl.spec, "-d")
    assert "keeping 5 of actor (the spec says 2, and did before)" in kept.err
    changed = rlctl("up", rlctl.spec, "-d", "--set", "roles.actor.replicas=3")
    assert "roles.actor.replicas: 2 -> 3" in changed.err
    assert len([process for process in rlctl.backend.processes("pole") if process.role == "actor"]) == 3


def test_attached_it_ends_0_with_a_final_table_when_the_stop_condition_is_met(rlctl: Rlctl) -> None:
    rlctl.at(1, rlctl.report)
    rlctl.at(25, lambda: rlctl.backend.finish("pole", MET))
    result = rlctl("up", rlctl.spec)
    assert result.code == 0
    check_golden("up_final.txt", result.out, folder=rlctl.folder)
    check_golden("up_progress.txt", result.err, folder=rlctl.folder)


def test_attached_it_ends_7_with_the_first_cause_first_when_the_run_fails(rlctl: Rlctl) -> None:
    rlctl.at(5, lambda: rlctl.backend.fail("pole", FAILURE))
    result = rlctl("up", rlctl.spec)
    assert result.code == 7
    assert result.out == ""
    check_golden("up_failed.txt", result.err, folder=rlctl.folder)


def test_a_run_that_failed_is_started_again(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl.backend.fail("pole", FAILURE)
    result = rlctl("up", rlctl.spec, "-d")
    assert result.code == 0
    assert "created learner/0" in result.err


def test_a_finished_run_is_told_and_not_started_again(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl.backend.finish("pole", MET)
    writes = rlctl.backend.writes
    result = rlctl("up", rlctl.spec)
    assert result.code == 0
    assert "already finished" in result.err
    assert MET in result.out
    assert rlctl.backend.writes == writes


def test_a_finished_run_goes_on_to_another_goal(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl.backend.finish("pole", MET)
    result = rlctl("up", rlctl.spec, "-d", "--set", "stop.eval_return=490")
    assert "created learner/0" in result.err


def test_somebody_elses_down_ends_the_watching(rlctl: Rlctl) -> None:
    rlctl.at(3, lambda: list(rlctl.backend.delete("pole", volumes=False, grace_s=1)))
    result = rlctl("up", rlctl.spec)
    assert result.code == 1
    assert "stopped by another command" in result.err


def test_a_removed_run_ends_the_watching(rlctl: Rlctl) -> None:
    rlctl.at(3, lambda: list(rlctl.backend.delete("pole", volumes=True, grace_s=1)))
    assert rlctl("up", rlctl.spec).code == 1


def test_the_time_to_stay_may_be_bounded(rlctl: Rlctl) -> None:
    rlctl.at(1, rlctl.report)
    result = rlctl("up", rlctl.spec, "--timeout", "12s")
    assert result.code == 6
    assert "it goes on" in result.err
    assert rlctl.time_s == pytest.approx(12)


def test_ctrl_c_once_detaches_and_says_how_to_come_back(rlctl: Rlctl) -> None:
    rlctl.at(1, rlctl.report)
    rlctl.at(5, lambda: signal.raise_signal(signal.SIGINT))
    result = rlctl("up", rlctl.spec)
    assert result.code == 0
    assert "left pole; it goes on" in result.err
    assert "rlctl status pole -w" in result.err
    state = rlctl.backend.find("pole")
    assert state is not None
    assert state.phase == "running"


def test_ctrl_c_twice_leaves_at_once(rlctl: Rlctl) -> None:
    def both() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    rlctl.at(5, both)
    result = rlctl("up", rlctl.spec)
    assert result.code == 130
    assert "it goes on" in result.err


class Slow(MemoryBackend):
    """Waits for actors after it has written.

    Args:
        passes: what happens in each look.
    """

    def __init__(self, rlctl: Rlctl, passes: Callable[[], object]) -> None:
        super().__init__(now=rlctl.now)
        self._passes = passes

    def apply(
        self, plan: Plan, documents: Iterable[Document], spec: Mapping[str, Any], **more: Any
    ) -> Iterator[Applied]:
        yield from super().apply(plan, documents, spec, **more)
        while not self.leave():
            self._passes()
        raise Left(
            "10 of 64 actors of run pole are asked for, and 0 are ready", hint="The same command asks for the rest."
        )


def test_a_timeout_of_atomic_while_up_waits_for_actors_undoes_it(rlctl: Rlctl) -> None:
    rlctl.backend = slow = Slow(rlctl, lambda: rlctl.sleep(30))
    result = rlctl("up", rlctl.spec, "--atomic", "--timeout", "2m")
    assert result.code == 6
    assert "pole is removed again" in result.err
    assert slow.find("pole") is None


@pytest.mark.parametrize(("more", "code"), [((), 0), (("-o", "json"), 0), (("--wait",), 130), (("--atomic",), 130)])
def test_ctrl_c_while_up_waits_for_actors_leaves(rlctl: Rlctl, more: tuple[str, ...], code: int) -> None:
    rlctl.backend = slow = Slow(rlctl, lambda: signal.raise_signal(signal.SIGINT))
    result = rlctl("up", rlctl.spec, *more)
    assert result.code == code
    assert "left pole\n" in result.err
    assert "10 of 64 actors of run pole are asked for" in result.err
    assert more[:1] != ("-o",) or result.json["run"] == "pole"
    assert len(slow.processes("pole")) == 6, "nothing is undone"


def test_a_timeout_while_up_waits_for_actors_is_kept(rlctl: Rlctl) -> None:
    rlctl.backend = Slow(rlctl, lambda: rlctl.sleep(30))
    result = rlctl("up", rlctl.spec, "--timeout", "2m")
    assert result.code == 6
    assert "The same command asks for the rest" in result.err


def test_ctrl_c_while_documents_are_written_lets_them_be_finished(rlctl: Rlctl) -> None:
    class Interrupted(MemoryBackend):
        def apply(
            self, plan: Plan, documents: Iterable[Document], spec: Mapping[str, Any], **more: Any
        ) -> Iterator[Applied]:
            signal.raise_signal(signal.SIGINT)
            yield from super().apply(plan, documents, spec, **more)

    rlctl.backend = Interrupted(now=rlctl.now)
    result = rlctl("up", rlctl.spec)
    assert result.code == 0
    assert len(rlctl.backend.processes("pole")) == 6


def test_ctrl_c_before_anything_is_written_changes_nothing(rlctl: Rlctl) -> None:
    class Interrupted(MemoryBackend):
        def find(self, run: str) -> RunState | None:
            signal.raise_signal(signal.SIGINT)
            return super().find(run)

    rlctl.backend = Interrupted(now=rlctl.now)
    result = rlctl("up", rlctl.spec, "-d")
    assert result.code == 130
    assert rlctl.backend.writes == 0


def test_the_handler_of_ctrl_c_is_put_back(rlctl: Rlctl) -> None:
    before = signal.getsignal(signal.SIGINT)
    rlctl.up()
    assert signal.getsignal(signal.SIGINT) is before


def test_a_heartbeat_names_the_slowest_every_ten_seconds(rlctl: Rlctl) -> None:
    rlctl("up", rlctl.spec, "-d")
    rlctl.backend.set_process("pole", "learner", 0, state="starting")
    result = rlctl("up", rlctl.spec, "--timeout", "35s")
    beats = [line for line in result.err.splitlines() if "waiting for learner/0 (starting)" in line]
    assert [line[:8] for line in beats] == ["00:00:10", "00:00:20", "00:00:30"]


def test_an_older_life_is_no_news(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl("down")
    rlctl.time_s = 60
    assert "evaluation" not in rlctl("up", rlctl.spec, "--timeout", "3s").err


@pytest.mark.parametrize(
    "text", ["actor/3 has said nothing for {} s", "learner rejects messages (run): 0.1{} a second"]
)
def test_a_problem_is_told_once_however_its_figures_change(rlctl: Rlctl, text: str) -> None:
    for second in range(1, 9):
        told = text.format(second + 4)
        rlctl.at(second, functools.partial(rlctl.report, problems=[{"text": told, "next": "rlctl logs actor/3"}]))
    result = rlctl("up", rlctl.spec, "--timeout", "9s")
    assert result.err.count("problem: ") == 1


def test_a_process_that_is_on_its_way_to_another_state_is_told_once(rlctl: Rlctl) -> None:
    def state(name: str, reason: str = "") -> Callable[[], None]:
        return lambda: rlctl.backend.set_process("pole", "actor", 1, state=name, reason=reason)

    rlctl.at(1, state("exited", "exit code 1"))
    rlctl.at(1.5, state("backoff", "actor 1 exited 1; starts again in 1 s"))
    rlctl.at(3, state("exited", "gave up"))
    result = rlctl("up", rlctl.spec, "--timeout", "5s")
    told = [line[9:] for line in result.err.splitlines() if "actor/1 " in line and "heartbeat" not in line]
    assert told == ["actor/1 backoff: actor 1 exited 1; starts again in 1 s", "actor/1 exited: gave up"]


def test_a_restart_is_told_with_the_death_before_it(rlctl: Rlctl) -> None:
    died = "actor 1 exited 1 after 00:00:21: EnvError: no rom"
    rlctl.at(2, lambda: rlctl.backend.set_process("pole", "actor", 1, restarts=1, trouble=died))
    assert f"actor/1 was restarted: {died}" in rlctl("up", rlctl.spec, "--timeout", "4s").err


def test_a_held_lock_is_5_and_a_second_command_is_told_who(rlctl: Rlctl) -> None:
    rlctl.backend.refuse = Conflict("run pole is held by process 4711 for 3 s", hint="wait for it", objects=("pole",))
    result = rlctl("up", rlctl.spec, "-d")
    assert result.code == 5
    assert "4711" in result.err


def test_half_applied_is_8_and_the_same_command_goes_on(rlctl: Rlctl) -> None:
    rlctl.backend.partly_after = 3
    result = rlctl("up", rlctl.spec, "-d")
    assert result.code == 8
    assert "run the same command again" in result.err
    rlctl.backend.partly_after = None
    assert rlctl("up", rlctl.spec, "-d").code == 0
    assert len(rlctl.backend.processes("pole")) == 6


def test_json_progress_is_events_on_standard_error(rlctl: Rlctl) -> None:
    rlctl.at(1, rlctl.report)
    rlctl.at(25, lambda: rlctl.backend.finish("pole", MET))
    result = rlctl("up", rlctl.spec, "--progress", "json", "-q", "-o", "json")
    events = [json.loads(line) for line in result.err.splitlines()]
    assert {"role", "evaluation", "phase", "heartbeat"} <= {event["event"] for event in events}
    assert all(event["apiVersion"] == "rlctl/v1" for event in events)
    assert result.json["status"]["phase"] == "finished"


def test_quiet_leaves_only_the_answer(rlctl: Rlctl) -> None:
    rlctl.at(25, lambda: rlctl.backend.finish("pole", MET))
    result = rlctl("up", rlctl.spec, "--quiet")
    assert result.err == ""
    assert MET in result.out


def test_a_spec_for_a_target_that_is_not_built_yet_is_refused(rlctl: Rlctl) -> None:
    assert rlctl("up", rlctl.spec, "-t", "kubernetes").code == 3


def test_the_environment_names_the_run_for_every_verb(rlctl: Rlctl) -> None:
    rlctl.environ["RLCTL_RUN"] = "branch"
    rlctl("up", rlctl.spec, "-d")
    assert rlctl.backend.find("branch") is not None
    assert rlctl("status", "-o", "json").json["run"] == "branch"
    assert rlctl("up", rlctl.spec, "-d", "--set", "run=mine").code == 0, "--set is stronger"
    assert rlctl.backend.find("mine") is not None


def test_storage_of_a_relative_path_begins_at_the_spec(rlctl: Rlctl) -> None:
    rlctl("up", rlctl.spec, "-d", "--set", "storage.path=data")
    state = rlctl.backend.find("pole")
    assert state is not None
    assert state.storage.startswith(str(rlctl.folder / "data"))
    assert "unchanged" in rlctl("up", rlctl.spec, "-d", "--set", "storage.path=data").err


def test_the_final_table_says_who_crashed_and_that_the_last_model_was_not_evaluated(rlctl: Rlctl) -> None:
    def end() -> None:
        rlctl.backend.set_process(
            "pole", "actor", 1, restarts=4, trouble="actor 1 exited 1 after 00:00:21: EnvError: x"
        )
        rlctl.backend.finish("pole", MET)
        rlctl.report(phase="finished", stop={"conditions": {}, "met": MET, "not_evaluated": "the last one was not"})

    rlctl.at(1, rlctl.report)
    rlctl.at(25, end)
    result = rlctl("up", rlctl.spec)
    assert result.code == 0
    rows = [line.split(maxsplit=1) for line in result.out.splitlines()]
    assert rows[3] == ["the", "last one was not"]
    assert ["note", "actor/1 was restarted 4 times, last: actor 1 exited 1 after 00:00:21: EnvError: x"] in rows


def test_a_return_that_cannot_be_judged_is_refused_before_anything_is_sent(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl.report(evaluation={**STATUS["evaluation"], "seats": 2})
    before = len(rlctl.backend.revisions("pole"))
    for how in (["-d"], ["--dry-run", "client"], ["--dry-run", "server"]):
        refused = rlctl("up", rlctl.spec, *how, "--set", "stop.eval_return=100")
        assert refused.code == 5
        assert "stop.eval_return cannot be judged: the environment of pole has 2 seats" in refused.err
    assert len(rlctl.backend.revisions("pole")) == before


def test_a_dry_run_of_a_finished_run_starts_nothing_as_up_does(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl.backend.finish("pole", MET)
    rlctl.probed = Probed("problem", "", (Fault(("env", "id"), "Gymnasium has no CartPole-v1"),))
    result = rlctl("up", rlctl.spec, "--dry-run", "server", "-o", "json")
    assert (result.code, result.json["objects"], result.json["preflight"]) == (0, [], [])
    assert "pole has already finished; `rlctl up` would start nothing" in result.err
    assert rlctl("up", rlctl.spec, "-d").code == 0
