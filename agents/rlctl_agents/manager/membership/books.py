"""What every boot has said of itself, as it outlives the manager."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from rlctl_agents.manager.accounting import ledger, totals
from rlctl_agents.manager.membership import leases
from rlctl_agents.runtime.storage import read_file

FORMAT = 1

log = logging.getLogger(__name__)


class Books(msgspec.Struct):
    """results/ledger.json: what every boot has said of itself."""

    format: int = FORMAT
    leases: leases.Stored = msgspec.field(default_factory=leases.Stored)
    ledger: ledger.Stored = msgspec.field(default_factory=ledger.Stored)
    totals: totals.Stored = msgspec.field(default_factory=totals.Stored)


def load_books(folder: Path) -> Books:
    """As the last manager left them; empty when they cannot be read, for everybody alive says its totals again."""
    path = folder / "ledger.json"
    try:
        data = read_file(path)
        books = Books() if data is None else msgspec.json.decode(data, type=Books)
        if books.format != FORMAT:
            raise ValueError(f"format {books.format}")
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        log.error("%s cannot be read, the ledger begins anew: %s", path, error)
        return Books()
    return books
