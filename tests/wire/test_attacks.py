"""Attacks with and without keys, and what honest processes see of them. Figures are printed: `pytest -s`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.samples import sample
from tests.wire.attacker import ATTACKS, starved, strangers

pytestmark = pytest.mark.processes


def test_three_strangers_do_not_make_a_listener_hold_gigabytes(tmp_path: Path) -> None:
    seen = strangers(tmp_path, 300 << 20)
    print(f"from {seen.before_mib:.0f} to {seen.most_mib:.0f} MiB")
    assert seen.most_mib < seen.before_mib + 64


@pytest.mark.parametrize("what", sample("attacks of a key", ATTACKS, 2))
def test_one_actor_key_does_not_starve_the_others(tmp_path: Path, what: str) -> None:
    seen = starved(tmp_path, what, seconds=4.0)
    print(f"{what}: {seen.alone:.0f} blocks/s alone, {seen.beside:.0f} beside it; {seen.rejected}")
    assert seen.beside > 0.1 * seen.alone
    assert seen.boots <= 2
