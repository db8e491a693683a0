"""`rlctl sweep` on the memory target."""

from __future__ import annotations

import importlib.util
import json
import re
import signal
import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from rlctl.backends.base import Failure, RunState
from rlctl.cli.context import World
from rlctl.cli.experiments import record
from rlctl.cli.experiments.scheduler import update
from rlctl.cli.options import complete_sweep
from rlctl.cli.run.snapshot import take
from rlctl.errors import BackendUnreachable, Unreadable
from rlctl.probe import Probed
from rlctl.spec.layout import Layout
from rlctl.spec.problems.messages import Fault
from rlctl.spec.runs import run_index
from tests.cli.clusters import CLUSTER_SPEC, Clusters
from tests.cli.conftest import STATUS, Rlctl
from tests.cli.experiments.training import Training, rate, write
from tests.support.memory import MemoryPlace

AXES = ("--set", "algorithm.lr=1e-3,3e-3", "--seeds", "2")


def returned(state: RunState, look: int) -> float:
    return 1000 * rate(state) * look + int(state.spec["seed"])


@pytest.fixture
def spec(rlctl: Rlctl) -> str:
    return write(rlctl.folder)


def states(name: str = "pole") -> dict[str, str]:
    return {trial.run: trial.state for trial in record.known(name).trials}


def test_a_record_has_what_its_specs_have_in_common_once(rlctl: Rlctl) -> None:
    specs = {"lr=1": {"a": 1, "lr": 1}, "lr=2": {"a": 1, "lr": 2}, "dqn": {"a": 1}}
    sweep = record.Sweep("few", "2026-11-21T04:00:00Z", "spec.yaml", "local", None, None, specs=specs)
    sweep.folder.mkdir(parents=True)
    sweep.save()
    stored = json.loads((sweep.folder / "sweep.json").read_text())
    assert stored["specs"] == {"lr=1": {}, "lr=2": {"lr": 2}, "dqn": {"lr": None}}
    found = record.known("few").specs
    assert found == {**specs, "dqn": {"a": 1, "lr": None}}


def test_every_combination_of_settings_and_seed_is_a_run_of_its_own(rlctl: Rlctl, spec: str) -> None:
    training = Training(rlctl, returned)
    result = rlctl("sweep", spec, *AXES, "--parallel", "3", "-o", "json")
    assert result.code == 0, result.err
    found = {state.run: (rate(state), state.spec["seed"]) for state in rlctl.backend.runs()}
    assert found == {"pole-1": (1e-3, 0), "pole-2": (1e-3, 1), "pole-3": (3e-3, 0), "pole-4": (3e-3, 1)}
    assert training.most == 3
    assert [trial["evaluation"] for trial in result.json["trials"]] == [4, 5, 12, 13]
    best, other = result.json["comparison"]["groups"]
    assert (best["settings"], best["iqm"], best["best_improves"]) == ("algorithm.lr=0.003", 12.5, None)
    assert (other["settings"], other["iqm"], other["best_improves"]) == ("algorithm.lr=0.001", 4.5, 1.0)
    assert rlctl("status", "pole-3").code == 0
    assert len(rlctl.checks) == 1, "what differs in numbers alone is tried once"


def test_trials_are_one_group_of_their_trackers_and_a_tracker_makes_no_other_sweep(
    rlctl: Rlctl, spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracked = ("--set", "trackers.wandb={}", "--set", "trackers.mlflow.group=mine")
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "mlflow" else real(name, *more)
    )
    result = rlctl("sweep", spec, *tracked, "--name", "poles")
    assert result.code != 0
    assert [*rlctl.backend.runs()] == [], "refused before anything starts"
    assert 'mlflow is not installed here; pip install "rlctl[mlflow]"' in result.err
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: real("json"))
    Training(rlctl, returned)
    result = rlctl("sweep", spec, "--seeds", "2", *tracked, "--name", "poles")
    assert result.code == 0, result.err
    found = [
        (one.spec["trackers"]["wandb"]["group"], one.spec["trackers"]["mlflow"]["group"])
        for one in rlctl.backend.runs()
    ]
    assert found == [("poles", "mine")] * 2
    assert rlctl("sweep", spec, "--seeds", "2", "--name", "poles").code == 0


def test_progress_is_told_by_lines_and_the_answer_is_the_comparison(rlctl: Rlctl, spec: str) -> None:
    Training(rlctl, returned)
    result = rlctl("sweep", spec, *AXES)
    assert "pole-1 algorithm.lr=1e-3 seed=0: finished, 4 at 1.00k steps, best 4" in result.err
    assert "pole-2: 2 at 250 steps" in result.err
    assert re.findall(r"(pole-\d) .*: started", result.err) == ["pole-1", "pole-2", "pole-3", "pole-4"]
    assert "sweep pole: 4 finished" in result.err
    assert result.err.count("created learner/0") == 1, "what `up` says is said of the first trial alone"
    assert [line.split()[0] for line in result.out.splitlines()] == [
        "SETTINGS",
        "algorithm.lr=0.003",
        "algorithm.lr=0.001",
    ]


def test_on_a_terminal_the_trials_are_a_table(rlctl: Rlctl, spec: str) -> None:
    Training(rlctl, returned)
    shown = rlctl("sweep", spec, *AXES, terminal=True, width=120).err
    for word in ("TRIAL", "algorithm.lr", "SEED", "PHASE", "STEPS", "NEWEST", "BEST", "Ctrl-C leaves"):
        assert word in shown


def killed(rlctl: Rlctl, spec: str, at_s: float) -> Training:
    """A sweep after a kill of its command: nothing of it runs any more, and the record is as it was written last."""
    training = Training(rlctl, returned)

    class Killed(BaseException):
        pass

    def kill() -> None:
        raise Killed

    rlctl.at(at_s, kill)
    save, record.Sweep.save = record.Sweep.save, lambda sweep: None if rlctl.time_s >= at_s else save(sweep)  # type: ignore[method-assign]
    try:
        with pytest.raises(Killed):
            rlctl("sweep", spec, *AXES)
    finally:
        record.Sweep.save = save  # type: ignore[method-assign]
    return training


def test_after_a_kill_done_trials_stay_done_and_a_running_one_is_gone_on_with(rlctl: Rlctl, spec: str) -> None:
    training = killed(rlctl, spec, 6.0)
    assert states() == {"pole-1": "finished", "pole-2": "running", "pole-3": "waiting", "pole-4": "waiting"}
    uids = {state.run: state.uid for state in rlctl.backend.runs()}
    training.go_on()
    result = rlctl("sweep", spec, *AXES)
    assert result.code == 0, result.err
    assert training.done == {"pole-1": 4, "pole-2": 4, "pole-3": 4, "pole-4": 4}
    assert uids.items() <= {state.run: state.uid for state in rlctl.backend.runs()}.items()
    writes = rlctl.backend.writes
    assert rlctl("sweep", spec, *AXES).code == 0
    assert rlctl.backend.writes == writes, "a sweep that is done writes nothing"


def test_a_trial_that_stopped_meanwhile_is_started_again_by_up(rlctl: Rlctl, spec: str) -> None:
    training = killed(rlctl, spec, 6.0)
    rlctl("down", "pole-2")
    training.go_on()
    assert rlctl("sweep", spec, *AXES).code == 0
    assert training.done["pole-2"] == 4


def test_a_trial_that_failed_without_the_command_is_not_begun_again(rlctl: Rlctl, spec: str) -> None:
    training = killed(rlctl, spec, 6.0)
    training._mean = lambda state, look: None if state.run == "pole-2" else returned(state, look)
    training.go_on()
    rlctl.sleep(1)
    assert rlctl("sweep", spec, *AXES).code == 7
    assert states()["pole-2"] == "failed"


LOST = Failure("supervisord", "supervisord is gone without a word", (), datetime(2026, 11, 21, tzinfo=UTC))


@pytest.mark.parametrize("text", [LOST.text, "the machine was restarted while the run was up"])
def test_a_trial_whose_supervisor_was_killed_with_the_command_is_gone_on_with(
    rlctl: Rlctl, spec: str, text: str
) -> None:
    training = killed(rlctl, spec, 6.0)
    rlctl.backend.fail("pole-2", replace(LOST, text=text))
    row = next(row for row in rlctl("sweep", "list", "pole").out.splitlines() if row.startswith("pole-2 "))
    assert row.split()[3] == "stopped"
    training.go_on()
    result = rlctl("sweep", spec, *AXES)
    assert result.code == 0, result.err
    assert training.done["pole-2"] == 4
    assert set(states().values()) == {"finished"}


def test_a_supervisor_that_is_killed_meanwhile_is_made_up_for_once(rlctl: Rlctl, spec: str) -> None:
    training = Training(rlctl, returned)
    rlctl.at(2.2, lambda: rlctl.backend.fail("pole-1", LOST))
    result = rlctl("sweep", spec, *AXES)
    assert result.code == 0, result.err
    assert training.done["pole-1"] == 4


def test_a_supervisor_that_is_killed_each_time_is_not_started_for_ever(rlctl: Rlctl, spec: str) -> None:
    Training(rlctl, returned)
    for at_s in (1.2, 2.2):
        rlctl.at(at_s, lambda: rlctl.backend.fail("pole-1", LOST))
    result = rlctl("sweep", spec)
    assert result.code == 1
    assert f"1 of 1 trials have stopped: pole-1 ({LOST.text})" in result.err
    assert rlctl("sweep", spec).code == 0, "the same command goes on"


def test_failed_trials_are_named_others_go_on_and_retry_starts_them_again(rlctl: Rlctl, spec: str) -> None:
    training = Training(rlctl, lambda state, look: None if state.run == "pole-2" else returned(state, look))
    result = rlctl("sweep", spec, *AXES)
    assert result.code == 7
    assert "1 of 4 trials failed: pole-2" in result.err
    assert "EnvError: step returned NaN reward" in result.err
    assert set(states().values()) == {"finished", "failed"}
    assert "\npole-2: actor 0 exited 1 after 00:00:03: EnvError" in rlctl("sweep", "list", "pole").out
    assert rlctl("sweep", spec, *AXES).code == 7
    assert training.done["pole-2"] == 1, "a failed trial is over"
    training._mean = returned
    assert rlctl("sweep", spec, *AXES, "--retry").code == 0
    assert states()["pole-2"] == "finished"


def test_ctrl_c_leaves_the_trials_that_run_and_starts_no_further_one(rlctl: Rlctl, spec: str) -> None:
    Training(rlctl, returned)
    rlctl.at(2.2, lambda: signal.raise_signal(signal.SIGINT))
    result = rlctl("sweep", spec, *AXES)
    assert result.code == 0
    assert "left sweep pole; 1 of its trials goes on" in result.err
    assert "rlctl sweep stop pole" in result.err
    assert states() == {"pole-1": "running", "pole-2": "waiting", "pole-3": "waiting", "pole-4": "waiting"}
    state = rlctl.backend.find("pole-1")
    assert state is not None
    assert state.phase == "running"


def test_a_wrong_value_is_told_with_all_the_others_before_anything_starts(rlctl: Rlctl, spec: str) -> None:
    result = rlctl(
        "sweep", spec, "--set", "algorithm.lr=1e-3,fast", "--set", "algorithm.gamme=0.9,0.99", "--set", "seed=0,-1"
    )
    assert result.code == 3
    assert "--set algorithm.lr=fast: algorithm.lr:" in result.err
    assert "algorithm.gamme: unknown key; did you mean `gamma`?" in result.err
    assert "--set seed=-1: seed:" in result.err
    assert result.err.count("unknown key") == 2, "each value is told once"
    assert rlctl.backend.writes == 0
    assert record.names() == []


def test_an_environment_that_is_not_there_is_told_before_anything_starts(rlctl: Rlctl, spec: str) -> None:
    rlctl.probed = Probed("problem", "", (Fault(("env", "id"), "Gymnasium has no CartPole-v9"),))
    result = rlctl("sweep", spec, "--set", "env.id=CartPole-v8,CartPole-v9")
    assert result.code == 3
    assert result.err.count("Gymnasium has no CartPole-v9") == 2
    assert rlctl.backend.writes == 0


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--trials", "3"], 2, "--trials is for a search"),
        (["--prune"], 2, "--prune is for a search"),
        (["--search", "optuna"], 2, "nothing to search"),
        (
            ["--search", "optuna", "--prune", "--seeds", "2", "--set", "algorithm.lr=1..2"],
            2,
            "--prune judges single runs",
        ),
        (
            ["--search", "optuna", "--prune", "--set", "seed=1,2", "--set", "algorithm.lr=1e-5..1e-2:log"],
            2,
            "--prune judges single runs",
        ),
        (["--seeds", "2", "--set", "seed=1,2"], 2, "both say which seeds"),
        (["--name", "Pole"], 2, "cannot be the name of a sweep"),
        (["--name", ""], 2, "cannot be the name of a sweep"),
        (["--seeds", "100000000"], 2, "100,000,000 trials are too many: a sweep has at most 10,000"),
        (
            [word for at in range(9) for word in ("--set", f"env.kwargs.k{at}={','.join(map(str, range(100)))}")],
            2,
            "1,000,000,000,000,000,000 trials are too many",
        ),
        (
            ["--search", "optuna", "--trials", "6000", "--seeds", "2", "--set", "algorithm.lr=1..2"],
            2,
            "12,000 trials are too many",
        ),
        (["--name", "n" * 35, "--seeds", "10000"], 2, f"the last trial would be {'n' * 35}-10000"),
        (["--set", "stop.agent_steps=null"], 3, "a sweep has runs that end"),
        (["--set", "algorithm.lr=1e-4..1e-3"], 3, "a range needs --search optuna"),
        (
            ["--search", "optuna", "--set", "algorithm.lr=1e-4..1e-3", "--set", "seed=0..4"],
            3,
            "list the seeds, as in seed=0,1,2",
        ),
    ],
)
def test_what_makes_no_sweep_is_said(rlctl: Rlctl, spec: str, arguments: list[str], code: int, said: str) -> None:
    result = rlctl("sweep", spec, *arguments)
    assert (result.code, rlctl.backend.writes) == (code, 0)
    assert said in result.err


def test_a_name_that_runs_on_a_cluster_cannot_have_is_refused_before_anything_starts(rlctl: Rlctl) -> None:
    clusters = Clusters(rlctl)
    spec = write(rlctl.folder, "cluster.yaml", CLUSTER_SPEC)
    result = rlctl("sweep", spec, "--seeds", "2", "--name", "7seeds")
    assert (result.code, clusters.here.writes) == (3, 0)
    assert "--name: run: on a cluster it begins with a letter" in result.err
    assert record.names() == []


def test_a_changed_spec_is_refused_with_the_difference_and_the_way_out(rlctl: Rlctl, spec: str) -> None:
    Training(rlctl, returned)
    assert rlctl("sweep", spec, *AXES).code == 0
    result = rlctl("sweep", spec, *AXES, "--set", "algorithm.gamma=0.9")
    assert result.code == 5
    assert "  algorithm.gamma: 0.99, now 0.9" in result.err
    assert "rlctl sweep clean pole" in result.err
    assert (
        "algorithm.lr=3e-3: has trials, and is not asked for"
        in rlctl("sweep", spec, "--set", "algorithm.lr=1e-3,1e-2").err
    )
    assert "seeds: 1 have trials, and are not asked for" in rlctl("sweep", spec, *AXES, "--seeds", "1").err


def test_more_seeds_and_values_are_added(rlctl: Rlctl, spec: str) -> None:
    training = Training(rlctl, returned)
    assert rlctl("sweep", spec, *AXES).code == 0
    assert rlctl("sweep", spec, "--set", "algorithm.lr=1e-4,1e-3,3e-3", "--seeds", "3").code == 0
    assert len(training.done) == 9
    assert set(training.done.values()) == {4}
    added = [(one.run, one.settings["algorithm.lr"], one.seed) for one in record.known("pole").trials[4:6]]
    assert added == [("pole-5", "1e-4", 0), ("pole-6", "1e-4", 1)]


def test_a_run_of_the_same_name_that_is_not_of_the_sweep_is_left_alone(rlctl: Rlctl, spec: str) -> None:
    rlctl.up(run="pole-2")
    training = Training(rlctl, returned)
    result = rlctl("sweep", spec, *AXES)
    assert result.code == 5
    assert "run pole-2 is there, and sweep pole has not made it" in result.err
    assert "the same command again goes on" in result.err
    assert "pole-1" in training.done


def test_a_run_of_the_same_name_is_told_before_anything_starts_if_this_machine_knows_it(
    rlctl: Rlctl, spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training(rlctl, returned)
    monkeypatch.setattr(run_index, "read", lambda run: run if run == "pole-2" else None)
    result = rlctl("sweep", spec, *AXES)
    assert result.code == 5
    assert "run pole-2 is there, and sweep pole has not made it" in result.err
    assert not training.done


def test_axes_in_another_order_are_the_same_trials(rlctl: Rlctl, spec: str) -> None:
    training = Training(rlctl, returned)
    lr, gamma = ("--set", "algorithm.lr=1e-4,1e-3"), ("--set", "algorithm.gamma=0.9,0.99")
    assert rlctl("sweep", spec, *lr, *gamma).code == 0
    result = rlctl("sweep", spec, *gamma, *lr)
    assert (result.code, len(training.done)) == (0, 4), result.err


def test_a_search_keeps_its_seeds(rlctl: Rlctl, spec: str) -> None:
    Training(rlctl, returned)
    search = ("--search", "optuna", "--set", "algorithm.lr=1e-5..1e-2:log", "--trials", "1")
    assert rlctl("sweep", spec, *search).code == 0
    result = rlctl("sweep", spec, *search, "--seeds", "2")
    assert result.code == 5
    assert "search pole was begun with the seeds [0], now [0, 1]" in result.err


def test_a_run_that_was_removed_is_left_out_of_its_sweeps_comparison(rlctl: Rlctl, spec: str) -> None:
    Training(rlctl, returned)
    assert rlctl("sweep", spec, *AXES).code == 0
    assert rlctl("down", "pole-1", "--volumes", "--yes").code == 0
    result = rlctl("compare", "pole")
    assert result.code == 0
    assert "note: pole-1 is left out: " in result.err
    assert rlctl("compare", "pole", "pole-1").code == 2, "it was named"


def test_a_second_command_on_the_same_sweep_is_refused(rlctl: Rlctl, spec: str) -> None:
    with record.held("pole"):
        result = rlctl("sweep", spec, *AXES)
    assert result.code == 5
    assert "another command runs sweep pole" in result.err


def test_stop_ends_the_command_and_the_trials_and_the_same_command_goes_on(rlctl: Rlctl, spec: str) -> None:
    training = Training(rlctl, returned)
    rlctl.at(2.2, lambda: record.ask_to_stop("pole", wanted=True))
    result = rlctl("sweep", spec, *AXES)
    assert result.code == 1
    assert "sweep pole was stopped by another command" in result.err
    stopped = rlctl("sweep", "stop", "pole", "-o", "json")
    assert stopped.json["stopped"] == ["pole-1"]
    state = rlctl.backend.find("pole-1")
    assert state is not None
    assert state.phase == "stopped"
    training.go_on()
    assert rlctl("sweep", spec, *AXES).code == 0
    assert training.done["pole-1"] == 4


def test_stop_leaves_trials_as_they_ended_that_went_on_when_the_command_was_left(rlctl: Rlctl, spec: str) -> None:
    training = Training(
        rlctl, lambda state, look: None if look == 4 and state.run == "pole-2" else returned(state, look)
    )
    rlctl.at(2.2, lambda: signal.raise_signal(signal.SIGINT))
    assert rlctl("sweep", spec, *AXES, "--parallel", "2").code == 0
    for _ in range(5):
        rlctl.sleep(1)
    assert rlctl("sweep", "stop", "pole", "-o", "json").json["stopped"] == []
    assert states() == {"pole-1": "finished", "pole-2": "failed", "pole-3": "waiting", "pole-4": "waiting"}
    assert rlctl("sweep", spec, *AXES).code == 7
    assert training.done["pole-2"] == 4, "a failed trial is over"


def test_a_trial_that_another_command_stops_is_not_started_again_by_this_one(rlctl: Rlctl, spec: str) -> None:
    Training(rlctl, returned)
    rlctl.at(2.2, lambda: list(rlctl.backend.delete("pole-1", volumes=False, grace_s=1)))
    result = rlctl("sweep", spec, *AXES)
    assert result.code == 1
    assert "1 of 4 trials have stopped: pole-1 (stopped by another command)" in result.err


def test_clean_asks_and_removes_the_runs_and_the_record(rlctl: Rlctl, spec: str) -> None:
    Training(rlctl, returned)
    assert rlctl("sweep", spec, *AXES).code == 0
    assert rlctl("sweep", "clean", "pole").code == 9
    assert rlctl("sweep", "clean", "pole", terminal=True, answer="poles\n").code == 9
    assert len(rlctl.backend.runs()) == 4
    assert rlctl("sweep", "clean", "pole", "--yes").code == 0
    assert rlctl.backend.runs() == []
    assert record.names() == []
    assert rlctl("sweep", "clean", "pole", "--yes").code == 2


def test_list_shows_sweeps_and_the_trials_of_one_as_they_are_now(rlctl: Rlctl, spec: str) -> None:
    assert "there is no sweep" in rlctl("sweep", "list").err
    Training(rlctl, returned)
    rlctl.at(2.2, lambda: signal.raise_signal(signal.SIGINT))
    rlctl("sweep", spec, *AXES)
    for _ in range(5):
        rlctl.sleep(1)
    line = rlctl("sweep", "list").out.splitlines()[1].split()
    assert line[:7] == ["pole", "local", "4", "1", "0", "0", "4"]
    rows = [row.split() for row in rlctl("sweep", "list", "pole").out.splitlines()]
    assert rows[1] == ["pole-1", "1e-3", "0", "finished", "1.00k", "4", "4"]
    assert rows[2] == ["pole-2", "1e-3", "1", "waiting", "-", "-", "-"]


def test_list_shows_the_best_evaluation_of_a_trial_that_has_forgotten(rlctl: Rlctl, spec: str) -> None:
    Training(rlctl, lambda state, look: 7 - look)
    assert rlctl("sweep", spec).code == 0
    assert rlctl("sweep", "list").out.splitlines()[1].split()[6] == "6"
    assert rlctl("sweep", "list", "pole").out.splitlines()[1].split()[-2:] == ["3", "6"]


def test_clean_removes_a_run_whose_up_was_killed_before_it_was_recorded(
    rlctl: Rlctl, spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Training(rlctl, returned)
    assert rlctl("sweep", spec).code == 0
    uid = record.known("pole").trials[0].uid
    deleted: list[str] = []
    monkeypatch.setattr(rlctl.backend, "find", lambda run: None)
    monkeypatch.setattr(
        rlctl.backend, "place", lambda run, storage: MemoryPlace(uid, Layout(rlctl.folder), rlctl.folder)
    )
    monkeypatch.setattr(rlctl.backend, "delete", lambda run, **options: iter(deleted.append(run) or ()))
    result = rlctl("sweep", "clean", "pole", "--yes", "-o", "json")
    assert result.code == 0, result.err
    assert (deleted, result.json["removed"]) == (["pole-1"], ["pole-1"])


def test_a_trial_whose_record_cannot_be_read_keeps_its_place_until_it_is_mended(rlctl: Rlctl, spec: str) -> None:
    training = Training(rlctl, returned)
    find = rlctl.backend.find

    def maybe(run: str) -> RunState | None:
        if 2 <= rlctl.time_s < 200 and not training.busy:
            raise Unreadable("state.json does not hold the state", hint="mend it", run=run, storage="/memory")
        return find(run)

    rlctl.backend.find = maybe  # type: ignore[method-assign]
    result = rlctl("sweep", spec)
    assert result.code == 0, result.err
    assert result.err.count("state.json does not hold the state; mend it") == 1


def test_a_target_that_is_away_for_a_moment_ends_nothing(rlctl: Rlctl, spec: str) -> None:
    training = Training(rlctl, returned)
    find = rlctl.backend.find

    def maybe(run: str) -> RunState | None:
        if 2 <= rlctl.time_s < 60 and not training.busy:
            raise BackendUnreachable("the target does not answer")
        return find(run)

    rlctl.backend.find = maybe  # type: ignore[method-assign]
    result = rlctl("sweep", spec)
    assert result.code == 0
    assert result.err.count("the target does not answer; asked again for 300 s at most") == 1


def test_the_best_of_a_trial_never_falls(rlctl: Rlctl) -> None:
    rlctl.up()
    trial = record.Trial("pole", {}, 0)
    for history, mean in (([[1000, 1.0, 40.0], [2000, 2.0, 90.0]], 50.0), ([[1000, 1.0, 40.0]], 60.0)):
        rlctl.report(history=history, evaluation={**STATUS["evaluation"], "mean": mean})
        seen = take(World(clock=lambda: 0.0, now=rlctl.now), rlctl.backend, "pole")
        assert update(trial, seen)[0] == "running"
    assert (trial.evaluation, trial.best) == (60.0, 90.0)


@pytest.fixture
def stored(rlctl: Rlctl, spec: str) -> dict[str, Any]:
    """The record of a sweep that is done."""
    Training(rlctl, returned)
    assert rlctl("sweep", spec, "--name", "good").code == 0
    found: dict[str, Any] = json.loads((record.folder("good") / "sweep.json").read_text())
    return found


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (b'{"format": 1, "trials": [{', "EOF|Expecting"),
        (b"[" * 100_000, "recursion|list"),
        (b"\xff", "decode"),
        (b"[1]", "not a JSON object of format 1"),
        ({}, "it is that of sweep .?good"),
        ({"format": 2}, "not a JSON object of format 1"),
        ({"name": 3}, "name: Input should be a valid string"),
        ({"trials": [{}]}, "trials.0.run: Field required"),
        ({"trials": {"run": "bad-1"}}, "trials: Input should be a valid list"),
        ({"name": "bad", "trials": [{"run": "../x", "settings": {}, "seed": 0}]}, "trial 1 is"),
        ({"name": "bad", "trials": [{"run": "bad-1", "settings": {"a": 1}, "seed": 0}]}, "settings.a: Input should"),
        ({"name": "bad", "trials": [], "search": {"method": "x"}}, "its search has no method, axes and prune"),
    ],
)
def test_one_damaged_record_hides_no_other_sweep(
    rlctl: Rlctl, stored: dict[str, Any], wrong: bytes | dict[str, Any], said: str
) -> None:
    record.folder("bad").mkdir()
    path = record.folder("bad") / "sweep.json"
    path.write_bytes(wrong if isinstance(wrong, bytes) else json.dumps({**stored, **wrong}).encode())
    result = rlctl("sweep", "list")
    assert (result.code, [line.split()[0] for line in result.out.splitlines()]) == (0, ["SWEEP", "good"])
    assert re.search(f"left out: {path} is not the record of sweep bad: .*({said})", result.err)
    for verb in ("list", "stop"):
        one = rlctl("sweep", verb, "bad")
        assert (one.code, "rlctl sweep clean bad" in one.err) == (4, True)


def test_completion_offers_sweeps_that_have_a_record(rlctl: Rlctl, stored: dict[str, Any]) -> None:
    record.folder("locked").mkdir()
    (record.folder("locked") / "lock").touch()
    assert complete_sweep("") == record.names() == ["good"]


def test_the_record_of_a_damaged_sweep_is_removed_and_its_runs_are_named(rlctl: Rlctl, stored: dict[str, Any]) -> None:
    record.folder("bad").mkdir()
    (record.folder("bad") / "sweep.json").write_text("{")
    index = record.folder("bad").parent.parent / "index"
    index.mkdir(exist_ok=True)
    for run in ("bad-1", "bad-2", "bad", "badly-1", "bad-er", "7"):
        (index / f"{run}.json").touch()
    asked = rlctl("sweep", "clean", "bad")
    assert asked.code == 9
    assert "removes the record of sweep bad, and no run" in asked.err
    result = rlctl("sweep", "clean", "bad", "--yes")
    assert result.code == 0
    assert "runs that stay: bad-1, bad-2; one is removed by rlctl down bad-1 --volumes" in result.err
    assert record.names() == ["good"]
    assert [state.run for state in rlctl.backend.runs()] == ["good-1"]


def test_clean_removes_what_is_there_once_it_is_confirmed(
    rlctl: Rlctl, spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Training(rlctl, returned)
    assert rlctl("sweep", spec).code == 0

    def ask(world: World, text: str) -> str:
        assert rlctl("sweep", spec, "--seeds", "2").code == 0
        return "pole"

    monkeypatch.setattr(World, "ask", ask)
    result = rlctl("sweep", "clean", "pole", terminal=True)
    assert (result.code, rlctl.backend.runs()) == (0, [])
    assert "with 2 runs" in result.err


def test_a_sweep_on_a_cluster_goes_on_there_and_keeps_the_images_of_its_first_trial(rlctl: Rlctl) -> None:
    clusters = Clusters(rlctl)
    spec = write(rlctl.folder, "cluster.yaml", CLUSTER_SPEC)

    def finish() -> None:
        for state in clusters("stage", "lab").runs():
            if state.phase == "running":
                clusters("stage", "lab").finish(state.run, "eval_return")

    for at in range(1, 20):
        rlctl.at(at, finish)
    assert rlctl("sweep", spec, "--seeds", "2", "-n", "lab", "--context", "stage").code == 0
    sweep = record.known("pole")
    assert (sweep.context, sweep.namespace) == ("stage", "lab")
    assert set(sweep.images) == {"core", "actor", "learner"}
    clusters.current = "prod"
    assert rlctl("sweep", spec, "--seeds", "3").code == 0
    assert len(clusters("stage", "lab").runs()) == 3
    assert "namespace: lab, now team" in rlctl("sweep", spec, "--seeds", "3", "-n", "team").err


def test_optuna_suggests_prunes_and_goes_on_after_a_kill(
    rlctl: Rlctl, spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(rlctl.folder / "a?b=c#d%20"))  # letters that mean something in a URL
    training = Training(rlctl, lambda state, look: returned(state, look))
    search = ("--search", "optuna", "--prune", "--set", "algorithm.lr=1e-5..1e-2:log")
    assert rlctl("sweep", spec, *search, "--trials", "4").code == 0
    assert rlctl("sweep", spec, *search, "--trials", "10", "--parallel", "2").code == 0
    trials = record.known("pole").trials
    assert sorted(one.suggestion or 0 for one in trials) == list(range(10))
    assert len({one.settings["algorithm.lr"] for one in trials}) == 10, "a study that goes on does not repeat itself"
    pruned = [one for one in trials if one.state == "pruned"]
    assert pruned
    assert all(training.done[one.run] < 4 for one in pruned)
    assert len(training.done) == 10
    assert (record.folder("pole") / "optuna.db").stat().st_size > 0


def test_a_suggestion_that_failed_counts_for_the_search_once_it_is_trained_again(rlctl: Rlctl, spec: str) -> None:
    training = Training(rlctl, lambda state, look: None if state.run == "pole-2" else returned(state, look))
    search = ("--search", "optuna", "--set", "algorithm.lr=1e-5..1e-2:log", "--trials", "3")
    assert rlctl("sweep", spec, *search).code == 7
    training._mean = returned
    assert rlctl("sweep", spec, *search, "--retry").code == 0
    assert [one.state for one in record.known("pole").trials] == ["finished"] * 3
    with closing(sqlite3.connect(record.folder("pole") / "optuna.db")) as study:
        told = [state for (state,) in study.execute("select state from trials order by trial_id")]
    assert told == ["COMPLETE", "FAIL", "COMPLETE", "COMPLETE"]
    assert rlctl("sweep", spec, *search).code == 0
    with closing(sqlite3.connect(record.folder("pole") / "optuna.db")) as study:
        assert study.execute("select count(*) from trials").fetchone() == (4,), "once"


def test_a_failed_suggestion_of_a_search_that_prunes_is_trained_again(rlctl: Rlctl, spec: str) -> None:
    training = Training(rlctl, lambda state, look: None if state.run == "pole-2" else returned(state, look))
    search = ("--search", "optuna", "--prune", "--set", "algorithm.lr=1e-5..1e-2:log", "--trials", "3")
    assert rlctl("sweep", spec, *search).code == 7
    training._mean = returned
    result = rlctl("sweep", spec, *search, "--retry")
    assert result.code == 0, result.err
    assert record.known("pole").trials[1].state == "finished"


def test_suggestions_that_are_no_spec_point_to_no_run(rlctl: Rlctl, spec: str) -> None:
    Training(rlctl, returned)
    search = ("--search", "optuna", "--set", "algorithm.batch_size=40..80", "--set", "algorithm.unroll_length=20")
    result = rlctl("sweep", spec, *search, "--trials", "2")
    assert (result.code, "trials failed" in result.err) == (7, True)
    assert "rlctl logs" not in result.err


def test_without_optuna_one_sentence_names_the_extra(rlctl: Rlctl, spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    result = rlctl("sweep", spec, "--search", "optuna", "--set", "algorithm.lr=1e-5..1e-3:log")
    assert result.code == 2
    assert 'pip install "rlctl[sweep]"' in result.err
