"""Lengths of windows, of rows written out."""

from __future__ import annotations

import numpy as np
import pytest

from rlctl_agents.experience.replay.ring import FIRST, TERMINATED, THERE, TRUNCATED, VALID
from rlctl_agents.experience.replay.windows import window_lengths

BITS = {"-": THERE | VALID, "f": THERE | VALID | FIRST, "T": THERE | VALID | TERMINATED, "c": THERE | VALID | TRUNCATED,
        "x": THERE, "b": THERE | VALID | FIRST | TERMINATED, " ": 0}  # fmt: skip
"""First, terminated, cut short, not valid, first and terminated, not there."""


@pytest.mark.parametrize(
    ("rows", "n_step", "history", "lengths"),
    [
        ("f---", 1, 0, "1110"),
        ("f---", 3, 0, "3000"),
        ("f--cx", 3, 0, "33210"),
        ("f--c", 3, 0, "3000"),  # what follows the cut is not there
        ("f--T", 3, 0, "3321"),
        ("f--T", 9, 0, "4321"),
        ("f--Txf-", 2, 0, "2221000"),
        ("bxbx", 3, 0, "1010"),
        ("--f-", 2, 0, "0000"),  # an episode that begins without an end before it
        ("- --", 1, 0, "0010"),
        ("x--", 1, 0, "010"),  # as no actor sends them: not valid, and no end before
        ("f-x--", 3, 0, "00000"),
        ("-----", 1, 2, "00110"),
        ("f----", 1, 2, "11110"),
        ("-f---", 1, 2, "01110"),
        (" -f--", 2, 3, "00200"),
    ],
)
def test_a_window_ends_with_its_episode_and_needs_every_row(rows: str, n_step: int, history: int, lengths: str) -> None:
    flags = np.array([BITS[row] for row in rows], np.uint8)[:, None]
    found = window_lengths(flags, n_step, history)[:, 0]
    assert "".join(map(str, found)) == lengths
