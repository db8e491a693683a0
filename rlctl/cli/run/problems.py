"""Problems of processes in words: a sentence, evidence of the target, the last log lines, the next command.

A target may group replicas that do not run for the same reason (`count`), and give a process a name of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rlctl.cli.text import plain

if TYPE_CHECKING:
    from rlctl.backends.base import Process


def label(process: Process) -> str:
    """Name of a process: actor/7, or the name that the target has for it."""
    return process.name or f"{process.role}/{process.index}"


def past(process: Process) -> bool:
    """Whether a process is over and was replaced, as an evicted pod: worth a report, but no current fault."""
    return bool(process.name) and process.state == "exited"


def exists(process: Process) -> bool:
    """Whether there is something to stop: a process, or a pod, which is there even when it has failed."""
    return process.state not in ("stopped", "exited") and (process.state != "failed" or bool(process.name))


def sentence(process: Process) -> str:
    """ "actor/1 is in backoff: why", "pong-learner-0: why", or of several the reason alone, which names them."""
    if process.count > 1 and process.reason:
        return process.reason
    if process.name and process.reason:
        return f"{process.name}: {process.reason}"
    why = f": {process.reason}" if process.reason else ""
    return f"{label(process)} {'is in' if process.state == 'backoff' else 'has'} {process.state}{why}"


def of_process(process: Process, named: str) -> dict[str, Any]:
    """One problem, for people and for `-o json`.

    Args:
        named: the option that names the run, as in ` --run pong`.
    """
    which = process.role if process.name or process.count > 1 else f"{process.role}/{process.index}"
    found: dict[str, Any] = {"text": sentence(process), "next": process.next or f"rlctl logs {which}{named}"}
    if process.evidence:
        found["evidence"] = process.evidence
    if process.first_cause_lines:
        found["lines"] = list(process.first_cause_lines)
    return found


def as_lines(problems: Iterable[Mapping[str, Any]]) -> list[str]:
    """Problems as lines of `status`; evidence equal to that of the previous problem is not repeated."""
    lines: list[str] = []
    said = ""
    for problem in problems:
        lines.append(f"problem: {plain(problem['text'])}")
        evidence = plain(problem.get("evidence") or "").strip()
        if evidence and evidence != said:
            lines.append(f"   said: {evidence}")
        lines += [f"       | {plain(line)}" for line in problem.get("lines") or ()]
        if problem.get("next"):
            lines.append(f"   next: {plain(problem['next'])}")
        said = evidence
    return [part for line in lines for part in line.split("\n")]


def worst(processes: Iterable[Process]) -> Process | None:
    """The most urgent process that does not run; None when all run."""
    late = [process for process in processes if process.state != "running" and not past(process)]
    return min(late, key=urgency, default=None)


def urgency(process: Process) -> int:
    """Sort key of problems, most urgent first: causes before their possible consequences, replaced processes last."""
    if past(process):
        return 6
    if process.permanent:
        return 0
    if process.state == "failed":
        return 1
    if process.lacks:  # a process without a node keeps others from becoming ready, which run and wait for it
        return 2 if process.lacks == "node" else 5
    return 3 if process.state == "backoff" else 4


def shown(process: Process) -> str:
    """`actor/3 (backoff: why)`: the process that is waited for, in a few words."""
    why = f": {process.reason}" if process.reason else ""
    return f"{process.role if process.count > 1 else label(process)} ({process.state}{why})"
