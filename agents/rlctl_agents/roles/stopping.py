"""When a run has reached what was asked of it."""

from __future__ import annotations

from typing import Any

from rlctl.spec.schema import Stop
from rlctl_agents.roles.matches import Evaluation


def met(stop: Stop, *, evaluation: Evaluation | None, rows: int, wall_s: float) -> str | None:
    """Why the run has succeeded, in words; None: not yet.

    Args:
        evaluation: the newest whole one: the only thing that says how good a policy is.
        rows: that the weights were learned from.
        wall_s: over all ups.
    """
    if stop.eval_return is not None and evaluation is not None and evaluation.mean >= stop.eval_return:
        return (
            f"evaluation mean {evaluation.mean:.4g} >= {stop.eval_return:g} over {evaluation.episodes} episodes "
            f"({evaluation.mode}, version {evaluation.ref.version})"
        )
    if stop.rows is not None and rows >= stop.rows:
        return f"{rows} rows >= {stop.rows}"
    if stop.wall_time is not None and wall_s >= stop.wall_time:
        return f"{wall_s:.0f} s >= {stop.wall_time:g} s"
    return None


def conditions(stop: Stop) -> dict[str, Any]:
    """Those that are set."""
    return stop.model_dump(mode="json", exclude_none=True)
