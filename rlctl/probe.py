"""Check of a spec's environment, networks and algorithms on this machine, in a child process.

The child runs the user's own code. It may hang, crash, print and start processes: it is given a few seconds, and what
it has started is ended with it. rlctl itself never imports gymnasium or torch, and may be installed without them.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Literal

from rlctl.spec import fields
from rlctl.spec.algorithms import ActorCritic, Clipped
from rlctl.spec.problems.findings import simulator_missing
from rlctl.spec.problems.messages import Fault
from rlctl.spec.schema import Spec
from rlctl.spec.words import number, plain
from rlctl.waiting import Waiting

WITHIN_S: Final = 5.0
"""Seconds from the child's start to its reply, at most."""
MORE_WITH_TORCH_S: Final = 15.0
"""Seconds added to the timeout where torch is needed, for its import and the networks."""
_POLL_S: Final = 0.01
_MOST_BYTES: Final = 1 << 20
_MOST_CHARACTERS: Final = 600
"""Characters of a message, at most: a foreign exception may hold anything."""
_KEPT_BYTES: Final = 4096
"""Bytes kept from the end of the child's stderr."""


@dataclass(frozen=True, slots=True)
class Probed:
    """Result of a check."""

    verdict: Literal["ok", "problem", "not checked"]
    text: str  # one line: which leaf goes through which net, or why nothing is known
    faults: tuple[Fault, ...] = ()  # of the spec
    missing: tuple[Fault, ...] = ()  # packages that are not installed here
    inputs: Mapping[str, Sequence[Mapping[str, str]]] = field(default_factory=dict)  # policy -> leaf, space, net
    shard_bytes: int = 0  # of the arrays of one replay shard; 0: no replay, or not known
    draws_bytes: int = 0  # of its draws, beyond those that every shard has room for


class Probing:
    """A check in a child process, which runs in the background until its result is fetched.

    Args:
        spec: checked by `rlctl.spec.load`.
        base: folder of the spec file; `code.path` is relative to it.
        initial: `of` and `arrays` of the run's initial policy, which need torch; empty: none.
        within_s: timeout from now to the reply; MORE_WITH_TORCH_S longer where torch is needed.
        python: interpreter that the roles would run under.
        clock: seconds, monotonic.
        sleep: waits a few milliseconds.
    """

    def __init__(
        self,
        spec: Spec,
        base: Path,
        *,
        initial: Mapping[str, Any] | None = None,
        within_s: float = WITHIN_S,
        python: str = sys.executable,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._spec, self._initial = spec, dict(initial or {})
        with_torch = bool(self._initial) or _needs_torch(spec)
        within_s += MORE_WITH_TORCH_S if with_torch else 0.0
        self._within_s = within_s
        self._waiting = Waiting(within_s, clock=clock, sleep=sleep)
        self._last_words = b""
        self._files = ExitStack()
        self._child: subprocess.Popen[bytes] | None = None
        self._unable = _lacking(spec, with_torch=with_torch)
        if not self._unable:
            self._start(base, python)

    def __enter__(self) -> Probing:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._files.close()

    def answer(self) -> Probed:
        """Wait for the child until the deadline and end it; returns its result."""
        if self._child is None:
            return self._not_checked(self._unable)
        child = self._child.pid
        ended = self._waiting.until(lambda: _ended(child), _POLL_S)
        code = self.stop()
        if not ended:
            return self._not_checked(f"it took longer than {self._within_s:g} s")
        if code != 0:
            last = self._last_line()
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            return self._not_checked(f"trying it ended with {how}" + (f": {last}" if last else ""))
        self._out.seek(0)
        try:
            return self._read(json.loads(self._out.read(_MOST_BYTES)))
        except (ValueError, KeyError, TypeError):
            return self._not_checked("trying it ended without an answer")

    def stop(self) -> int:
        """Kill the child's process group; returns the child's exit code, 0 if none was started."""
        if self._child is None:
            return 0
        if self._child.returncode is None:
            # not reaped yet: its pid is still that of its process group, and of no other process
            with suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()
            self._reader.join(1.0)
        return self._child.returncode

    def _start(self, base: Path, python: str) -> None:
        code = None if self._spec.code is None else str((base / self._spec.code.path).resolve())
        environ = {**os.environ, "PYTHONUNBUFFERED": "1", **({"PYTHONPATH": code} if code else {})}
        asked = {**fields.normal(self._spec).model_dump(mode="json"), "initial": self._initial}
        try:
            self._out = self._files.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
            with tempfile.TemporaryFile() as question:
                question.write(json.dumps(asked).encode())
                question.seek(0)
                self._child = subprocess.Popen(
                    [python, "-m", "rlctl_agents", "probe", "--check"],
                    stdin=question,
                    stdout=self._out,
                    stderr=subprocess.PIPE,
                    cwd=code or "/",
                    env=environ,
                    start_new_session=True,
                )
        except OSError as error:  # of the folder of temporary files, too
            self._unable = f"no process can be started: {(error.strerror or str(error)).lower()}"
            return
        self._reader = threading.Thread(target=self._listen, args=(self._child.stderr,), daemon=True)
        self._reader.start()

    def _listen(self, stderr: IO[bytes]) -> None:
        """Drain stderr and keep its end, so that the child never blocks on a full pipe."""
        with stderr:
            while heard := os.read(stderr.fileno(), _KEPT_BYTES):
                self._last_words = (self._last_words + heard)[-_KEPT_BYTES:]

    def _last_line(self) -> str:
        lines = [line.strip() for line in self._last_words.decode("utf-8", "replace").splitlines()]
        return _one_line(next((line for line in reversed(lines) if line), ""))

    def _read(self, answer: Mapping[str, Any]) -> Probed:
        found: dict[bool, list[Fault]] = {False: [], True: []}
        for fault in answer["faults"]:
            path = fields.as_written(self._spec, tuple(str(key) for key in fault["path"]))
            found[bool(fault["missing"])].append(Fault(path, _one_line(str(fault["message"]))))
        inputs = {
            str(policy): [{key: _one_line(str(value)) for key, value in leaf.items()} for leaf in leaves]
            for policy, leaves in answer["inputs"].items()
        }
        masked = "; masks say which actions are legal" if answer.get("masked") else ""
        names = {leaf["leaf"] for leaves in inputs.values() for leaf in leaves}
        if not masked and (within := [name for name in sorted(names) if name.endswith(".action_mask")]):
            masked = f"; {within[0]} is an input like others: a mask that is obeyed comes in info"
        apart = _dropping(self._spec) if answer.get("apart") else ""
        settled = _settled(self._spec, bool(answer["continuous"]), inputs)
        text = f"{_one_line(self._spec.env.id)}: {_shown(inputs)}{masked}{apart}{settled}"
        if found[False] or found[True]:
            text = "; ".join(fault.message for fault in (*found[False], *found[True]))
        return Probed(
            "problem" if found[False] or found[True] else "ok",
            text,
            tuple(found[False]),
            tuple(found[True]),
            inputs,
            int(answer.get("shard_bytes", 0)),
            int(answer.get("draws_bytes", 0)),
        )

    def _not_checked(self, why: str) -> Probed:
        return Probed("not checked", f"{_one_line(self._spec.env.id)}: {why}")


def _needs_torch(spec: Spec) -> bool:
    """True if a network or an algorithm is a class of the user's, which is imported with torch, or a number of batches
    for the value is stated, which its network has to fit."""
    return any(
        ":" in policy.model.torso or policy.algorithm.own_class
        or getattr(policy.algorithm, "value_batches", 0) not in (0, "auto")
        for policy in (fields.normal(spec).policies or {}).values()
    )  # fmt: skip


def _lacking(spec: Spec, *, with_torch: bool) -> str:
    """Message about packages that the check needs and that are not installed here; "" when all are."""
    for package in ("rlctl_agents", "msgspec", "numpy", "gymnasium", *(["torch"] if with_torch else [])):
        if importlib.util.find_spec(package) is None:
            return f'{package} is not installed here: pip install "rlctl[local]"'
    return "; ".join(simulator_missing(spec.env.id) or ())


def _ended(pid: int) -> bool:
    """True once a child has ended; it is not reaped."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def _one_line(text: str) -> str:
    line = " ".join(plain(text).split())
    return line if len(line) <= _MOST_CHARACTERS else line[: _MOST_CHARACTERS - 3] + "..."


def _dropping(spec: Spec) -> str:
    """`; ppo drops ...`, where an algorithm learns from the newest version alone and segments do not end together."""
    policies = (fields.normal(spec).policies or {}).values()
    algorithms = (one.algorithm for one in policies)
    names = {one.name for one in algorithms if one.actors_at_once(spec.roles.actor.envs) is not None}
    return "".join(
        f"; {name} drops segments that are half made at each update, as those of all copies do not end together (seats"
        " in turn, or a vector that is not NEXT_STEP): use appo or impala"
        for name in sorted(names)
    )


_SHOWN_LEAVES: Final = 3


def _shown(inputs: Mapping[str, Sequence[Mapping[str, str]]]) -> str:
    """`obs.camera uint8 [84, 84, 3] -> nature_cnn; obs.speed float32 [2] -> mlp`"""
    parts = []
    for leaves in inputs.values():
        for net in dict.fromkeys(leaf["net"] for leaf in leaves):
            same = [f"{leaf['leaf']} {leaf['space']}" for leaf in leaves if leaf["net"] == net]
            more = f" and {len(same) - _SHOWN_LEAVES} more" if len(same) > _SHOWN_LEAVES else ""
            parts.append(f"{', '.join(same[:_SHOWN_LEAVES])}{more} -> {net}")
    return "; ".join(parts)


GRID_LR: Final = 1e-3
"""Learning rate of Adam at which PPO and APPO learn small images well: docs/algorithms/ppo.md."""


def _settled(spec: Spec, continuous: bool, inputs: Mapping[str, Sequence[Mapping[str, str]]]) -> str:
    """`; entropy_coef 0.01, epochs 10, minibatch_size 64`: resolved `auto`, preset defaults, a hint on lr."""
    left = []
    for name, policy in (fields.normal(spec).policies or {}).items():
        if brought := fields.brought(spec, name):
            told = ", ".join(f"{key} {number(value)}" for key, value in brought.items())
            left.append(f"{told} with env.preset {spec.env.preset}")
        if isinstance(algorithm := policy.algorithm, ActorCritic):
            made, nets = algorithm.settled(continuous), {leaf["net"] for leaf in inputs.get(name, ())}
            if isinstance(made, Clipped):
                made = made.sized(plain=policy.model.core == "none" and nets == {"mlp"})
            ours = [key for key, value in algorithm if value == "auto" and getattr(made, key) != "auto"]
            left.append(", ".join(f"{key} {number(getattr(made, key))}" for key in sorted(ours)))
            if isinstance(made, Clipped) and "small_cnn" in nets and made.lr == type(made)().lr:
                left.append(f"lr {number(made.lr)} is slow for small images: try {number(GRID_LR)}")
    return "".join(f"; {settings}" for settings in dict.fromkeys(left) if settings)
