"""The benchmark of attacks: what it stores, and what it says when a defence does not hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as command
from benchmarks import limit
from benchmarks.attacks import bench
from benchmarks.shared import store


def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *attacks: bench.Attack) -> tuple[int, str, list[store.Row]]:
    """Exit code, document and rows of a run of these attacks alone."""
    monkeypatch.setattr(bench, "ATTACKS", attacks)
    document = tmp_path / "performance.md"
    code = command.main(["attacks", "--form", "tiny", "--out", str(tmp_path), "--document", str(document)])
    return code, document.read_text(), store.read(tmp_path / "attacks" / store.CELLS)


def attack(name: str, **figures: Any) -> bench.Attack:
    return bench.Attack(name, "at most 64 MiB more", lambda: figures, bench.MEMORY)


def test_a_defence_that_holds_is_exit_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = attack("strangers", before_mib=40.25, most_mib=41.0, held=True)
    code, text, rows = run(tmp_path, monkeypatch, one)
    assert code == 0
    assert (rows[0]["attack"], rows[0]["held"], rows[0]["most_mib"]) == ("strangers", "1", "41")
    assert "| **strangers**: at most 64 MiB more |  | 1 of 1 |" in text
    assert "| MiB at most | 41 (41-41; n 1) |  |" in text


def test_a_benchmark_of_which_nothing_could_be_measured_is_exit_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> dict[str, Any]:
        raise RuntimeError("nothing starts")

    monkeypatch.setattr(limit, "alone", lambda *_: fails())
    document = tmp_path / "performance.md"
    assert command.main(["regression", "--form", "tiny", "--out", str(tmp_path), "--document", str(document)]) == 1
    assert {row["failed"] for row in store.read(tmp_path / "regression" / store.CELLS)} == {
        "RuntimeError: nothing starts"
    }


def test_a_defence_that_does_not_hold_is_exit_1_and_the_others_are_attacked_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> dict[str, Any]:
        raise TimeoutError("no end")

    broken = attack("strangers", before_mib=40.0, most_mib=2100.0, held=False)
    code, text, rows = run(
        tmp_path, monkeypatch, bench.Attack("endless", "an end", fails, {}), broken, attack("last", held=True)
    )
    assert code == 1
    assert [row["held"] for row in rows] == ["0", "0", "1"]
    assert rows[0]["failed"] == "TimeoutError: no end"
    assert "| **strangers**: at most 64 MiB more |  | **NO**, 0 of 1 |" in text
