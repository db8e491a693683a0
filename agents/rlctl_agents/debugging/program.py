"""`python -m rlctl_agents debug SPEC...`: what `rlctl debug` becomes; an IDE may start it itself, as this module.

stdin, stdout and stderr stay the terminal's, and so do Ctrl-C and Ctrl-Z. With --json, stdout has one JSON object a
line, and whatever else is printed goes to stderr.
"""

from __future__ import annotations

import argparse
import bdb
import json
import logging
import math
import os
import pdb
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from rlctl.errors import SpecError
from rlctl.spec import load
from rlctl.spec.schema import Spec
from rlctl_agents.acting.rollout import NotTogether
from rlctl_agents.debugging.session import DebugSession, arranged
from rlctl_agents.runtime.process import UserFault
from rlctl_agents.training.trainer import Updated

INVALID, FAILED, INTERRUPTED, NO_READER = 3, 7, 130, 141
"""Exit codes, as of rlctl: the spec, or what it names; the user's own code; Ctrl-C, or the debugger's quit; a pipe that
was closed at the other end."""
SHOWN = ("policy_loss", "value_loss", "entropy", "grad_norm")
"""Metrics of a line beside the loss, where there are such; --json has all."""


class ReaderGone(Exception):
    """The answer goes into a pipe that was closed at the other end."""


@dataclass
class Telling:
    """Lines of the answer."""

    out: TextIO
    as_json: bool
    quiet: bool
    began: float = field(default_factory=time.monotonic)

    def note(self, text: str) -> None:
        """Say something beside the answer."""
        if not self.quiet:
            self._print(text, sys.stderr)

    def answer(self, text: str, **content: Any) -> None:
        """Give a part of the answer, in words or as JSON."""
        line = json.dumps({"apiVersion": "rlctl/v1", **content}) if self.as_json else text
        self._print(line, self.out)

    @staticmethod
    def _print(text: str, to: TextIO) -> None:
        try:
            print(text, file=to, flush=True)
        except BrokenPipeError:
            raise ReaderGone from None

    def update(self, session: DebugSession, updated: Updated) -> None:
        """Tell an update."""
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
        """Tell what was done."""
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
        arguments: after the word `debug`.
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
    out = sys.stdout
    if options.json:
        out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
    telling = Telling(out, options.json, options.quiet)
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    try:
        loaded = load(options.specs, [*options.set, "target=local"])
    except SpecError as error:
        print(*error.problems, sep="\n", file=sys.stderr)
        return INVALID
    base = loaded.base.resolve()
    code = None if loaded.spec.code is None else (base / loaded.spec.code.path).resolve()
    go_to(code)
    try:
        return run(loaded.spec, telling, updates=options.updates, episodes=options.episodes, base=base)
    except KeyboardInterrupt:
        return INTERRUPTED
    except ReaderGone:
        for stream in (out, sys.stderr):  # for what is still to be flushed
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return NO_READER
    except (Exception, SystemExit) as error:
        return failed(error, telling, code, stay=options.pdb)


def run(spec: Spec, telling: Telling, *, updates: int, episodes: int, base: Path = Path()) -> int:
    """Make so many updates, then play so many whole episodes.

    Args:
        base: folder of the spec file.
    """
    telling.note("all roles in one process and one thread; no run is started, nothing is stored")
    if spec.init is not None:
        telling.note(f"begins from {spec.init.run}: {', '.join(spec.init.parts) or 'all parts'}")
    for in_turn in (False, True):
        possible = arranged(spec, in_turn=in_turn)
        for note in possible.notes:
            telling.note(f"note: {note}")
        session = DebugSession(possible, base)
        try:
            learn(session, telling, updates, episodes)
            break
        except NotTogether as error:  # of the first step
            if spec.sync:
                raise UserFault(str(error)) from error
        finally:
            session.close()
    return 0


def learn(session: DebugSession, telling: Telling, updates: int, episodes: int) -> None:
    """Make the updates, or fewer where `stop.agent_steps` is reached, and the evaluation; tell each, and the sum."""
    limit = session.spec.stop.agent_steps or math.inf
    try:
        while session.updates < updates and session.trainer.consumed_steps < limit:
            telling.update(session, session.update())
        if episodes:
            games = session.evaluate(episodes)
            mean, mode = math.fsum(games.returns) / len(games.returns), session.spec.evaluation.mode
            telling.answer(
                f"evaluation  mean return {mean:.4g} of {len(games.returns)} whole episodes ({mode})",
                evaluation={"mean": mean, "mode": mode, "returns": games.returns, "lengths": games.lengths},
            )
    except KeyboardInterrupt:
        telling.note("interrupted")
        telling.summary(session)
        raise
    telling.summary(session)


def go_to(code: Path | None) -> None:
    """Stand where actors and learners of this machine stand: in `code.path`, with its modules, and no others of the
    user's."""
    if sys.path[:1] == [os.getcwd()]:  # as `python -m` has put it
        del sys.path[0]
    if code is not None:
        sys.path.insert(0, str(code))
        os.environ["PYTHONPATH"] = str(code)  # of what an environment starts
        os.chdir(code)


def failed(error: BaseException, telling: Telling, code: Path | None, *, stay: bool) -> int:
    """Tell an exception: of the user's own code with all frames, another fault of theirs in a sentence.

    Args:
        code: folder of the user's code.
        stay: open pdb where it was raised.

    Returns:
        The exit code.
    """
    causes = list(chain(error))
    frames = [frame for cause in causes for frame in traceback.extract_tb(cause.__traceback__)]
    quits = isinstance(causes[-1], SystemExit) and any(one.filename == pdb.__file__ for one in frames)
    if quits or any(isinstance(cause, bdb.BdbQuit) for cause in causes):
        telling.note("ended from the debugger")
        return INTERRUPTED
    theirs = code is not None and any(Path(one.filename).is_relative_to(code) for one in frames)
    if isinstance(error, UserFault) and not theirs:
        exit_code = INVALID
        print(f"error: {error}", file=sys.stderr)
    else:
        exit_code = FAILED
        traceback.print_exception(error)
    if telling.as_json:
        reason = {INVALID: "invalid_spec", FAILED: "workload_failed"}[exit_code]
        telling.answer("", error={"code": exit_code, "reason": reason, "message": f"{type(error).__name__}: {error}"})
    if stay and exit_code == FAILED:
        if sys.stdin is None:
            telling.note("standard input is closed: pdb cannot ask")
        else:
            pdb.post_mortem(causes[-1].__traceback__)
    return exit_code


def chain(error: BaseException) -> Iterator[BaseException]:
    """An error, and those that it comes of; the first of all last."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__
