"""Calibration, cells, CSV and tables of the benchmarks."""

import os
from pathlib import Path
from subprocess import CalledProcessError, TimeoutExpired, run
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import __main__ as command
from benchmarks.shared import host, store, tables
from benchmarks.shared import session as sessions
from benchmarks.shared.session import Session
from benchmarks.shared.spin import Spin, keeps, moved


def test_a_cell_is_discarded_when_the_machine_moved_by_more_than_5_percent() -> None:
    assert keeps(Spin(100, 50), Spin(95.5, 50)) == (True, True)
    assert keeps(Spin(100, 50), Spin(94, 50)) == (False, True), "others used it: figures per CPU second count"
    assert keeps(Spin(100, 50), Spin(94, 47)) == (False, False), "the clock moved: nothing counts"
    assert moved(94, 100) == moved(100, 94) == pytest.approx(0.06)


def session(folder: Path, monkeypatch: pytest.MonkeyPatch, spins: list[Spin]) -> Session:
    turned = iter(spins)
    monkeypatch.setattr(sessions.spin, "spin", lambda seconds: next(turned))
    folder.mkdir(exist_ok=True)
    return Session(folder, "tiny", say=lambda line: None)


def test_cells_are_stored_with_what_the_spins_around_them_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = session(tmp_path, monkeypatch, [Spin(100, 50), Spin(99, 50), Spin(80, 50), Spin(80, 49)])
    monkeypatch.setitem(sessions.SPIN_S, "tiny", 60.0)  # the spin before is still fresh
    for value in (1.0, 2.0, 3.0):
        measure = lambda value=value: {"per_s": value, "per_cpu_s": value}  # noqa: E731
        one.cell({"who": "a"}, measure, repeat=False)
    rows = store.read(tmp_path / "cells.csv")
    assert store.kept(rows, "per_s") == [1.0, 3.0], "the machine moved from 99 to 80 during the second"
    assert store.kept(rows, "per_cpu_s") == [1.0, 2.0, 3.0]
    assert store.discarded(rows, "per_s") == 1
    assert [row["spin_per_cpu_s"] for row in rows] == ["50", "50", "49"]
    assert "1 discarded" in tables.measured(rows, "per_s")


def test_a_failed_cell_is_stored_with_its_reason_and_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> dict[str, Any]:
        raise RuntimeError("no\nsuch peer")

    session(tmp_path, monkeypatch, [Spin(1, 1)] * 2).cell({"who": "a"}, broken)
    (row,) = store.read(tmp_path / "cells.csv")
    assert row["failed"] == "RuntimeError: no such peer"
    assert row["kept"] == "0"


@pytest.mark.parametrize("error", [TimeoutExpired("rlctl", 60), CalledProcessError(1, "git"), KeyError("policies")])
def test_no_failure_of_one_cell_ends_the_session(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> dict[str, Any]:
        raise error

    session(tmp_path, monkeypatch, [Spin(1, 1)] * 2).cell({"who": "a"}, broken)
    (row,) = store.read(tmp_path / "cells.csv")
    assert row["failed"].startswith(type(error).__name__)
    assert (row["kept"], row["kept_cpu"]) == ("0", "0")


def test_whoever_interrupts_a_cell_ends_the_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> dict[str, Any]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        session(tmp_path, monkeypatch, [Spin(1, 1)] * 2).cell({"who": "a"}, interrupted)


STILL, BUSY, SLOW = (Spin(100, 50), Spin(100, 50)), (Spin(100, 50), Spin(80, 50)), (Spin(100, 50), Spin(80, 40))
"""Before and after a cell: nothing moved, others used the machine, the clock moved."""


@pytest.mark.parametrize(
    ("around", "kept", "kept_cpu"),
    [
        ([STILL], "1", "1"),
        ([SLOW, STILL], "01", "01"),
        ([SLOW, SLOW, SLOW], "000", "000"),
        ([BUSY, BUSY], "00", "11"),
        ([SLOW, SLOW, BUSY], "000", "001"),
        ([SLOW, BUSY], "00", "01"),
    ],
)
def test_a_cell_during_which_the_machine_moved_is_measured_again_and_every_row_stays(
    around: list[tuple[Spin, Spin]], kept: str, kept_cpu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sessions.SPIN_S, "tiny", 0.0)  # a spin is never still fresh
    one = session(tmp_path, monkeypatch, [spin for pair in around for spin in pair])
    one.cell({"who": "a"}, lambda: {"per_s": 1.0})
    rows = store.read(tmp_path / "cells.csv")
    assert "".join(row["kept"] for row in rows) == kept
    assert "".join(row["kept_cpu"] for row in rows) == kept_cpu


def test_a_cell_that_failed_or_must_not_be_repeated_is_measured_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sessions.SPIN_S, "tiny", 0.0)
    one = session(tmp_path, monkeypatch, [*SLOW, *SLOW])
    one.cell({"who": "a"}, lambda: {"per_s": 1.0}, repeat=False)
    one.cell({"who": "b"}, lambda: {"per_s": 1 / 0})
    assert [row["who"] for row in store.read(tmp_path / "cells.csv")] == ["a", "b"]


def test_what_benchmarks_write_is_no_change_of_what_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "REPOSITORY", tmp_path)
    code, written = (
        tmp_path / "code.py",
        [tmp_path / "benchmarks/results/wire/cells.csv", tmp_path / "docs/performance.md"],
    )
    for path in (code, *written):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("old\n")
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        run([*git, *words], cwd=tmp_path, check=True)
    for path in written:
        path.write_text("new\n")
    assert not host.changed()
    code.write_text("new\n")
    assert host.changed()


def test_every_benchmark_of_one_command_has_the_load_from_before_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = iter([0.5, 30.0, 30.0])
    monkeypatch.setattr(os, "getloadavg", lambda: (next(loads), 0.0, 0.0))
    monkeypatch.setattr(command, "BENCHMARKS", {"one": "", "other": ""})
    measured = SimpleNamespace(
        measure=lambda session: session.plain({}, lambda: {"per_s": 1.0}),
        plot=lambda rows, file: None,
        table=lambda rows: [],
        TITLE="one",
    )
    monkeypatch.setattr(command, "find", lambda name: measured)
    assert command.main(["all", "--out", str(tmp_path), "--document", str(tmp_path / "x.md")]) == 0
    assert [store.read_host(tmp_path / name)["load"][0] for name in ("one", "other")] == [0.5, 0.5]


def test_ended_early_a_benchmark_keeps_its_cells_and_its_table_is_of_those(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(session: Session) -> None:
        session.add({"cell": "first"})
        raise KeyboardInterrupt

    def table(rows: list[store.Row]) -> list[str]:
        return [f"only {row['cell']}" for row in rows]

    found = SimpleNamespace(TITLE="One", measure=measure, table=table, plot=lambda rows, path: None)
    monkeypatch.setattr(command, "BENCHMARKS", {"one": "", "other": ""})
    monkeypatch.setattr(command, "find", lambda name: found)
    document = tmp_path / "x.md"
    document.write_text("")
    assert command.main(["all", "--out", str(tmp_path), "--document", str(document)]) == 130
    assert "only first" in document.read_text()
    assert not (tmp_path / "other").exists()


def test_rounds_measure_every_cell_once_each_in_another_order(tmp_path: Path) -> None:
    cells = list("abcdefgh")
    order = list(Session(tmp_path, "tiny").rounds(cells, 3))
    assert [number for number, _ in order] == [0] * 8 + [1] * 8 + [2] * 8
    parts = [[cell for number, cell in order if number == n] for n in range(3)]
    assert all(sorted(part) == cells for part in parts)
    assert parts[0] != parts[1]


def test_rows_without_a_mark_count_beside_those_that_have_one(tmp_path: Path) -> None:
    store.write(tmp_path / "cells.csv", [{"per_s": 1.0}, {"per_s": 2.0, "kept": False}, {"per_s": 3.0, "kept": True}])
    assert store.kept(store.read(tmp_path / "cells.csv"), "per_s") == [1.0, 3.0]


def test_csv_keeps_columns_in_the_order_of_their_appearance(tmp_path: Path) -> None:
    store.write(tmp_path / "x.csv", [{"a": 1, "b": True}, {"c": 1234567.891, "a": None}])
    assert (tmp_path / "x.csv").read_text() == "a,b,c\n1,1,\n,,1.23457e+06\n"
    assert store.where(store.read(tmp_path / "x.csv"), b=True) == [{"a": "1", "b": "1", "c": ""}]


@pytest.mark.parametrize(
    ("value", "text"), [(1234.5, "1,230"), (0.012345, "0.0123"), (12.34, "12.3"), (0, "0"), (99.96, "100")]
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert tables.number(value) == text


def test_a_table_is_markdown_and_refuses_a_ragged_row() -> None:
    assert tables.table(["who", "n"], [["a|b", "1"]]) == ["| who | n |", "| --- | ---: |", "| a\\|b | 1 |"]
    with pytest.raises(ValueError, match="3"):
        tables.table(["a", "b"], [["1", "2", "3"]])


def test_a_section_is_replaced_in_place_and_the_rest_of_the_document_stays(tmp_path: Path) -> None:
    document = tmp_path / "docs" / "performance.md"
    tables.replace_section(document, "wire", ["old"])
    tables.replace_section(document, "cli", ["mine"])
    document.write_text(document.read_text() + "\nBy hand.\n")
    tables.replace_section(document, "wire", ["new"])
    text = document.read_text()
    assert "old" not in text
    assert text.index("new") < text.index("mine") < text.index("By hand.")
    assert text.startswith("# Performance")
