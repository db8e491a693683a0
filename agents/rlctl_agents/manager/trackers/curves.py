"""Curves of a run: for TensorBoard, and for every tracker in its spec."""

from __future__ import annotations

import importlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rlctl.spec.schema import Trackers
from rlctl_agents.manager.status.replay import DRAWN
from rlctl_agents.manager.trackers.background import Background, await_end
from rlctl_agents.manager.trackers.base import ManagerEnd, Point, TrackedRun, Tracker
from rlctl_agents.manager.trackers.tensorboard import CurveWriter

WENT_BACK = "learner/went_back"
"""Curve with a point wherever a learner went back to a generation: only TensorBoard can hide what came after it."""
CLOSE_S, LEAVE_S = 30.0, 5.0
"""Seconds for trackers to send what is queued: at the end of a run, and when the manager is told to leave."""


class Missing(Exception):
    """The package of a tracker is not installed."""


class Curves:
    """Writers of a run's curves: a context manager that closes them.

    Args:
        tensorboard: written at once.
        trackers: get the same points through their queues.
        config: the present resolved spec.
        gave_up: True if another process has ended the run as failed.
        hurry: True once the manager is told to leave.
        beat: sends a heartbeat of this process.
    """

    def __init__(
        self,
        tensorboard: CurveWriter,
        trackers: Sequence[Background] = (),
        *,
        config: Callable[[], Mapping[str, Any]] = dict,
        gave_up: Callable[[], bool] = lambda: False,
        hurry: Callable[[], bool] = lambda: True,
        beat: Callable[[], None] = lambda: None,
        unix: Callable[[], float] = time.time,
    ) -> None:
        self._tensorboard, self._trackers = tensorboard, list(trackers)
        self._config, self._gave_up, self._hurry, self._beat, self._unix = config, gave_up, hurry, beat, unix
        self._told = config() if self._trackers else {}
        self.outcome: ManagerEnd = "stopped"
        """Outcome of this manager, unless it ends by an error."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.outcome == "stopped" and (kind is not None or self._gave_up()):
            self.outcome = "failed"
        for tracker in self._trackers:
            tracker.close(self.outcome)
        await_end(self._trackers, lambda: LEAVE_S if self._hurry() else CLOSE_S, self._beat)
        self._tensorboard.close()

    def add(self, steps: int, values: Mapping[str, float]) -> None:
        """Add a point to each curve."""
        self._tensorboard.add(steps, values)
        for tracker in self._trackers:
            tracker.put(Point(steps, self._unix(), values))

    def void_from(self, steps: int) -> None:
        """Hide points from these steps on, or mark the place: a learner went back to a generation."""
        self._tensorboard.void_from(steps)
        for tracker in self._trackers:
            tracker.put(Point(steps, self._unix(), {WENT_BACK: 1.0}))

    def turn(self) -> list[str]:
        """Pass a changed spec to the trackers; returns their news, in words."""
        if self._trackers and (config := self._config()) and config != self._told:
            self._told = config
            for tracker in self._trackers:
                tracker.configure(config)
        return [text for tracker in self._trackers for text in tracker.news()]

    @property
    def losses(self) -> list[str]:
        """Points that trackers have lost, in words."""
        return [f"tracker {one.name}: {one.lost} points are lost" for one in self._trackers if one.lost]

    @property
    def problems(self) -> list[dict[str, str]]:
        """Present failures of curves and trackers, for the status."""
        full = self._tensorboard.failure
        found = [{"text": full, "next": "df -h; df -i"}] if full else []
        return [*found, *({"text": one.problem, "next": "rlctl logs manager"} for one in self._trackers if one.problem)]


def curve_values(status: dict[str, Any], gauges: dict[str, float]) -> dict[str, float]:
    """Curves of a status: tag -> value.

    Args:
        gauges: gauges of the learner: `loss.policy` becomes `loss/policy`.
    """
    found: dict[str, Any] = {f"throughput/{name}": value for name, value in status["throughput"].items()}
    found |= {f"lag/{name}": value for name, value in status["lag"].items()}
    found |= {
        f"waits/{name}": status["verdict"][name]
        for name in ("learner_waits_data", "actor_waits_credit", "actor_waits_model")
    }
    if (replay := status["replay"]) is not None:
        found |= {f"replay/{name}": replay[name] for name in DRAWN} | {"replay/shards": replay["shards"]["answer"]}
        found |= {f"waits/{name}": status["verdict"][name] for name in ("learner_waits_draw", "shard_busy")}
    for policy, one in status["policies"].items():
        found |= {f"ledger/{policy}/{name}": value for name, value in one["ledger"].items() if name != "balanced"}
    if status["train_return"] is not None:
        found["return/train"] = status["train_return"]["mean"]
    found |= {f"info/{name}/train": mean for name, mean in status["train_info"].items()}
    found |= {f"learner/{name}" if "." not in name else name.replace(".", "/"): value for name, value in gauges.items()}
    return {name: float(value) for name, value in found.items() if value is not None and math.isfinite(value)}


def opened_trackers(asked: Trackers, run: TrackedRun) -> list[Background]:
    """Open every tracker in the spec, each in a thread of its own."""
    return [Background(name, partial(_open, name, section, run)) for name, section in asked.asked.items()]


def _open(name: str, section: object, run: TrackedRun) -> Tracker:
    try:
        module = importlib.import_module(f"rlctl_agents.manager.trackers.{name}")
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise Missing(
            f'{name} is not installed: pip install "rlctl[{name}]", or images.core with --build-arg EXTRAS={name}'
        ) from error
    tracker: Tracker = module.open_run(section, run)
    return tracker


def config_of(file: Path) -> dict[str, Any]:
    """The resolved spec, from the file beside live.json; {} if it cannot be read just now."""
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
