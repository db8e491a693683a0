"""Sentences of the benchmarks on figures made up for the test."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import __main__ as command
from benchmarks import ablation, asynchronous, cli, fanout, kernels, limit, regression, wire
from benchmarks.__main__ import BENCHMARKS, find, write
from benchmarks.peers import bench as peers
from benchmarks.peers import venvs
from benchmarks.scaling import bench as scaling
from benchmarks.scaling import report
from benchmarks.scaling.soak import fairness
from benchmarks.shared import host, product, store
from benchmarks.shared.host import REPOSITORY
from benchmarks.shared.session import Session
from benchmarks.shared.store import Row
from rlctl.spec.schema import Spec


def row(**values: object) -> Row:
    return {name: store.as_text(value) for name, value in {"kept": True, "kept_cpu": True, **values}.items()}


PEERS = [
    row(task="cartpole", who=who, round=n, steps_per_s=rate + n, steps_per_cpu_s=rate / 2)
    for who, rate in (("rlctl", 220.0), ("PufferLib 3.0.0", 200.0), ("SB3 2.9.2 PPO", 40.0))
    for n in range(3)
] + [row(task="", who="MonoBeast 0af07b0", missing="HTTPError: 404")]


def test_peers_are_ranked_below_us_with_ratios_of_the_same_round_and_the_missing_are_named() -> None:
    text = "\n".join(peers.table(PEERS))
    assert "rlctl is at 1.1x PufferLib 3.0.0 (1.1-1.1), 5.5x SB3 2.9.2 PPO" in text
    assert text.index("| rlctl") < text.index("| PufferLib") < text.index("| SB3")
    assert "Missing: MonoBeast 0af07b0: HTTPError: 404." in text


def test_a_peer_without_a_task_is_not_missing() -> None:
    of_algorithms = [one | {"task": "cartpole_ppo"} if one["task"] else one for one in PEERS]
    assert "MonoBeast" not in "\n".join(peers.table(of_algorithms))


def test_peers_without_one_of_the_tasks_are_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(venvs, "ready", lambda name: tmp_path / name)
    session = Session(tmp_path, "full", say=lambda line: None)
    assert set(peers.install(session, ["halfcheetah_sac"])) == {"sb3", "cleanrl"}
    assert set(peers.install(session, peers.ALGORITHMS)) == {"pufferlib", "sample_factory", "sb3", "cleanrl"}
    assert session.rows == []


def test_another_trainer_is_first_in_each_round_and_the_order_of_a_round_is_always_the_same() -> None:
    for count in range(2, 9):
        labels = [f"trainer {at}" for at in range(count)]
        orders = [peers.in_order(labels, number) for number in range(3)]
        assert all(sorted(one) == labels for one in orders)
        assert orders[0][0] == "trainer 0"
        assert len({one[0] for one in orders}) == min(3, count)
        assert orders == [peers.in_order(labels, number) for number in range(3)]
    assert peers.in_order([], 1) == []


def test_what_is_without_an_advantage_of_ours_has_ratios_of_its_own() -> None:
    rates = {"rlctl": 12.0, "rlctl, fp32": 8.0, "SB3 2.9.2 PPO": 4.0}
    told = peers.ratio(
        [row(task="pong", who=who, round=0, steps_per_cpu_s=rate) for who, rate in rates.items()], "pong"
    )
    assert told == (
        "Per CPU second rlctl is at 3x SB3 2.9.2 PPO (3-3). Per CPU second rlctl, fp32 is at 2x SB3 2.9.2 PPO (2-2)."
    )


def test_a_ratio_needs_both_figures_of_one_round() -> None:
    rows = [
        row(task="pong", who="rlctl", round=0, steps_per_cpu_s=2.0),
        row(task="pong", who="SB3", round=1, steps_per_cpu_s=1.0),
    ]
    assert peers.ratio(rows, "pong") == ""


def scaled(latency: float, rates: dict[int, float], naive: float, single: float) -> list[Row]:
    keys = {"latency_ms": latency, "cpu_ms": 0.1, "round": 0}
    found = [
        row(who="light", actors=n, steps_per_s=rate, steps_per_cpu_s=9.0, pss_mib=30.0 * n, **keys)
        for n, rate in rates.items()
    ]
    return [
        *found,
        row(who="naive", actors=1, steps_per_s=naive, steps_per_cpu_s=9.0, **keys),
        row(who="single", actors=32, steps_per_s=single, steps_per_cpu_s=9.0, **keys),
    ]


def rounds(*of: list[Row]) -> list[Row]:
    return [{**one, "round": str(number)} for number, rows in enumerate(of) for one in rows]


def test_scaling_says_what_holds_against_each_baseline_and_nothing_more() -> None:
    rows = rounds(*3 * [scaled(10.0, {1: 90.0, 16: 1440.0, 128: 9000.0}, naive=80.0, single=3000.0)])
    (said,) = report.sentences(rows)
    assert "128 actors without torch reach 9,000 steps/s" in said
    assert "112.5x the naive loop, which acts with torch (20x holds, 112.5-112.5; n 3)" in said
    assert "3.0x the best single process, which acts with torch (20x does not hold" in said
    assert "linear to 16 actors" in said


def test_scaling_without_growth_is_not_linear() -> None:
    rows = rounds(*3 * [scaled(0.0, {1: 2000.0, 16: 2100.0}, naive=1500.0, single=2500.0)])
    (said,) = report.sentences(rows)
    assert "not linear" in said
    assert "0.8x the best single process" in said


def test_scaling_forms_ratios_within_a_round() -> None:
    rows = rounds(
        scaled(10.0, {1: 90.0, 64: 2000.0}, naive=100.0, single=1000.0),
        scaled(10.0, {1: 90.0, 64: 1000.0}, naive=20.0, single=500.0),
        scaled(10.0, {1: 90.0, 64: 3000.0}, naive=60.0, single=1500.0),
    )
    lost = next(row for row in rows if row["who"] == "naive" and row["round"] == "1")
    lost["kept"] = "0"
    found = [row for row in rows if row["who"] == "light" or row["kept"] == "1"]
    assert report.ratios(rows, 64, "naive", None) == [20.0, 50.0]
    (said,) = report.sentences(found)
    assert "35.0x the naive loop" in said, "the medians are 2,000 and 80: 25x"
    assert "20.0-50.0; n 2" in said


def test_the_best_single_process_is_that_of_the_round() -> None:
    rows = scaled(10.0, {1: 90.0}, naive=80.0, single=3000.0)
    rows.append({**rows[-1], "actors": "128", "steps_per_s": "4500"})
    assert report.ratios(rows, 1, "single", None) == [90.0 / 4500.0]
    rows[-1]["kept"] = "0"
    assert report.ratios(rows, 1, "single", None) == [], "the one that is left need not be the best"


def test_scaling_has_no_interval_and_calls_nothing_linear_below_three_repeats() -> None:
    one = scaled(10.0, {1: 90.0, 4: 360.0, 16: 1440.0}, naive=80.0, single=3000.0)
    few, enough = rounds(one, one), rounds(one, one, one)
    assert "no intervals below 3 repeats" in report.law(few)
    assert "linear" not in report.sentences(few)[0]
    assert report.of(few, "light", "16") == "1.00"
    assert report.of(enough, "light", "16") == "1.00 (1.00-1.00)"
    assert "linear (lower end of efficiency at least 0.9) to 16 actors" in report.law(enough)


def test_the_table_says_who_takes_the_cpu_of_a_step() -> None:
    rows = scaled(10.0, {1: 90.0, 16: 1440.0}, naive=80.0, single=3000.0)
    rows[1] |= {"actors_cpu_ms": "0.5", "learner_cpu_ms": "0.04", "others_cpu_ms": "0.0333"}
    lines = report.cells(rows)
    assert "CPU ms a step of actors, learner, others" in lines[0]
    assert "| 0.500, 0.040, 0.033 |" in next(line for line in lines if "16 actors" in line)
    assert "|  |  |" in next(line for line in lines if "naive" in line)


def test_a_discarded_cell_is_shown_and_not_fitted() -> None:
    rows = scaled(10.0, {1: 90.0, 4: 360.0, 16: 1440.0}, naive=80.0, single=3000.0)
    rows[1] |= {"kept": "0"}
    text = "\n".join(report.table(rows))
    assert "(all 1 discarded)" in text
    assert "Too few cells count for a fit" in text


def test_a_hundred_actors_are_claimed_only_for_ten_minutes_of_fair_balanced_work() -> None:
    good = row(
        who="soak", actors=120, real=4, seconds=600.0, kill_every_s=10.0, latency_ms=50.0, cpu_ms=0.1, ids_alive=120,
        fewest_alive=119, steps_per_s=2000.0, jain_least=0.99, share_least=0.8, kills=59, kills_of_real=29,
        not_recovered=0, recovery_p50_s=1.0, recovery_p95_s=2.0, recovery_real_p50_s=6.0, recovery_real_p95_s=9.0,
        balanced=True, produced=10, consumed=7, stale=1, lost=1, in_flight=1, lost_segments_per_kill=0.9,
        unwritten_rows=900, pss_mib=3000.0, threads=800, sockets=900,
    )  # fmt: skip
    assert '"100+" holds' in report.soaked([good])[0]
    for worse, lack in (
        ({"seconds": "60"}, "600 s"),
        ({"balanced": "0"}, "a ledger that balances"),
        ({"jain_least": "0.94"}, "a Jain fairness"),
        ({"share_least": "0.4"}, "half the median"),
        ({"actors": "99"}, "at least 100 actors"),
        ({"fewest_alive": "99"}, "at least 100 actors"),
        ({"ids_alive": "99"}, "at least 100 actors"),
        ({"not_recovered": "1"}, "everybody back"),
        ({"kills": "0", "kills_of_real": "0"}, "kills"),
        ({"kills_of_real": "0"}, "of the product's own actors too"),
        ({"lost_segments_per_kill": "1.1"}, "one segment lost per kill"),
        ({"unwritten_rows": str((120 + 4 + 59) * 16 + 1)}, "one segment per life"),
        ({"unwritten_rows": "-1"}, "one segment per life"),
        ({"unwritten_rows": ""}, "one segment per life"),
    ):
        title = report.soaked([good | worse])[0]
        assert "is not shown" in title
        assert f"it lacks {lack}" in title or lack in title.partition("it lacks ")[2]


def test_a_soak_says_its_conditions_whose_recovery_is_whose_and_what_was_not_kept() -> None:
    found = row(
        who="soak", actors=4, latency_ms=50.0, cpu_ms=0.1, steps_per_s=1850.0, kept=False, recovery_p50_s=0.4,
        recovery_p95_s=0.5, recovery_real_p50_s=6.0, recovery_real_p95_s=9.0, in_flight=336,
    )  # fmt: skip
    text = "\n".join(report.soaked([found]))
    assert "50 ms latency, 0.1 ms CPU a step" in text
    assert "of the product's actors, with torch, until its first segment: p50, p95 | 6, 9 |" in text
    assert "which the benchmark forks anew, until it steps: p50, p95 | 0.4, 0.5 |" in text
    assert "produced, consumed, stale, lost, in flight rows | -, -, -, -, 336 |" in text
    assert "1,850" not in text
    assert "- (all 1 discarded)" in text


def test_a_soak_is_no_cell_of_the_grid() -> None:
    rows = [
        *scaled(10.0, {1: 90.0}, naive=80.0, single=3000.0),
        row(who="soak", actors=4, latency_ms=50.0, cpu_ms=0.1, steps_per_s=1.0),
    ]
    assert "**50 ms latency" not in "\n".join(report.table(rows))


def test_fairness_of_a_minute_is_jain_and_the_least_share_of_the_median() -> None:
    assert fairness(np.array([10, 10, 10])) == (1.0, 1.0)
    least = fairness(np.array([5, 10, 10, 10]))[1]
    assert least == 0.5


def test_the_limit_is_the_sum_of_the_parts_costs() -> None:
    assert limit.bound({"simulator": 300.0, "inference": 300.0, "learner": 300.0}) == pytest.approx(100.0)
    rounds = [
        row(task="pong", part=part, round=number, steps_per_cpu_s=rate * speed)
        for number, speed, whole in ((0, 1.0, 75.0), (1, 2.0, 75.0), (2, 1.0, 75.0))
        for part, rate in (("simulator", 300.0), ("inference", 300.0), ("learner", 300.0), ("whole", whole))
        if (number, part) != (2, "learner")
    ]
    assert limit.shares(rounds, "pong") == [(pytest.approx(limit_), 0.75, 0.25) for limit_ in (100.0, 200.0)]
    assert "75 % (75-75) of the parts' sum (150 per CPU s) and 25 % of the sim" in limit.told(
        limit.shares(rounds, "pong")
    )
    assert "No round has" in limit.told(limit.shares(rounds[-3:], "pong"))


def test_far_fan_out_is_bytes_over_the_slower_of_network_and_cpu() -> None:
    assert fanout.far(5e6, 0.0, 1.25e9) == pytest.approx(40.0)
    assert fanout.far(5e6, 4.0, 1.25e9) == pytest.approx(200.0), "0.25 GB/s is all that a core gives"
    assert fanout.far(5e6, 0.0, 1.25e9, 5) == pytest.approx((4 + 2500) * 0.004)
    assert fanout.far(5e6, 0.0, 1.25e9, 9) == pytest.approx((8 + 1250) * 0.004)
    assert fanout.far(5e6, 0.0, 1.25e9, 64) == pytest.approx((8 + 8 + 179) * 0.004), "two levels above 56 pools"


def test_fan_out_tells_a_tree_from_one_pool_and_calculates_from_the_latter_alone() -> None:
    cell = {"clients": 100, "megabytes": 5, "transport": "tcp", "round": 0, "half_s": 0.2, "mb_per_s": 900.0}
    rows = [
        row(**cell, pools=1, all_s=0.4, cpu_s_per_gb=1.0, busiest_cpu_s=0.5, pool_pss_mib=90.0),
        row(**cell, pools=5, all_s=0.5, cpu_s_per_gb=8.0, busiest_cpu_s=0.13, pool_pss_mib=400.0),
    ]
    text = "\n".join(fanout.table(rows))
    assert "| 100 clients, 5 MB, tcp, one pool | 0.2 (0.2-0.2; n 1) | 0.4" in text
    assert "| 100 clients, 5 MB, tcp, a tree of 5 |" in text
    assert "from 1 CPU s per GB" in text
    assert "| 5 MB, a tree of 9 | 50.3 | 6.29 | 6.29 |" in text


def test_async_is_equivalent_only_when_tests_and_worst_seed_say_so() -> None:
    lock_step = [500.0, 499.0, 500.0, 498.0]
    told = asynchronous.Condition("x")
    assert "equivalent within 5 %, no seed" in asynchronous.verdict([500.0, 497.0, 500.0, 499.0], lock_step, told)[1]
    assert "not shown" in asynchronous.verdict([500.0, 200.0, 500.0, 499.0], lock_step, told)[1]
    assert asynchronous.verdict([500.0], lock_step, told) == ("", "")


@pytest.mark.parametrize(("steps", "fails"), [(1000, False), (999, True)])
def test_a_model_of_fewer_steps_than_the_others_is_not_compared(
    steps: int, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    status: dict[str, Any] = {
        "phase": "finished", "evaluation": {"mean": 5.0, "steps": steps}, "wall_s": 1.0, "cpu_s": {"actor": 1.0},
        "lag": {"mean": 0, "p95": 0, "max": 0},
        "policies": {"main": {"ledger": {"produced": 1, "stale": 0, "lost": 0, "balanced": True}}},
    }  # fmt: skip
    run = SimpleNamespace(stored=lambda: status, ended=lambda: True)
    monkeypatch.setattr(product, "running", lambda spec: nullcontext(run))
    expected = pytest.raises(RuntimeError, match="999 agent steps, not of 1000") if fails else nullcontext()
    with expected:
        assert asynchronous.train(asynchronous.CONDITIONS[0], 0, 1000)["rows"] == 1000


def test_cells_never_stand_beside_the_host_card_of_another_measurement(tmp_path: Path) -> None:
    first = Session(tmp_path, "full")
    first.begin({"commit": "old"})
    first.add({"who": "a"})
    second = Session(tmp_path, "short")
    second.begin({"commit": "new"})
    assert (store.read_host(tmp_path)["commit"], store.read(tmp_path / store.CELLS)) == ("old", [{"who": "a"}])
    second.add({"who": "b"})
    assert (store.read_host(tmp_path)["commit"], store.read(tmp_path / store.CELLS)) == ("new", [{"who": "b"}])


def test_nothing_is_measured_beside_a_run_that_cannot_be_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def left() -> dict[str, Any]:
        raise product.LeftOver("the run in /tmp/rlb-x is left over and cannot be ended")

    module = SimpleNamespace(measure=lambda session: session.plain({}, left))
    monkeypatch.setattr(command, "find", lambda name: module)
    monkeypatch.setattr(host, "host_card", dict)
    assert command.main(["all", "--out", str(tmp_path), "--document", str(tmp_path / "performance.md")]) == 1
    said = capsys.readouterr().err
    assert "peers: ended early: the run in /tmp/rlb-x is left over" in said
    assert "limit" not in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_kill_ends_the_runs_of_a_benchmark_as_ctrl_c_does(number: signal.Signals, tmp_path: Path) -> None:
    script = """
import runpy, signal, sys, time
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored by what nohup starts
from benchmarks import limit
from benchmarks.shared import product

def up(run, *words):
    print("up", flush=True)
    while True:  # short ones, as a wait for a run is: a signal may come to another thread, which ends no sleep
        time.sleep(0.1)

def down(run):
    print("down", run.folder.exists(), flush=True)
    return True

def measure(session):
    with product.running({"run": "bench"}):
        pass

product.Run.up, product.Run.down, limit.measure = up, down, measure
sys.argv[1:] = ["limit", "--form", "tiny", "--out", sys.argv[1], "--document", sys.argv[1] + "/performance.md"]
runpy.run_module("benchmarks", run_name="__main__")
"""
    words = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(words, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "up\n"
        running.send_signal(number)
        out, err = running.communicate(timeout=60)
    assert (running.returncode, out) == (130, "down True\n"), err
    assert "ended early" in err


def test_every_benchmark_has_its_module_and_an_empty_table_is_no_fault(tmp_path: Path) -> None:
    for name in BENCHMARKS:
        module = find(name)
        assert module.TITLE
        module.table([])
        module.plot([], tmp_path / f"{name}.svg")


def test_tables_are_written_from_the_stored_csv_alone(tmp_path: Path) -> None:
    (tmp_path / "peers").mkdir()
    store.write(tmp_path / "peers" / "cells.csv", PEERS)
    document = tmp_path / "performance.md"
    write("peers", tmp_path, document)
    write("wire", tmp_path, document)
    text = document.read_text()
    assert "## Beside other trainers" in text
    assert (tmp_path / "peers" / "plot.svg").exists()
    assert wire.TITLE not in text, "nothing was measured"
    write("peers", tmp_path, document)
    assert document.read_text() == text


def test_the_regression_cell_compares_with_what_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row(part="learner", round=0, loops_cpu_per_step=2.0)]
    store.write(tmp_path / "cells.csv", [row(part="learner", round=0, loops_cpu_per_step=1.0)])
    monkeypatch.setattr(regression, "STORED", tmp_path)
    assert "| learner | 2 | 2.00x |" in regression.table(rows)


def test_log_lines_for_the_search_are_records_of_ours_and_one_in_many_is_looked_for() -> None:
    assert cli.NEEDLE in cli.line("small", 3, 7)
    assert cli.NEEDLE not in cli.line("small", 3, 8)


def test_cells_of_the_full_form_are_the_grid_of_the_protocol(tmp_path: Path) -> None:
    cells = scaling.cells(scaling.Session(tmp_path, "full"))
    light = [cell for cell in cells if cell.who == "light"]
    assert {cell.actors for cell in light} == {1, 4, 16, 64, 128}
    assert {(cell.latency_ms, cell.cpu_ms) for cell in cells} == {(0, 0.1), (0, 0.5), (10, 0.1), (10, 0.5)}
    assert all(cell.actors < 64 for cell in cells if cell.who == "torch")


def test_ablation_tells_how_much_less_cpu_a_step_takes() -> None:
    rates = {ablation.WHOLE: 1250.0, "batches stacked from lists": 1000.0}
    rows = [
        row(task="cartpole", variant=name, round=0, steps_per_s=1.0, steps_per_cpu_s=rate)
        for name, rate in rates.items()
    ]
    text = "\n".join(ablation.table(rows))
    assert "| batches stacked from lists | 1 (1-1; n 1) | 1,000 (1,000-1,000; n 1) | 20 % (20 to 20) |" in text
    assert "| poles stepped one by one | - | - |  |" in text


@pytest.mark.parametrize(
    ("task", "variant"), [(task, name) for task in ablation.WITHOUT for name in ablation.WITHOUT[task]]
)
def test_ablation_switches_off_one_thing(task: str, variant: str) -> None:
    before, after = ablation.spec(task, ablation.WHOLE), ablation.spec(task, variant)
    Spec.model_validate({"run": "x", **after})
    assert len([part for part in before if before[part] != after[part]]) == 1


def test_kernels_stand_beside_those_of_the_same_round_and_instructions() -> None:
    rates = {kernels.AS_IT_IS: 1000.0, "channels first": 800.0}
    rows = [
        row(instructions=instructions, what=kernels.UPDATE, variant=name, round=0, steps_per_cpu_s=factor * rate)
        for instructions, factor in ((kernels.AVX2, 1), (kernels.ALL, 2))
        for name, rate in rates.items()
    ]
    text = "\n".join(kernels.table(rows))
    assert "| channels first | 800 (800-800; n 1) | 0.80 (0.80-0.80; n 1) | 1,600 (1,600-1,600; n 1) | 0.80" in text
    assert "| as it is | 1,000 (1,000-1,000; n 1) |  | 2,000" in text
    assert "| onnxruntime | - |  | - |  |" in text
