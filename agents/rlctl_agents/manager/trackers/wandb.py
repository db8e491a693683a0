"""Weights & Biases: a run of the same id for every manager, offline below results/wandb unless the spec says online."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import wandb

from rlctl.spec.schema import Wandb
from rlctl_agents.manager.trackers.base import ManagerEnd, Point, TrackedRun

STEPS = "agent_steps"
"""The x-axis of all curves: points of evaluations may lie before earlier points, which W&B's own step never does."""
LIFE = 10_000_000
"""More points than one manager makes. W&B's own step of point n in term t is t * LIFE + n: a run that resumes offline
does not know its last step, and overwrites nothing when it is synchronised."""
EXIT_CODES = {"finished": 0, "failed": 1, "stopped": 255, "replaced": 0}
FINISH_S = 20


class WandbRun:
    """Open run at Weights & Biases.

    Args:
        section: section of the spec.
        run: run that is tracked.
    """

    def __init__(self, section: Wandb, run: TrackedRun) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # nothing is sent to others than the run's own server
        settings = wandb.Settings(
            console="off", silent=True, x_disable_stats=True, x_disable_meta=True, x_disable_machine_info=True,
            x_save_requirements=False, disable_git=True, disable_code=True, disable_job_creation=True,
            finish_timeout=FINISH_S,
        )  # fmt: skip
        self._run = wandb.init(
            project=section.project, entity=section.entity, group=section.group, tags=section.tags or None,
            name=run.name, id=run.uid, resume="allow" if section.mode == "online" else None, mode=section.mode,
            dir=run.results, config=dict(run.config), allow_val_change=True, settings=settings,
        )  # fmt: skip
        self._run.define_metric(STEPS, hidden=True)
        self._run.define_metric("*", step_metric=STEPS)
        self._run.summary["state"] = "running"
        self._step = run.term * LIFE
        place = self._run.url if section.mode == "online" else self._run.settings.sync_dir
        self.where = f"run {run.uid} of project {section.project}, {place}"

    def configure(self, config: Mapping[str, Any]) -> None:
        """Log another resolved spec."""
        self._run.config.update(dict(config), allow_val_change=True)

    def add(self, point: Point) -> None:
        """Add a point to each curve."""
        self._run.log({STEPS: point.steps, "_timestamp": point.unix, **point.values}, step=self._step, commit=True)
        self._step += 1

    def end(self, outcome: ManagerEnd) -> None:
        """Report the outcome of this manager, and close."""
        if outcome != "replaced":
            self._run.summary["state"] = outcome
        self._run.finish(exit_code=EXIT_CODES[outcome])


def open_run(section: Wandb, run: TrackedRun) -> WandbRun:
    """Create or resume the run at Weights & Biases."""
    return WandbRun(section, run)
