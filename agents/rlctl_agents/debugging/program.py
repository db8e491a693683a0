"""`python -m rlctl_agents debug SPEC...`: the program that `rlctl debug` runs; an IDE may start this module directly.

stdin, stdout and stderr stay the terminal's, and so do Ctrl-C and Ctrl-Z. With --json, stdout has one JSON object a
line, and all other output goes to stderr.
"""

from __future__ import annotations

import argparse
import logging
import math
import sys
import sysconfig
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import rlctl
import rlctl_agents
from rlctl.errors import SpecError
from rlctl.spec import load
from rlctl.spec.schema import Spec
from rlctl_agents.acting.rollout import LockStepBroken
from rlctl_agents.debugging.session import DebugSession, arranged
from rlctl_agents.debugging.terminal import (
    FAILED,
    INTERRUPTED,
    INVALID,
    NO_READER,
    DebugOutput,
    ReaderGone,
    answers,
    go_to,
    is_quit,
    stay_there,
)
from rlctl_agents.runtime.logs import chain
from rlctl_agents.runtime.process import UserFault
from rlctl_agents.training.trainer import Updated

SHOWN = ("policy_loss", "value_loss", "entropy", "grad_norm")
"""Metrics beside the loss that a line shows, where they exist; --json has all."""


@dataclass
class DebugAnswer(DebugOutput):
    """Answer of the command, update by update."""

    def update(self, session: DebugSession, updated: Updated) -> None:
        """Print an update."""
        (episodes, mean), trainer, stats = session.episodes(), session.trainer, updated.stats
        shown = [f"{name} {stats[name]:.4g}" for name in SHOWN if name in stats]
        shown += [f"return {mean:.4g}"] if mean is not None else []
        shown += [] if updated.finite else [f"{updated.skipped} steps without a finite gradient left out"]
        figures = "  ".join([f"loss {stats['total']:.6g}", *shown])
        self.answer(
            f"update {session.updates}  steps {trainer.consumed_steps}  {figures}",
            update=session.updates, version=trainer.version, steps=trainer.consumed_steps, episodes=episodes,
            stats={name: value if math.isfinite(value) else None for name, value in stats.items()},
            finite=updated.finite, **{"return": mean},
        )  # fmt: skip

    def summary(self, session: DebugSession) -> None:
        """Print the totals of the session."""
        episodes, mean = session.episodes()
        steps, seconds = session.trainer.consumed_steps, time.monotonic() - self.began
        of = "" if mean is None else f", mean return {mean:.4g}"
        self.answer(
            f"{session.updates} updates from {steps} agent steps, {episodes} whole episodes{of}, in {seconds:.1f} s; "
            "nothing was stored",
            summary={"updates": session.updates, "steps": steps, "episodes": episodes, "seconds": seconds},
        )


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns its exit code.

    Args:
        arguments: those after the word `debug`.
    """
    parser = argparse.ArgumentParser("rlctl_agents debug", description="All roles of a run in one process and thread.")
    parser.add_argument("specs", nargs="+", type=Path, metavar="SPEC")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE")
    parser.add_argument("--updates", type=int, default=10)
    parser.add_argument("--episodes", type=int, default=1)
    parser.add_argument("--pdb", action="store_true", help="where the code fails, stay there in pdb")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quiet", action="store_true")
    options = parser.parse_args(arguments)
    output = DebugAnswer(answers(options.json), options.json, options.quiet)
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    try:
        loaded = load(options.specs, [*options.set, "target=local"])
    except SpecError as error:
        print(*error.problems, sep="\n", file=sys.stderr)
        return INVALID
    base = loaded.base.resolve()
    code = None if loaded.spec.code is None else (base / loaded.spec.code.path).resolve()
    go_to(code, output)
    try:
        return run(loaded.spec, output, updates=options.updates, episodes=options.episodes, base=base)
    except KeyboardInterrupt:
        return INTERRUPTED
    except ReaderGone:
        output.leave()
        return NO_READER
    except (Exception, SystemExit) as error:
        return failed(error, output, code, stay=options.pdb)


def run(spec: Spec, output: DebugAnswer, *, updates: int, episodes: int, base: Path = Path()) -> int:
    """Make `updates` updates, then play `episodes` whole episodes.

    Args:
        base: folder of the spec file.
    """
    output.note("all roles in one process and one thread; no run is started, nothing is stored")
    if spec.init is not None:
        output.note(f"begins from {spec.init.run}: {', '.join(spec.init.parts) or 'all parts'}")
    for in_turn in (False, True):
        possible = arranged(spec, in_turn=in_turn)
        for note in possible.notes:
            output.note(f"note: {note}")
        session = DebugSession(possible, base)
        try:
            learn(session, output, updates, episodes)
            break
        except LockStepBroken as error:  # of the first step
            if spec.sync:
                raise UserFault(str(error)) from error
        finally:
            session.close()
    return 0


def learn(session: DebugSession, output: DebugAnswer, updates: int, episodes: int) -> None:
    """Make the updates, or fewer if `stop.agent_steps` is reached, and the evaluation; print each, and the totals."""
    limit = session.spec.stop.agent_steps or math.inf
    try:
        while session.updates < updates and session.trainer.consumed_steps < limit:
            output.update(session, session.update())
        if episodes:
            games = session.evaluate(episodes)
            mean, mode = math.fsum(games.returns) / len(games.returns), session.spec.evaluation.mode
            output.answer(
                f"evaluation  mean return {mean:.4g} of {len(games.returns)} whole episodes ({mode})",
                evaluation={"mean": mean, "mode": mode, "returns": games.returns, "lengths": games.lengths},
            )
    except KeyboardInterrupt:
        output.note("interrupted")
        output.summary(session)
        raise
    output.summary(session)


_OURS = tuple(Path(one) for package in (rlctl, rlctl_agents) for one in package.__path__)


def _is_users(filename: str, code: Path | None) -> bool:
    """True if a frame is of the user's own code: below `code` or an editable package, and none of an installed one."""
    path = Path(filename)
    if {"site-packages", "dist-packages"} & set(path.parts) or any(path.is_relative_to(one) for one in _OURS):
        return False
    if code is not None and path.is_relative_to(code):
        return True
    return path.is_absolute() and not path.is_relative_to(sysconfig.get_path("stdlib"))


def failed(error: BaseException, output: DebugAnswer, code: Path | None, *, stay: bool) -> int:
    """Report an exception: of the user's own code with all frames, another mistake of the user in a sentence.

    Args:
        code: folder of the user's code.
        stay: True to open pdb where it was raised.

    Returns:
        The exit code.
    """
    if is_quit(error):
        output.note("ended from the debugger")
        return INTERRUPTED
    frames = [frame for cause in chain(error) for frame in traceback.extract_tb(cause.__traceback__)]
    theirs = any(_is_users(one.filename, code) for one in frames)
    if isinstance(error, UserFault) and not theirs:
        exit_code = INVALID
        print(f"error: {error}", file=sys.stderr)
    else:
        exit_code = FAILED
        traceback.print_exception(error)
    if output.as_json:
        reason = {INVALID: "invalid_spec", FAILED: "workload_failed"}[exit_code]
        output.answer("", error={"code": exit_code, "reason": reason, "message": f"{type(error).__name__}: {error}"})
    if stay and exit_code == FAILED:
        stay_there(error, output)
    return exit_code
