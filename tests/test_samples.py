"""Samples of exhaustive tests."""

from __future__ import annotations

import pytest

from tests.support import samples


@pytest.fixture(autouse=True)
def sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "FULL", False)
    monkeypatch.setenv(samples.SEED, "0123abcd")


def test_a_sample_is_the_same_for_the_same_commit_and_another_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = samples.sample("kill", range(1, 100), 10)
    assert drawn == samples.sample("kill", range(1, 100), 10)
    assert drawn != samples.sample("another test", range(1, 100), 10)
    monkeypatch.setenv(samples.SEED, "4567cdef")
    assert drawn != samples.sample("kill", range(1, 100), 10)


def test_a_sample_is_in_order_and_holds_the_last_point() -> None:
    drawn = samples.sample("kill", range(1, 100), 10)
    assert len(drawn) == 10
    assert drawn == sorted(drawn)
    assert drawn[-1] == 99


def test_the_full_form_tries_every_point(monkeypatch: pytest.MonkeyPatch) -> None:
    assert samples.sample("kill", range(5), 10) == [0, 1, 2, 3, 4]
    monkeypatch.setattr(samples, "FULL", True)
    assert samples.sample("kill", range(50), 10) == list(range(50))
    assert samples.size(5, 200) == 200
