"""`rlctl wait`: until a run is ready, finished, gone, or has got so far."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from rlctl.cli.apply.ready import RunFailed
from rlctl.cli.context import World
from rlctl.cli.options import (
    RunArgument,
    RunOption,
    Target,
    complete_condition,
    verb,
)
from rlctl.cli.run.snapshot import AWAY_S, Observer, Snapshot
from rlctl.cli.run.target import find, look_up, one_name, wanted_run
from rlctl.cli.text import clock, number, span
from rlctl.errors import TimedOut, UsageError
from rlctl.waiting import HEARTBEAT_S

_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt,
}  # fmt: skip
_COUNTERS = {
    "steps": "env_steps", "env_steps": "env_steps", "frames": "frames", "consumed_steps": "consumed_steps",
    "updates": "updates", "episodes": "episodes",
}  # fmt: skip
_WORDS = ("ready", "finished", "deleted")


@dataclass(frozen=True, slots=True)
class Condition:
    """Condition of `wait`: a word, or a value compared with a number."""

    text: str
    name: str
    sign: str = ""
    goal: float = 0.0

    def value(self, snapshot: Snapshot) -> float | None:
        """Present value of the compared quantity; None before it is known, or without a comparison."""
        if not self.sign:
            return None
        told: Mapping[str, Any] = snapshot.status
        if self.name == "return":
            mean = None if told["evaluation"] is None else told["evaluation"]["mean"]
            return None if mean is None else float(mean)
        if told["time"] is None:
            return None
        return float(told["totals"][_COUNTERS[self.name]])

    def met(self, snapshot: Snapshot) -> bool:
        if self.name == "ready":
            return snapshot.ready
        if self.name == "finished":
            return snapshot.phase == "finished"
        value = self.value(snapshot)
        return value is not None and _COMPARE[self.sign](value, self.goal)


def parse(text: str) -> Condition:
    """Parse a condition: `ready`, `finished`, `deleted`, `steps=1e6` (reached), `return>=475`.

    Raises:
        UsageError: none of these.
    """
    if text in _WORDS:
        return Condition(text, text)
    parts = re.fullmatch(r"([a-z_]+)\s*(>=|<=|>|<|=)\s*(\S+)", text)
    if parts and (parts[1] == "return" or parts[1] in _COUNTERS):
        try:
            goal = float(parts[3])
        except ValueError:
            raise UsageError(f"--for {text}: {parts[3]!r} is not a number") from None
        if goal == goal:
            return Condition(text, parts[1], ">=" if parts[2] == "=" else parts[2], goal)
    if parts and parts[1] == "rows":
        hint = f"consumed_steps{parts[2]}{parts[3]}: agent steps that the present weights were learned from"
        raise UsageError(f"--for {text}: rows are consumed_steps since rlctl 0.2", hint=hint)
    names = ", ".join(_COUNTERS)
    raise UsageError(
        f"--for {text}: not a condition",
        hint=f"one of {', '.join(_WORDS)}, or a number reached, as in steps=1e6 or return>=475 ({names})",
    )


@verb("namespace", "context")
def wait(
    world: World,
    run: RunArgument = None,
    condition: Annotated[
        str,
        typer.Option(
            "--for",
            metavar="CONDITION",
            autocompletion=complete_condition,
            help="ready, finished, deleted, steps=1e6, consumed_steps=1e6, updates=1000, return>=475.",
        ),
    ] = "finished",
    timeout: Annotated[str, typer.Option("--timeout", metavar="TIME", help="Exit 6 after so long.")] = "1h",
    run_option: RunOption = None,
    target: Target = None,
) -> int:
    """Wait until a condition holds.

    Exit 0 when it does, 1 when it cannot any more, 6 when the time is up, 7 when the run failed. ready: every
    wanted replica runs and has reported since it started. return: the mean of the newest evaluation; refused where
    an environment has several seats, because one model plays them all and the return of one says nothing.
    consumed_steps and updates count what the present weights were learned from, as stop.agent_steps does: they go back
    when a learner dies, by what it learned since its newest generation. steps, which is short for env_steps, and
    episodes count all that was ever played. A target that goes away meanwhile is asked again for 5 minutes.
    """  # fmt: skip
    wanted = parse(condition)
    timeout_s = span(timeout, "--timeout")
    name = wanted_run(world, one_name(run, run_option))
    if name is not None and wanted.name == "deleted":
        backend, state = look_up(world, name, target)
        if state is None:
            return _answer(world, name, wanted, None, met=True, waited_s=0.0)
    else:
        backend, state = find(world, name, target)
        name = state.run
    start_s = said_s = world.clock()
    observer, away = Observer(world, backend, name), False
    while True:
        snapshot = observer.look()
        waited_s = world.clock() - start_s
        if snapshot is None:
            return _answer(world, name, wanted, None, met=wanted.name == "deleted", waited_s=waited_s)
        if wanted.name == "return":
            _require_measurable(wanted, snapshot)
        if wanted.met(snapshot):
            return _answer(world, name, wanted, snapshot, met=True, waited_s=waited_s)
        if wanted.name != "deleted":
            if snapshot.phase == "failed":
                raise RunFailed(snapshot)
            if snapshot.over:
                return _answer(world, name, wanted, snapshot, met=False, waited_s=waited_s)
        if waited_s >= timeout_s:
            raise TimedOut(
                f"{name}: {wanted.text} does not hold after {timeout}{_stands(wanted, snapshot)}{_slowest(snapshot)}",
                hint=f"rlctl status {name}",
                objects=(name,),
            )
        if observer.away is not None and not away:
            world.say(f"{clock(waited_s)} {observer.away.message}; asked again for {AWAY_S:g} s at most")
        away = observer.away is not None
        if world.clock() - said_s >= HEARTBEAT_S:
            said_s = world.clock()
            stands = f"{_stands(wanted, snapshot)}, {snapshot.phase}{_slowest(snapshot)}"
            world.say(f"{clock(waited_s)} waiting for {wanted.text}{stands}")
        world.sleep(min(backend.poll_every_s, max(0.0, timeout_s - waited_s)))


def _slowest(snapshot: Snapshot) -> str:
    return f"; slowest: {snapshot.slowest}" if snapshot.slowest else ""


def _require_measurable(wanted: Condition, snapshot: Snapshot) -> None:
    """Require that the return can be waited for.

    Raises:
        UsageError: the environment has several seats.
    """
    if (seats := snapshot.seats) > 1:
        raise UsageError(
            f"--for {wanted.text} cannot be judged: the environment of {snapshot.state.run} has {seats} seats, and an "
            "evaluation has one model on all of them",
            hint="wait for consumed_steps=N or updates=N",
            objects=(snapshot.state.run,),
        )


def _stands(wanted: Condition, snapshot: Snapshot) -> str:
    if not wanted.sign:
        return ""
    return f" (now {number(wanted.value(snapshot))})"


def _answer(world: World, run: str, wanted: Condition, snapshot: Snapshot | None, *, met: bool, waited_s: float) -> int:
    value = None if snapshot is None else wanted.value(snapshot)
    if met:
        world.data(f"{run}: {wanted.text}" + ("" if value is None else f" (now {number(value)})"))
    else:
        phase = "gone" if snapshot is None else snapshot.phase
        world.data(f"{run}: {wanted.text} cannot hold any more: the run is {phase}")
    world.document({"run": run, "condition": wanted.text, "met": met, "value": value, "waited_s": round(waited_s, 3)})
    return int(not met)
