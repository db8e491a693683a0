"""The loop that kills something at each of its steps."""

from __future__ import annotations

import pytest

from tests.support.kills import killed_at_every_step


def test_what_a_kill_breaks_is_told_with_its_step() -> None:
    def killed(at: int) -> None:
        assert at != 3, "half of it is lost"

    with pytest.raises(AssertionError, match="half of it is lost") as failed:
        killed_at_every_step("", 5, lambda: 5, killed)
    assert failed.value.__notes__ == ["killed at step 3 of 5"]


def test_the_last_step_is_always_tried() -> None:
    tried: list[int] = []
    kills = killed_at_every_step("", 3, lambda: 40, tried.append)
    assert kills.steps == tried[-1] == 40
    assert kills.tried == tried
