"""Progress of `up` and `wait` while they stay with a run: a live tree, a line per change, events, or nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

from rlctl.cli.context import World
from rlctl.cli.display.report import evaluation_text, headline, other_modes
from rlctl.cli.run.problems import label
from rlctl.cli.run.snapshot import Snapshot
from rlctl.cli.text import clock, count, number, plain
from rlctl.spec.layout import API_VERSION
from rlctl.waiting import HEARTBEAT_S


class Progress(StrEnum):
    """Choices of `--progress`."""

    auto = "auto"
    tree = "tree"
    plain = "plain"
    json = "json"
    none = "none"


class Display:
    """Base of the displays of a run that a command waits for; shows nothing."""

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *ended: Any) -> None:
        return None

    def show(self, snapshot: Snapshot) -> None:
        """Display what is new in a snapshot."""


def make(world: World, progress: Progress) -> Display:
    """The display asked for, as far as standard error supports it."""
    if progress is Progress.auto:
        progress = Progress.tree if world.is_terminal(world.stderr) else Progress.plain
    if progress is Progress.none or (world.quiet and progress is not Progress.json):
        return Display()
    if progress is Progress.json:
        return JsonLines(world)
    if progress is Progress.tree and world.is_terminal(world.stderr):
        return TreeView(world)
    return Lines(world)


class TreeView(Display):
    """Draws the run in place."""

    def __init__(self, world: World) -> None:
        from rlctl.cli.display.view import Screen

        self._screen = Screen(world, world.stderr)

    def __enter__(self) -> Display:
        self._screen.__enter__()
        return self

    def __exit__(self, *ended: Any) -> None:
        self._screen.__exit__(*ended)

    def show(self, snapshot: Snapshot) -> None:
        from rlctl.cli.display.view import tree

        self._screen.show(tree(snapshot, height=self._screen.height))


class Lines(Display):
    """One line for every change of state, and a heartbeat when nothing has been said for ten seconds."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._start_s = self._said_s = world.clock()
        self._last: dict[str, Any] = {}

    def show(self, snapshot: Snapshot) -> None:
        for event in news(snapshot, self._last):
            self._tell(event)
        if self._world.clock() - self._said_s >= HEARTBEAT_S:
            said = {"event": "heartbeat", "text": heartbeat(snapshot), "throughput": snapshot.status["throughput"]}
            self._tell(said)

    def _tell(self, event: dict[str, Any]) -> None:
        self._said_s = self._world.clock()
        self._say(self._said_s - self._start_s, event)

    def _say(self, elapsed_s: float, event: dict[str, Any]) -> None:
        self._world.say(f"{clock(elapsed_s)} {plain(event['text'])}")


class JsonLines(Lines):
    """The events of `Lines` as JSON lines on standard error: standard output belongs to the answer."""

    def _say(self, elapsed_s: float, event: dict[str, Any]) -> None:
        said = {"apiVersion": API_VERSION, "elapsed_s": round(elapsed_s, 3), **event}
        self._world.complain(json.dumps(said))


def news(snapshot: Snapshot, last: dict[str, Any]) -> list[dict[str, Any]]:
    """Events since the snapshot that `last` remembers; updates `last`."""
    told = snapshot.status
    ending = snapshot.over or bool(told["stop"]["met"])  # that processes end is no news then
    quiet = ending or snapshot.unseen is not None  # or their states are unknown
    found = [] if quiet else list(_of_processes(snapshot, last))
    explained = {event["role"] for event in found}
    for role, wanted in [] if quiet else snapshot.state.replicas.items():
        now = f"{snapshot.running(role)}/{wanted}"
        if last.get(f"ready {role}") != now:
            last[f"ready {role}"] = now
            if role not in explained:
                found.append({"event": "role", "role": role, "ready": now, "text": f"{role} {now} running"})
    fresh = snapshot.answered or snapshot.over  # else an earlier manager may have stored it
    if fresh and told["resumed"] and last.get("resumed") != told["resumed"]:
        last["resumed"] = told["resumed"]
        found.append({"event": "resumed", "resumed": told["resumed"], "text": str(told["resumed"]["text"])})
    for evaluation in [told["evaluation"], *other_modes(told)] if fresh and told["evaluation"] else []:
        if last.get(f"evaluation {evaluation['mode']}") != evaluation:
            last[f"evaluation {evaluation['mode']}"] = evaluation
            text = f"evaluation {evaluation_text(evaluation)}"
            found.append({"event": "evaluation", "evaluation": evaluation, "text": text})
    problems = [] if snapshot.over else [*snapshot.target_problems(), *told["problems"]]
    for problem in problems:
        kind = re.sub(r"[0-9.e+-]+ (s|%|a second)", "", problem["text"])  # the same problem a second later is no news
        if kind not in last.setdefault("problems", set()):
            last["problems"].add(kind)
            hint = f"; next: {problem['next']}" if problem.get("next") else ""
            found.append({"event": "problem", "problem": problem, "text": f"problem: {problem['text']}{hint}"})
    if last.get("phase") != snapshot.phase:
        last["phase"] = snapshot.phase
        verdict = headline(snapshot)
        text = f"{snapshot.state.run} {snapshot.phase}"
        found.append({"event": "phase", "phase": snapshot.phase, "verdict": verdict, "text": text})
    return found


def _of_processes(snapshot: Snapshot, last: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for process in snapshot.processes:
        name = label(process)
        state = process.state if process.state in ("backoff", "exited", "failed") else ""
        known = last.get(name, ("", process.restarts, False))
        # a process that has just exited is mostly on its way to another state, which says more
        passing = process.state == "exited" and not known[2] and not snapshot.over
        last[name] = (known[0] if passing else state, process.restarts, process.state == "exited")
        why = process.reason or process.trouble
        reason = f": {why}" if why else ""
        if state and known[0] != state and not passing:
            text = process.reason if process.count > 1 and process.reason else f"{name} {state}{reason}"
        elif process.restarts > known[1] and not state:
            text = f"{name} was restarted{reason}"
        else:
            continue
        yield {"event": "process", "process": name, "role": process.role, "state": process.state, "text": text}


def heartbeat(snapshot: Snapshot) -> str:
    """One line with phase, rates and verdict of a live run, and which process the others wait for."""
    told = snapshot.status
    if snapshot.phase != "running":
        return f"{snapshot.phase}; waiting for {snapshot.slowest or 'the first experience'}"
    measured = number(told["evaluation"]["mean"]) if told["evaluation"] else "-"
    parts = [
        f"{count(told['throughput']['env_steps_per_s'])} env steps/s",
        f"{count(told['totals']['env_steps'])} env steps",
        f"return {measured}",
        f"lag {number(told['lag']['mean'])}",
        told["verdict"]["text"],
    ]
    if snapshot.slowest:
        parts.append(f"slowest: {snapshot.slowest}")
    return ", ".join(parts)
