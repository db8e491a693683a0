"""Interface of trackers that are packages of their own, and the data that they get."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

ManagerEnd = Literal["finished", "failed", "stopped", "replaced"]
"""How one life of the manager ended. stopped: the run may go on; replaced: another manager has taken over."""
SECRETS = ("WANDB_API_KEY", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")
"""Environment variables whose values no message may hold."""
_CREDENTIALS = re.compile(r"//[^/\s@]+@")
_MOST_CHARACTERS = 300


@dataclass(frozen=True)
class TrackedRun:
    """The run that is tracked."""

    name: str
    uid: str  # 32 hex digits: the same for every manager of the run
    term: int  # of this manager
    results: Path
    storage: Path  # folder of all runs and of what they share
    config: Mapping[str, Any]  # the resolved spec, in its own shape


@dataclass(frozen=True)
class Point:
    """Values of curves, by name."""

    steps: int  # agent steps
    unix: float
    values: Mapping[str, float]


class Tracker(Protocol):
    """Open tracker, called by one thread of its own, in which it may block and raise any error.

    A module has `open_run(section, run)`, which resumes the run that an earlier manager began there.
    """

    where: str
    """Location of the run at the tracker, without secrets."""

    def configure(self, config: Mapping[str, Any]) -> None:
        """Replace the resolved spec."""

    def add(self, point: Point) -> None:
        """Add a point to each curve."""

    def end(self, outcome: ManagerEnd) -> None:
        """Report the outcome of this manager, and close."""


def flat(config: Mapping[str, Any], above: str = "") -> dict[str, str]:
    """Leaves of a spec by dotted path, as JSON except for text.

    Example:
        `flat({"env": {"id": "a"}, "seed": 3, "model": {"hidden": [64]}})` is
        `{"env.id": "a", "seed": "3", "model.hidden": "[64]"}`.
    """
    found: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{above}{key}.")
        else:
            found[f"{above}{key}"] = value if isinstance(value, str) else json.dumps(value)
    return found


def redacted(error: BaseException) -> str:
    """First line of a foreign error, without the secrets of this environment."""
    text = " ".join(f"{type(error).__name__}: {error}".split("\n")[0].split())
    for name in SECRETS:
        if secret := os.environ.get(name):
            text = text.replace(secret, "***")
    return _CREDENTIALS.sub("//***@", text)[:_MOST_CHARACTERS]
