"""Bounds of messages: a process with an actor's key may send any."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rlctl_agents.types.control import Account, Report
from rlctl_agents.types.experience import Ledger


@pytest.mark.parametrize("books", [{"sent": {"b" * 65: Ledger()}}, {"accounts": {"b" * 65: Account(Ledger())}}])
def test_a_report_names_no_boot_that_is_longer_than_boots_are(books: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError, match="length <= 64"):
        msgspec.msgpack.decode(msgspec.msgpack.encode(Report("actor", "b" * 16, 1, **books)), type=Report)
