"""Markdown tables, and the parts of docs/performance.md that are made from stored figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.shared import store
from benchmarks.shared.stats import spread

HEADING = "# Performance\n"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table; every column but the first to the right.

    Raises:
        ValueError: a row has more or fewer cells than the head.
    """
    for row in rows:
        if len(row) != len(head):
            raise ValueError(f"the head has {len(head)} columns, this row has {len(row)}: {row}")
    lines = [[cell.replace("|", "\\|") for cell in row] for row in (head, *rows)]
    marks = ["---", *["---:"] * (len(head) - 1)]
    return ["| " + " | ".join(row) + " |" for row in (lines[0], marks, *lines[1:])]


def plain_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table of words: every column to the left."""
    lines = table(head, rows)
    return [lines[0], "|" + "---|" * len(head), *lines[2:]]


def number(value: float) -> str:
    """Three significant digits, thousands set apart.

    Example:
        1234.5 -> "1,230", 0.01234 -> "0.0123", 12.34 -> "12.3".
    """
    if value == 0:
        return "0"
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 100 else f"{rounded:g}"


def measured(rows: Sequence[store.Row], column: str) -> str:
    """Median, spread and how many cells were discarded: "1,200 (1,100-1,300; n 5, 1 discarded)"."""
    values, lost = store.kept(rows, column), store.discarded(rows, column)
    if not values:
        return f"- (all {lost} discarded)" if lost else "-"
    found = spread(values)
    tail = f", {lost} discarded" if lost else ""
    return f"{number(found.median)} ({number(found.low)}-{number(found.high)}; n {found.repeats}{tail})"


def host_line(card: dict[str, Any]) -> str:
    """The host card in one sentence."""
    if not card:
        return "Not measured yet."
    packages = ", ".join(f"{name} {version}" for name, version in card.get("packages", {}).items())
    quota = f", quota {card['quota_cores']:g}" if card.get("quota_cores") else ""
    dirty = " with changes" if card.get("changed_since_commit") else ""
    return (
        f"{card['processor']}, {card['cores']} cores{quota} ({', '.join(card['flags'])}), {card['memory_gib']} GiB, "
        f"{card['system']}, Python {card['python']}, {packages}; load {card['load'][0]} before, steal "
        f"{card['steal_percent']} % since boot; {card.get('form', 'full')} form, commit {card['commit'][:10]}{dirty}. "
        f"Command: `{card.get('command', '')}`."
    )


def replace_section(document: Path, name: str, lines: Sequence[str]) -> None:
    """Put the lines between the marks of a section; a section that is not there comes last."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    text = document.read_text() if document.exists() else HEADING
    block = "\n".join([begin, *lines, end])
    if begin in text and end in text:
        head, rest = text.split(begin, 1)
        text = head + block + rest.split(end, 1)[1]
    else:
        text = text.rstrip("\n") + "\n\n" + block + "\n"
    document.parent.mkdir(parents=True, exist_ok=True)
    store.write_text(document, text)
