"""When a run has reached what was asked of it, or never will; what is asked may change while it runs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal, NamedTuple

from rlctl.spec.schema import Spec, Stop
from rlctl_agents.manager.state_store import Evaluation


class Met(NamedTuple):
    """A condition that holds."""

    condition: Literal["eval_return", "rows", "wall_time"]
    why: str  # in words


def met(stop: Stop, *, evaluation: Evaluation | None, rows: int, wall_s: float, learned: bool) -> Met | None:
    """Why the run has succeeded; None: not yet.

    Args:
        evaluation: the newest whole one: the only thing that says how good a policy is.
        rows: that the weights were learned from.
        wall_s: over all ups.
        learned: something was ever learned from; time alone is no success.
    """
    alone = evaluation is not None and evaluation.seats == 1  # else see `require_measurable`
    if stop.eval_return is not None and evaluation is not None and alone and evaluation.mean >= stop.eval_return:
        text = (
            f"evaluation mean {evaluation.mean:.4g} >= {stop.eval_return:g} over {evaluation.episodes} episodes "
            f"({evaluation.mode}, version {evaluation.ref.version})"
        )
        return Met("eval_return", text)
    if stop.rows is not None and rows >= stop.rows:
        return Met("rows", f"{rows} rows >= {stop.rows}")
    if stop.wall_time is not None and wall_s >= stop.wall_time and learned:
        return Met("wall_time", f"{wall_s:.0f} s >= {stop.wall_time:g} s")
    return None


def require_measurable(stop: Stop, seats: int) -> None:
    """An evaluation can say whether `stop.eval_return` is reached.

    Args:
        seats: of the environment.

    Raises:
        ValueError: it cannot, and what to do instead.
    """
    if stop.eval_return is not None and seats > 1:
        raise ValueError(
            f"stop.eval_return cannot be judged: the environment has {seats} seats, an evaluation has the same model "
            "on all of them and gives the return of one, which in a game that one wins and another loses is about 0 "
            "however good the model is; remove it and stop by stop.rows or stop.wall_time"
        )


def in_vain(stop: Stop, *, wall_s: float, learned: bool, joined: Collection[str]) -> str | None:
    """Why the run has failed, in words; None: it has not.

    Args:
        joined: roles of whom anybody has joined.
    """
    if stop.wall_time is None or wall_s < stop.wall_time or learned:
        return None
    absent = [f"no {role}" for role in ("modelpool", "learner", "actor") if role not in joined]
    why = f": {', '.join(absent)} had joined" if absent else ""
    return f"stop.wall_time of {stop.wall_time:g} s is over, and nothing was ever learned from{why}"


def changes(old: Spec, new: Spec) -> list[str]:
    """What applies live and is not as before, in words."""
    found = []
    for section in ("stop", "evaluation", "checkpoint"):
        before, now = getattr(old, section).model_dump(), getattr(new, section).model_dump()
        found += [f"{section}.{key}: {before[key]} -> {now[key]}" for key in now if now[key] != before[key]]
    return found


def conditions(stop: Stop) -> dict[str, Any]:
    """Those that are set."""
    return stop.model_dump(mode="json", exclude_none=True)
