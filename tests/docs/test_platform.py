"""The tutorial says what a machine needs, and `rlctl doctor` finds where it is lacking."""

from __future__ import annotations

import os
import platform

import pytest

from rlctl.backends.local import doctor
from tests.docs.blocks import ROOT


def test_a_machine_that_is_no_linux_is_a_problem_and_nothing_else_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Roles need Linux" in (ROOT / "docs" / "tutorial.md").read_text()
    assert ("system", "ok") in [(one.name, one.verdict) for one in doctor.look()]
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.delattr(os, "sched_getaffinity")
    (found,) = doctor.look()
    assert (found.name, found.verdict) == ("system", "problem")
    assert "Linux" in found.next
