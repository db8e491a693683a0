"""`python -m rlctl_agents repro FILE`: the program that `rlctl repro` runs; it plays a recorded episode again.

stdin, stdout and stderr stay the terminal's, so a `breakpoint()` in the environment works. With --json, stdout has one
JSON object, and whatever else is printed goes to stderr.
"""

from __future__ import annotations

import argparse
import bdb
import json
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rlctl_agents import envs
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
from rlctl_agents.envs.base import Env, EnvError, EnvRefused
from rlctl_agents.repro.provenance import differences, provenance
from rlctl_agents.repro.record import Chunk, Digests, Header, RecordError, Start, Step, action_leaves, steps_of, unpack
from rlctl_agents.repro.recording import PLACE, singles
from rlctl_agents.runtime.closing import closed
from rlctl_agents.runtime.logs import chain
from rlctl_agents.types.experience import Decisions

LARGEST_BYTES = 16 << 20
NO = 1
"""Exit code: the episode diverged, or cannot be played."""
SAID_EVERY_S = 2.0


@dataclass
class Replayed:
    """Outcome of an episode that was played again."""

    at: int = 0  # number of the last step
    returned: float | None = None
    raised: EnvError | None = None
    diverged: int | None = None  # number of the first answer that differs, or of the last of several of which one does
    what: str = ""  # what differs
    differs: list[str] = field(default_factory=list)  # code, packages, machine


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns its exit code: 7 the environment raised, 1 it diverged or cannot be played, 0 it ended
    as recorded, or did not raise this time, 3 the environment cannot be made.

    Args:
        arguments: after the word `repro`.
    """
    parser = argparse.ArgumentParser("rlctl_agents repro", description="Play a recorded episode again.")
    parser.add_argument("record", type=Path, metavar="FILE")
    parser.add_argument("--name", default="the episode")
    parser.add_argument("--code", type=Path, metavar="DIR")
    parser.add_argument("--pdb", action="store_true", help="where the environment fails, stay there in pdb")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quiet", action="store_true")
    options = parser.parse_args(arguments)
    telling = DebugOutput(answers(options.json), options.json, options.quiet)
    try:
        header, chunks = unpack(read(options.record))
        if not header.starts:
            raise RecordError(f"it cannot be played again: {header.why_not}")
        go_to(None if options.code is None else options.code.resolve(), telling)
        telling.note(described(options.name, header))
        outcome = play(header, chunks, telling)
        code = tell(options.name, header, outcome, telling)
    except RecordError as error:
        telling.answer(f"{options.name}: {error}", error={"code": NO, "reason": "no", "message": str(error)})
        return NO
    except (EnvError, bdb.BdbQuit, SystemExit) as error:
        if is_quit(error):
            telling.note("ended from the debugger")
            return INTERRUPTED
        if not isinstance(error, EnvRefused):
            raise
        text = f"the environment cannot be made here: {error}"
        telling.answer(f"{options.name}: {text}", error={"code": INVALID, "reason": "invalid_spec", "message": text})
        return INVALID
    except KeyboardInterrupt:
        return INTERRUPTED
    except ReaderGone:
        telling.leave()
        return NO_READER
    if outcome.raised is not None and options.pdb:
        stay_there(outcome.raised, telling)
    return code


def read(file: Path) -> bytes:
    """Read a recorded episode as it is stored.

    Raises:
        RecordError: it cannot be read, or is larger than `LARGEST_BYTES`.
    """
    try:
        with file.open("rb") as stream:
            data = stream.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise RecordError(f"it cannot be read: {error.strerror}") from error
    if len(data) > LARGEST_BYTES:
        raise RecordError(f"it is damaged: no episode is larger than {LARGEST_BYTES >> 20} MiB")
    return data


def described(name: str, header: Header) -> str:
    """Description of an episode in a sentence."""
    of = "" if header.index is None else f" of environment {header.index}"
    which = f"episode {header.episode}{of}, " if header.episode else ""
    seed = header.seeds[header.index or 0] if header.alone or header.envs == 1 else f"{header.seeds[0]} and others"
    acted = "" if header.model is None else f", version {header.model.version} of {header.model.policy}"
    kind = {"crash": "failed", "worst": "was the worst of an evaluation", "best": "was the best of an evaluation"}
    return (
        f"{name}: {which}{header.steps:,} steps of {header.env.get('id')}, seed {seed}{acted}; it {kind[header.kind]}"
    )


def play(header: Header, chunks: list[Chunk], telling: DebugOutput) -> Replayed:
    """Play an episode from the start that takes the fewest steps. One that has diverged is played on to its end: it may
    fail all the same.

    Raises:
        RecordError: the record cannot be read.
        EnvRefused: the environment cannot be made, or is another one.
    """
    for left, start in reversed(list(enumerate(header.starts))):
        outcome = EpisodeReplay(header, start, telling).run(chunks, to_the_end=not left)
        if outcome.diverged is None or not left:
            return outcome
        telling.note(
            f"diverged {place(header, outcome.diverged)}: {outcome.what}; an environment that keeps something from one "
            f"episode to the next, or draws from another generator, needs all {header.actions:,} steps since its reset"
        )
    raise AssertionError("a record without a beginning is refused before")


class EpisodeReplay:
    """An episode that is played again, from one beginning.

    Raises:
        EnvRefused: the environment cannot be made, or has other actions than it had.
    """

    def __init__(self, header: Header, start: Start, telling: DebugOutput) -> None:
        self._header, self._start, self._telling = header, start, telling
        self._seeds = [header.seeds[header.index or 0]] if header.alone else header.seeds
        self._env: Env = envs.make_of(header.env, envs=len(self._seeds), seeds=self._seeds, training=header.training)
        if action_leaves(self._env.spaces) != header.leaves or self._env.spaces.seats != header.seats:
            self._env.close()
            raise EnvRefused("it has other actions or seats than when the episode was recorded")
        self._digests = Digests(self._env.spaces, alone=header.alone)
        one = header.alone or header.envs == 1
        self._slot = 0 if one else None if header.index is None else header.index * header.seats
        """Slot with the rewards that are summed."""
        self._outcome = Replayed(returned=None if self._slot is None else 0.0)
        self._said_s = time.monotonic()

    def run(self, chunks: list[Chunk], *, to_the_end: bool) -> Replayed:
        """Play it.

        Args:
            to_the_end: go on after it has diverged.
        """
        try:
            self._run(chunks, to_the_end=to_the_end)
        except EnvError as error:
            if isinstance(error, EnvRefused) or is_quit(error):
                raise
            for cause in chain(error):
                if isinstance(cause, RecordError):
                    raise cause from None
            self._outcome.raised = error
        finally:
            with closed(self._env):
                self._outcome.differs = differences(self._header.provenance, provenance())
        return self._outcome

    def _run(self, chunks: list[Chunk], *, to_the_end: bool) -> None:
        header, start, outcome = self._header, self._start, self._outcome
        steps = steps_of(header, chunks, max(0, start.answer - 1))
        outcome.at = start.answer
        if start.generator:
            self._restore(start.generator)
        decisions = self._env.reset(self._seeds)
        known = next(steps).digest if start.answer else header.opening
        self._compare(decisions, Step(start.answer, decisions.slot, {}, known))
        for step in steps:
            if step.number > header.actions or (outcome.diverged is not None and not to_the_end):
                return
            if not np.array_equal(decisions.slot, step.slot):
                self._diverge(step.number - 1, "others wait for an action than did")
                return
            outcome.at = step.number
            decisions = self._env.step(step.slot, step.action)
            self._compare(decisions, step)
            self._count(decisions)
            if time.monotonic() - self._said_s >= SAID_EVERY_S:
                self._said_s = time.monotonic()
                reward = "" if outcome.returned is None else f", reward so far {outcome.returned:.6g}"
                self._telling.note(f"{place(header, step.number)}{reward}")

    def _restore(self, generator: str) -> None:
        """Let the reset begin the episode with the recorded state of the generator.

        Raises:
            RecordError: the text is no state of such a generator.
        """
        single = (singles(self._env) or [None])[0]
        reset = getattr(single, "reset", None)
        if single is None or reset is None:
            raise EnvRefused("it is no single environment of Gymnasium any more")

        def begin(**given: Any) -> Any:
            reset(**given)
            single.reset = reset
            try:
                single.unwrapped.np_random.bit_generator.state = json.loads(generator)
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise RecordError(f"it is damaged: its generator cannot be restored: {error}") from error
            return reset()

        single.reset = begin

    def _compare(self, decisions: Decisions, step: Step) -> None:
        """Compare an answer with the recorded one."""
        copies: list[bytes] = []
        self._digests.copy(decisions, copies)
        seen, came = self._digests.of(copies, len(copies))[0].tolist()
        if step.digest is not None and step.digest != (seen, came):
            odd = ["the observation"] * (step.digest[0] != seen) + ["reward or end"] * (step.digest[1] != came)
            self._diverge(step.number, f"{' and '.join(odd)} {'differs' if len(odd) == 1 else 'differ'}")

    def _diverge(self, at: int, what: str) -> None:
        if self._outcome.diverged is None:
            self._outcome.diverged, self._outcome.what = at, what

    def _count(self, decisions: Decisions) -> None:
        outcome, rows = self._outcome, np.flatnonzero(decisions.slot == self._slot)
        if outcome.returned is not None and rows.size:
            row = int(rows[0])
            outcome.returned = 0.0 if decisions.first[row] else outcome.returned + float(decisions.reward[row])


def place(header: Header, number: int) -> str:
    """Step of the episode, or of those before it, in words."""
    if number < header.begin:
        return f"at step {number:,} of the {header.begin:,} before the episode"
    return f"at step {number - header.begin:,} of {header.steps:,}"


def tell(name: str, header: Header, outcome: Replayed, telling: DebugOutput) -> int:
    """Report how an episode went; returns the exit code."""
    at, crash = place(header, outcome.at), header.kind == "crash"
    came = outcome.at == header.actions
    reward = "" if outcome.returned is None else f", reward {outcome.returned:.6g}"
    lines: list[str] = []
    if outcome.diverged is not None:
        why = "; ".join(outcome.differs) or (
            "code and packages are those of then, so the environment draws from something that its seed does not set: "
            "time, the random module, files, another process"
        )
        lines.append(f"{name} diverged {place(header, outcome.diverged)}: {outcome.what} ({why})")
    elif outcome.differs:
        lines.append(f"note: {'; '.join(outcome.differs)}")
    trace = ""
    if outcome.raised is not None:
        if outcome.raised.__cause__ is not None:
            trace = "".join(traceback.format_exception(outcome.raised.__cause__)).rstrip()
            lines.append(trace)
        result, code = "failed", FAILED
        then = ", where it had ended" if not crash else ", as recorded"
        if crash and (not came or bare(str(outcome.raised)) != bare(header.error)):
            then = f" ({header.error} was recorded, {place(header, header.actions)})"
        lines.append(f"{name} failed {at}{reward}{then}: {outcome.raised}")
    elif outcome.diverged is not None:
        result, code = "diverged", NO
    elif crash:
        result, code = "passed", 0
        lines.append(f"{name} did not fail {at}, as it had with: {header.error}")
    else:
        result, code = "ended", 0
        lines.append(f"{name} ended as recorded, after {header.steps:,} steps{reward}")
    telling.answer(
        "\n".join(lines), episode=name, kind=header.kind, result=result, step=outcome.at - header.begin,
        steps=header.steps, diverged=None if outcome.diverged is None else outcome.diverged - header.begin,
        what=outcome.what, differences=outcome.differs, error="" if outcome.raised is None else str(outcome.raised),
        traceback=trace, recorded_error=header.error, **{"return": outcome.returned},
    )  # fmt: skip
    return code


def bare(error: str) -> str:
    """An error of an environment without its place, which counts from the reset."""
    return PLACE.sub("", error)
