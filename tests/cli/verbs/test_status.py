"""`status`: the verdict first, from a live manager or from what was stored."""

import signal
from datetime import timedelta
from typing import Any

import pytest

from rlctl.cli.run.snapshot import ANSWERS_WITHIN_S
from rlctl.errors import BackendUnreachable
from tests.cli.conftest import LEDGER, STATUS, Rlctl, check_golden
from tests.cli.test_surface import FAILURE


def test_status_begins_with_the_verdict_and_its_percentages(rlctl: Rlctl) -> None:
    rlctl.up()
    result = rlctl("status")
    assert result.code == 0
    assert result.out.splitlines()[0] == "actor-bound: the learner waits for experience 61 % of the time"
    assert "61 %" in result.out.splitlines()[1]
    check_golden("status.txt", result.out, folder=rlctl.folder)


def test_wide_has_one_line_per_process(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl.time_s = 11
    check_golden("status_wide.txt", rlctl("status", "-o", "wide").out, folder=rlctl.folder)


def test_ps_is_status(rlctl: Rlctl) -> None:
    rlctl.up()
    assert rlctl("ps").out == rlctl("status").out


def test_problems_come_in_plain_words_with_the_next_command(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl.report(problems=[{"text": "the ledger of main does not balance", "next": "rlctl logs learner"}])
    rlctl.backend.set_process(
        "pole", "actor", 1, state="backoff", reason="exited 1 after 3 s, again in 2 s", restarts=3
    )
    shown = rlctl("status").out
    assert "problem: actor/1 is in backoff: exited 1 after 3 s, again in 2 s\n   next: rlctl logs actor/1" in shown
    assert "problem: the ledger of main does not balance\n   next: rlctl logs learner" in shown
    assert "1 backoff, 1 running" in shown


def test_a_generation_without_the_rows_of_a_shard_is_told_as_one(rlctl: Rlctl) -> None:
    rlctl.up()
    saved = {"number": 7, "version": 90, "steps": 57600, "age_s": 3.2}
    rlctl.report(checkpoint=saved | {"absent": {}})
    assert "generation 7 at 57,600 steps, 3s ago\n" in rlctl("status").out
    rlctl.report(checkpoint=saved | {"absent": {"replay/0": "no process", "replay/1": "no space"}})
    assert "generation 7 at 57,600 steps, 3s ago, without the rows of replay/0, replay/1\n" in rlctl("status").out


def test_a_torn_status_of_a_run_that_is_over_is_a_problem_and_no_row_of_zeros(
    rlctl: Rlctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    def torn(run: str) -> None:
        raise BackendUnreachable(f"the status of run {run} is torn: status.json")

    rlctl.up()
    rlctl("down", "pole")
    monkeypatch.setattr(rlctl.backend, "stored_status", torn)
    shown = rlctl("status").out
    assert "problem: figures of this run are missing, not 0: the status of run pole is torn: status.json" in shown
    assert "next: rlctl logs manager --run pole" in shown


@pytest.mark.parametrize("stored", [{"totals": 5}, {"policies": []}, {"problems": "x"}, {"history": [1]}])
def test_a_status_of_another_form_of_a_run_that_is_over_is_a_problem(
    rlctl: Rlctl, monkeypatch: pytest.MonkeyPatch, stored: dict[str, object]
) -> None:
    rlctl.up()
    rlctl("down", "pole")
    monkeypatch.setattr(rlctl.backend, "stored_status", lambda run: stored)
    shown = rlctl("status").out
    assert "problem: figures of this run are missing, not 0: the status of run pole is not one of rlctl's" in shown


def test_figures_of_the_actors_that_are_older_than_those_of_the_learner_are_not_shown(rlctl: Rlctl) -> None:
    rlctl.up()
    early = {
        "env_steps": 64,
        "frames": 64,
        "agent_steps": 64,
        "consumed_steps": 640,
        "learned_steps": 640,
        "updates": 1,
    }
    rlctl.report(totals={**STATUS["totals"], **early})
    shown = rlctl("status").out
    assert "640 consumed steps, 1 updates; not all env steps are reported" in shown
    assert " 64 env steps" not in shown


def test_how_often_a_step_is_learned_from_is_told_where_it_is_not_once(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl.report(totals={**STATUS["totals"], "learned_steps": 228_000})
    assert "76,000 consumed steps, each learned from 3.0 times in all passes, 118 updates" in rlctl("status").out


def test_what_was_discarded_with_a_learner_that_died_is_told_beside_what_was_consumed(rlctl: Rlctl) -> None:
    rlctl.up()
    ledger = {**LEDGER, "produced": 334114, "discarded": 257314, "in_flight": 640, "balanced": True}
    rlctl.report(policies={"main": {**STATUS["policies"]["main"], "ledger": ledger}})
    assert (
        "76,000 consumed steps (257,314 rows of the ledger were discarded in crashes), 118 updates"
        in rlctl("status").out
    )
    rlctl.backend.finish("pole", "76000 agent steps >= 76000")
    ended = rlctl("up", rlctl.spec).out
    assert "334,114 rows produced = 76,000 consumed + 257,314 discarded + 160 stale + 640 in flight" in ended


def test_evaluation_that_cannot_be_had_for_a_tenth_of_the_cpu_says_what_to_do(rlctl: Rlctl) -> None:
    rlctl.up()
    assert "one evaluation each 14s, 8 % of the run's CPU\n" in rlctl("status").out
    rlctl.report(cadence={"stated_s": None, "every_s": 30.0, "cpu_share": 0.22})
    dear = "one evaluation each 30s, 22 % of the run's CPU"
    assert f"{dear}; with fewer evaluation.episodes it is less\n" in rlctl("status").out
    rlctl.report(cadence={"stated_s": 30.0, "every_s": 30.0, "cpu_share": 0.22})
    assert f"{dear}\n" in rlctl("status").out, "as the spec wants it"
    rlctl.report(cadence={"stated_s": None, "every_s": None, "cpu_share": None})
    assert "one evaluation each" not in rlctl("status").out


def test_the_return_of_a_game_of_several_seats_says_whose_it_is(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl.report(evaluation={**STATUS["evaluation"], "seats": 2})
    assert "greedy, version 96; of the first of 2 seats, all played by it" in rlctl("status").out


def test_check_is_1_for_a_run_that_is_not_healthy(rlctl: Rlctl) -> None:
    rlctl.up()
    assert rlctl("status", "--check").code == 0
    rlctl.backend.set_process("pole", "actor", 1, state="exited", reason="exit code 1")
    assert rlctl("status").code == 0
    assert rlctl("status", "--check").code == 1


def test_a_starting_run_says_what_it_waits_for(rlctl: Rlctl) -> None:
    rlctl("up", rlctl.spec, "-d")
    rlctl.backend.set_process("pole", "learner", 0, state="starting")
    result = rlctl("status", "--check")
    assert result.code == 1
    assert result.out.startswith("starting: waiting for learner/0 (starting)\n")


def test_a_manager_that_keeps_silent_becomes_a_problem(rlctl: Rlctl) -> None:
    rlctl("up", rlctl.spec, "-d")
    assert "does not answer" not in rlctl("status").out
    rlctl.time_s = ANSWERS_WITHIN_S + 1
    late = rlctl("status").out
    assert late.startswith("the manager does not answer; figures are what it said last\n")
    assert "problem: the manager does not answer" in late


def test_a_failed_run_is_told_from_what_was_stored(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl.backend.fail("pole", FAILURE)
    result = rlctl("status")
    assert result.out.startswith(f"failed: {FAILURE.text}\n")
    assert "rlctl logs actor/1" in result.out
    assert "76,800 env steps" in result.out
    assert rlctl("status", "--check").code == 1


def test_a_finished_run_is_healthy(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl.backend.finish("pole", "evaluation mean 487.3 >= 475 over 100 episodes")
    result = rlctl("status", "pole", "--check")
    assert result.code == 0
    assert result.out.startswith("finished: evaluation mean 487.3 >= 475")


def test_json_has_every_key_even_before_the_first_report(rlctl: Rlctl) -> None:
    rlctl("up", rlctl.spec, "-d")
    told = rlctl("status", "-o", "json").json
    assert set(STATUS) <= set(told)
    assert told["phase"] == "starting"
    assert (told["checkpoint"] or {"number": 0})["number"] == 0


def test_an_older_life_says_nothing_about_where_this_one_stands(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl("down")
    rlctl.time_s = 60
    rlctl("up", rlctl.spec, "-d")
    told = rlctl("status", "-o", "json").json
    assert told["phase"] == "starting"
    assert told["roles"] == {}


def test_a_manager_that_has_just_ended_does_not_look_like_one_that_starts(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl.report(phase="finished", stop={"conditions": {}, "met": "enough"})
    rlctl.backend.silence("pole")
    rlctl.backend.set_process("pole", "manager", 0, state="exited", started=None)
    told = rlctl("status", "-o", "json").json
    assert told["phase"] == "running"
    assert rlctl("status").out.startswith("ending: enough\n")


def test_a_manager_that_is_not_ready_to_answer_is_one_that_starts(rlctl: Rlctl) -> None:
    rlctl("up", rlctl.spec, "-d")
    rlctl.backend.manager_refuses = "the manager has only just started"
    assert rlctl("status", "-o", "json").json["phase"] == "starting"


def test_a_target_that_is_away_for_a_moment_is_asked_again(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl.backend.unreachable = True
    rlctl.at(1, lambda: setattr(rlctl.backend, "unreachable", False))
    assert rlctl("status", "pole").code == 4, "the first look, that for the run, does not wait"
    rlctl.backend.unreachable = False
    rlctl.at(4, lambda: setattr(rlctl.backend, "unreachable", True))
    rlctl.at(5, lambda: setattr(rlctl.backend, "unreachable", False))
    rlctl.at(8, lambda: rlctl.backend.finish("pole", "enough"))
    assert rlctl("up", rlctl.spec).code == 0


def test_watch_prints_a_line_at_a_time_until_the_run_is_over(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl.at(6, lambda: rlctl.backend.finish("pole", "enough"))
    result = rlctl("status", "-w", "--utc")
    assert result.code == 0
    assert result.out.splitlines() == [
        *(
            f"04:00:0{second}.000Z running, actor-bound: the learner waits for experience 61 % of the time"
            for second in (0, 2, 4)
        ),
        "04:00:06.000Z finished, finished: enough",
    ]


def test_a_watch_outlasts_a_target_that_does_not_answer(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl.at(3, lambda: setattr(rlctl.backend, "unreachable", True))
    rlctl.at(60, lambda: setattr(rlctl.backend, "unreachable", False))
    rlctl.at(64, lambda: rlctl.backend.finish("pole", "enough"))
    result = rlctl("status", "-w")
    assert result.code == 0, result.err
    assert result.out.splitlines()[-1].endswith("finished, finished: enough")


def test_watch_as_json_is_one_document_a_line(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl.at(4, lambda: rlctl.backend.finish("pole", "enough"))
    lines: list[Any] = rlctl("status", "-w", "-o", "json").lines
    assert [line["phase"] for line in lines] == ["running", "running", "finished"]


def test_ctrl_c_ends_a_watch_with_130(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl.at(4, lambda: signal.raise_signal(signal.SIGINT))
    result = rlctl("status", "-w", "-o", "json")
    assert result.code == 130
    assert result.lines[-1]["error"]["code"] == 130


def test_all_lists_every_run(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl.time_s = 90
    rlctl("up", rlctl.spec, "-d", "--set", "run=second")
    rows = rlctl("status", "--all").out.splitlines()
    assert [row.split()[0] for row in rows] == ["RUN", "second", "pole"]
    assert rlctl("status", "--all", "pole").code == 2


def test_times_are_local_unless_utc_is_wanted(rlctl: Rlctl, monkeypatch: Any) -> None:
    import time

    rlctl.up()
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    assert "started 2026-11-21 13:00:00" in rlctl("status").out
    assert "started 2026-11-21 04:00:00Z" in rlctl("status", "--utc").out


def test_what_a_process_says_cannot_act_on_the_terminal(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl.backend.set_process("pole", "actor", 1, state="exited", reason="\x1b[2Jcleared\x07")
    for arguments in (("status",), ("status", "-o", "wide")):
        shown = rlctl(*arguments).out
        assert "cleared" in shown
        assert "\x1b" not in shown
        assert "\x07" not in shown


def test_the_age_of_a_role_is_that_of_its_oldest_replica(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl.time_s = 3600 * 3
    rlctl.backend.set_process("pole", "actor", 1, started=rlctl.now() - timedelta(minutes=5))
    row = next(line for line in rlctl("status").out.splitlines() if line.startswith("actor  "))
    assert row.split()[-1] == "3h"


DIED = "actor 1 exited 1 after 00:00:21: EnvError: no rom"


def test_a_process_that_runs_again_is_a_problem_until_it_has_been_of_use(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl.backend.set_process("pole", "actor", 1, restarts=3, trouble=DIED)
    shown = rlctl("status").out
    assert f"problem: actor/1 was restarted 3 times, last: {DIED}\n   next: rlctl logs actor/1 --run pole" in shown
    assert rlctl("status", "--check").code == 1
    rlctl.backend.set_process("pole", "actor", 1, trouble="")
    assert "problem" not in rlctl("status").out


def test_the_success_of_a_finished_run_does_not_hide_its_crashes(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl.backend.set_process("pole", "actor", 0, restarts=2, trouble=DIED.replace("1", "0", 1))
    rlctl.backend.set_process("pole", "actor", 1, restarts=7, trouble=DIED)
    rlctl.backend.finish("pole", "enough")
    (note,) = [line for line in rlctl("status").out.splitlines() if line.startswith("note")]
    assert note.split(maxsplit=1)[1] == f"actor/1 was restarted 7 times, last: {DIED}; 1 more like it"
    assert rlctl("status", "--check").code == 0


def test_the_return_names_its_version_and_says_that_the_last_model_was_not_evaluated(rlctl: Rlctl) -> None:
    rlctl.up()
    why = "the last model, version 118, was not evaluated: no evaluator lives"
    rlctl.report(stop={"conditions": {}, "met": "76000 agent steps >= 76000", "not_evaluated": why})
    lines = rlctl("status").out.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("return"))
    assert "greedy, version 96" in lines[at]
    assert lines[at + 1].strip() == why


def test_a_run_that_ends_shows_neither_shares_nor_a_suggestion(rlctl: Rlctl) -> None:
    rlctl.up()
    text = "ending: version 118 is evaluated, 40 of 100 episodes"
    rlctl.report(verdict={**STATUS["verdict"], "kind": "ending", "text": text})
    shown = rlctl("status").out
    assert shown.startswith(f"{text}\n")
    assert "waiting:" not in shown
    assert "next:" not in shown
