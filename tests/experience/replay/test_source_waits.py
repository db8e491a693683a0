"""Shares of a learner's wait: the replay's, and the actors'."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlctl_agents.experience.replay.source import Drawer, ReplaySource
from rlctl_agents.runtime.metrics import Metrics


class Drawing:
    """A drawer with draws that take as long as they are told to."""

    def __init__(self, clock: list[float]) -> None:
        self.shards = SimpleNamespace(live={0: object(), 1: object()})
        self.held, self.takes_s, self._clock = False, 0.0, clock
        self.schema = self.limit = None

    def draw(self, rows: int) -> list[Any] | None:
        self._clock[0] += self.takes_s
        return None if self.held else []

    def fill(self, memory: Any, parts: Any) -> None: ...

    def fresh(self, *, counts: bool) -> int:
        return 0


class Memory(SimpleNamespace):
    """Of a batch of two rows."""

    def __init__(self) -> None:
        super().__init__(version=np.zeros((1, 2), np.int64), fields={"valid": np.ones((1, 2), np.bool_)})


class Stage:
    def allocate(self, schema: Any, rows: int) -> Memory:
        return Memory()

    def begin(self, memory: Memory) -> None: ...

    def batch(self, memory: Memory) -> Any:
        return SimpleNamespace(_replace=lambda **values: SimpleNamespace(**values))


@pytest.fixture
def clock() -> list[float]:
    return [100.0]


@pytest.fixture
def drawing(clock: list[float]) -> Drawing:
    return Drawing(clock)


@pytest.fixture
def source(clock: list[float], drawing: Drawing) -> ReplaySource:
    return ReplaySource(drawing, Stage(), 2, clock=lambda: clock[0])  # type: ignore[arg-type]


def waited_s(source: ReplaySource) -> float:
    metrics = Metrics()
    source.measure(metrics)
    return metrics.values().counters["wait_draw_seconds"]


def test_a_wait_for_a_draw_that_is_under_way_is_the_replays(source: ReplaySource, drawing: Drawing) -> None:
    drawing.takes_s = 3.0
    assert source.step()
    assert source.take(0.0) is not None
    assert waited_s(source) == 0, "it was drawn before the learner asked"


def test_the_learner_waits_for_the_replay_from_when_it_asks_and_not_from_when_the_draw_began(
    source: ReplaySource, drawing: Drawing, clock: list[float]
) -> None:
    def drawn_while_the_learner_waits(timeout: float) -> Any:
        clock[0] += 2.0
        return queued.pop(0)

    drawing.takes_s = 5.0
    source.step()
    queued = [source._ready.get()]
    source._ready = SimpleNamespace(get=drawn_while_the_learner_waits)  # type: ignore[assignment]
    source.take(10.0)
    assert waited_s(source) == 2.0
    assert waited_s(source) == 0.0, "told once"


def test_a_wait_while_the_limit_is_reached_is_the_actors(
    source: ReplaySource, drawing: Drawing, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawing.held = True
    assert not source.step()
    monkeypatch.setattr(source, "_clock", iter([101.0, 104.0, 104.0, 109.0]).__next__)
    assert source.take(0.0) is None
    assert source.take(0.0) is None
    assert waited_s(source) == 0.0


def test_a_wait_that_ends_without_a_batch_counts_from_the_beginning_of_the_draw(
    source: ReplaySource, drawing: Drawing, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawing.draw = lambda rows: None  # type: ignore[method-assign]
    source.step()
    monkeypatch.setattr(source, "_clock", iter([101.0, 104.0, 104.0, 109.0]).__next__)
    assert source.take(0.0) is None
    assert source.take(0.0) is None
    assert waited_s(source) == 3.0 + 5.0


def test_how_many_shards_answer_is_told(source: ReplaySource) -> None:
    metrics = Metrics()
    source.measure(metrics)
    assert metrics.values().gauges == {"shards": 2}


def standing(mass: float) -> Any:
    return SimpleNamespace(mass=mass)


@pytest.mark.parametrize(
    ("live", "limit", "held"),
    [
        ({}, None, True),  # no shard has ever answered: the run begins
        ({}, True, False),  # none answers any more
        ({0: 1.0}, True, False),
        ({0: 1.0}, False, True),
        ({0: 0.0}, True, True),  # all are empty: actors fill them
        ({0: 0.0, 1: 2.0}, True, False),
    ],
)
def test_actors_hold_a_draw_up_where_there_are_no_rows_or_the_limit_is_reached(
    live: dict[int, float], limit: bool | None, held: bool
) -> None:
    drawer = Drawer.__new__(Drawer)
    drawer.shards = SimpleNamespace(live={index: standing(mass) for index, mass in live.items()})  # type: ignore[assignment]
    drawer.limit = None if limit is None else SimpleNamespace(may_sample=lambda: limit)  # type: ignore[assignment]
    assert drawer.held == held
