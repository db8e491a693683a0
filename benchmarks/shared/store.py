"""Results as files: raw CSV with one row per measurement, and the host card beside it."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, str]
"""A row of the CSV: every value is text, "" is nothing."""
CELLS, HOST = "cells.csv", "host.json"


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """One line per row, the columns in the order in which they first appear; floats with six digits."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    table = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    table.writeheader()
    table.writerows({name: as_text(value) for name, value in row.items()} for row in rows)
    write_text(path, text.getvalue())


def write_text(path: Path, text: str) -> None:
    """Replace a file whole: a full disk, a kill or a power cut leaves it as it was.

    Raises:
        OSError: it could not be written.
    """
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with new.open("w", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def read(path: Path) -> list[Row]:
    """Raises OSError when there is none."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def as_text(value: Any) -> str:
    """As it is stored: floats with six digits, booleans as 1 and 0, None as nothing."""
    match value:
        case None:
            return ""
        case bool():
            return str(int(value))
        case float():
            return f"{value:.6g}"
        case _:
            return str(value)


def write_host(folder: Path, card: Mapping[str, Any]) -> None:
    (folder / HOST).write_text(json.dumps(card, indent=1) + "\n")


def read_host(folder: Path) -> dict[str, Any]:
    """The card; {} when there is none."""
    try:
        found: dict[str, Any] = json.loads((folder / HOST).read_text())
    except OSError:
        return {}
    return found


def kept(rows: Sequence[Row], column: str) -> list[float]:
    """The values of a column in rows that count; one without a mark counts.

    Rates per CPU second (`*_per_cpu_s`, `cpu_*`) need a machine whose clock stayed; all others need one
    with unchanged load by other users. Memory needs neither.
    """
    flag = "" if column.endswith("_mib") else "kept_cpu" if "cpu" in column else "kept"
    return [float(row[column]) for row in rows if (row.get(flag) or "1") == "1" and row.get(column, "")]


def discarded(rows: Sequence[Row], column: str) -> int:
    """Rows with a value in that column that do not count."""
    return sum(1 for row in rows if row.get(column, "")) - len(kept(rows, column))


def where(rows: Sequence[Row], **values: Any) -> list[Row]:
    """The rows that have these values."""
    wanted = {name: as_text(value) for name, value in values.items()}
    return [row for row in rows if all(row.get(name, "") == value for name, value in wanted.items())]


def distinct(rows: Sequence[Row], column: str) -> list[str]:
    """The values of a column, in the order in which they first appear."""
    return list(dict.fromkeys(row[column] for row in rows if row.get(column, "")))
