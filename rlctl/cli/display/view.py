"""Live view of a run: a tree that is drawn again and again in place."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from rlctl.cli.context import World
from rlctl.cli.display.report import (
    evaluation_text,
    headline,
    other_modes,
    ready_of,
    role_state,
    shares,
    steps_are_missing,
)
from rlctl.cli.run.problems import label
from rlctl.cli.run.snapshot import Snapshot
from rlctl.cli.text import clock, count, number, plain, sparkline, whole

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

_MARKS = {"running": ("●", "green"), "starting": ("◌", "yellow"), "stopping": ("◌", "yellow"), "stopped": ("○", "dim")}
_NOT_WRONG = ("running", "stopped", "unknown")  # unknown: one problem says why, for all


class Screen:
    """Area of the terminal that is redrawn in place; `live` is False where there is no terminal."""

    def __init__(self, world: World, stream: TextIO) -> None:
        unwanted = world.as_json if stream is world.stdout else world.quiet
        self.live = world.is_terminal(stream) and not unwanted
        self._live: Any = None
        if self.live:
            from rich.console import Console
            from rich.live import Live

            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")  # a terminal may not be UTF-8
            console = Console(
                file=stream, width=world.width, no_color=bool(world.environ.get("NO_COLOR")), highlight=False
            )
            self._live = Live(
                console=console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
                vertical_overflow="ellipsis",
            )

    @property
    def height(self) -> int:
        """Current number of lines of the terminal."""
        return 24 if self._live is None else int(self._live.console.height)

    def __enter__(self) -> Screen:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *ended: Any) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, content: RenderableType | Sequence[str]) -> None:
        """Replace what is shown: lines of text, or anything that rich can draw."""
        if self._live is None:
            return
        if isinstance(content, (list, tuple)):
            from rich.text import Text

            content = Text.from_ansi("\n".join(content), no_wrap=True, overflow="ellipsis")
        self._live.update(content, refresh=True)


def tree(snapshot: Snapshot, *, height: int = 24) -> RenderableType:
    """Roles with their states, then speed, return, lag, the verdict and problems; at least 24 lines high."""
    from rich.console import Group
    from rich.text import Text
    from rich.tree import Tree

    state, told = snapshot.state, snapshot.status
    top = Text(no_wrap=True, overflow="ellipsis")
    top.append(state.run, "bold")
    top.append(f"  {snapshot.phase}  {clock(told['wall_s'])}  on {snapshot.where or state.target}  {state.uid[:8]}")
    roles = Tree(top, guide_style="dim")
    room = max(2, height - 22)
    states = {role: role_state(snapshot, role) for role in state.replicas}
    for role, wanted in state.replicas.items():
        branch = roles.add(_role(snapshot, role, wanted, states))
        wrong = [member for member in snapshot.members(role) if member.state not in _NOT_WRONG][:room]
        room -= len(wrong)
        for process in wrong:
            reason = f"  {plain(process.reason)}" if process.reason else ""
            branch.add(_line(f"{label(process)} {process.state}{reason}", "yellow"))
    rows = [_line(f"{name:<11} {value}") for name, value in _measures(snapshot)]
    verdict = _line(f"{'verdict':<11} ")
    verdict.append(plain(headline(snapshot)), "bold")
    rows.append(verdict)
    if snapshot.phase == "running" and not snapshot.ending:
        rows.append(_line(f"{'':<11} {shares(snapshot)}", "dim"))
        if told["verdict"]["suggest"]:
            rows.append(_line(f"{'':<11} next: {told['verdict']['suggest']}", "dim"))
    for problem in snapshot.problems()[: 2 + room]:
        rows.append(_line(f"{'problem':<11} {plain(problem['text'])}", "red"))
        if problem.get("next"):
            rows.append(_line(f"{'':<11} next: {plain(problem['next'])}", "dim"))
    return Group(roles, Text(), *rows, _line("Ctrl-C leaves; the run goes on", "dim"))


def _role(snapshot: Snapshot, role: str, wanted: int, states: Mapping[str, str]) -> Text:
    ready, what = ready_of(snapshot, role, wanted), states[role]
    width = min(30, max(map(len, states.values())))
    mark, style = _MARKS.get(what, ("▲", "yellow"))
    line = _line("")
    line.append(mark, style)
    line.append(f" {role:<10} {ready:>7}  {what:<{width}}  ")
    line.append(_said(snapshot, role), "dim")
    return line


def _said(snapshot: Snapshot, role: str) -> str:
    told = snapshot.status
    rate, totals = told["throughput"], told["totals"]
    if not told["roles"].get(role):
        return ""
    if role == "actor":
        return f"{count(rate['env_steps_per_s'])} env steps/s"
    if role == "learner":
        return f"{number(rate['updates_per_s'])} updates/s, {count(rate['consumed_steps_per_s'])} steps/s"
    if role == "modelpool":
        versions = [entry["ref"]["version"] for entry in told["policies"].values() if entry.get("ref")]
        return f"version {max(versions)}" if versions else ""
    if role == "evaluator" and told["evaluation"]:
        return f"version {(told['evaluation'].get('ref') or {}).get('version', '-')} measured"
    if role == "manager" and told["checkpoint"]:
        return f"generation {told['checkpoint']['number']} at {count(totals['consumed_steps'])} steps"
    return ""


def _measures(snapshot: Snapshot) -> list[tuple[str, str]]:
    told = snapshot.status
    rate, totals, lag = told["throughput"], told["totals"], told["lag"]
    steps = "" if steps_are_missing(totals) else f"{whole(totals['env_steps'])} env steps  "
    goal = told["stop"]["conditions"].get("eval_return")
    curve = sparkline([point[2] for point in told["history"]], 40)
    returns = evaluation_text(told["evaluation"]) if told["evaluation"] else "not evaluated yet"
    not_evaluated = told["stop"].get("not_evaluated")
    train = told["train_return"]
    return [
        (
            "throughput",
            f"{count(rate['env_steps_per_s'])} env steps/s  {count(rate['frames_per_s'])} frames/s  "
            f"{count(rate['consumed_steps_per_s'])} consumed steps/s",
        ),
        ("so far", f"{steps}{whole(totals['updates'])} updates"),
        ("return", returns + (f"  goal {number(goal)}" if goal is not None else "")),
        *[("", evaluation_text(one)) for one in other_modes(told)],
        *([("", plain(not_evaluated))] if not_evaluated else []),
        *([("", curve)] if curve else []),
        ("training", f"{number(train['mean'])} over {train['episodes']} episodes" if train else "no episode yet"),
        (
            "lag",
            "-"
            if lag["mean"] is None
            else f"mean {number(lag['mean'])}  p95 {number(lag['p95'])}  max {number(lag['max'])} versions",
        ),
    ]


def _line(text: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(text, style=style, no_wrap=True, overflow="ellipsis")
