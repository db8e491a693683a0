"""The supervisor's event listener of one run: restarts dead processes, or ends the run and records why.

Run by supervisord as `python -m rlctl.backends.local.process.watch --root ROOT --sockets FOLDER`. Events only wake it:
it then polls all processes, so that an event lost or seen twice, or a kill of itself, changes nothing. Its standard
output belongs to the protocol, its standard error goes to logs/watch.log.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from rlctl.backends.base import Failure
from rlctl.backends.files import read_json, to_json, write_at_last, write_changed
from rlctl.backends.local.names import is_role, shown
from rlctl.backends.local.proc import boot_time, started
from rlctl.backends.local.process.causes import DeathReport, describe, oom_kills, startup_s
from rlctl.backends.local.process.restart_policy import Death, GiveUp, Observation, Restart, RestartPolicy
from rlctl.backends.local.process.stopping import signal_group, stop_in_order
from rlctl.backends.local.process.supervisord import BAD_NAME, NOT_TRIED, Child, Supervisor
from rlctl.backends.local.state import run_state
from rlctl.backends.local.state.places import SOCKET, clear_sockets
from rlctl.errors import BackendUnreachable, RlctlError
from rlctl.spec.layout import Layout

LONGEST_WAIT_S = 5.0
RETRY_S = 0.2
GATHER_S, GATHER_AT_MOST_S = 0.03, 0.3
"""Seconds in which further events are gathered, after each one and in all: a hundred stopped processes send a hundred,
and one poll serves them all."""
_STOPPED_STATES = ("STOPPED", "STOPPING")


class Watch:
    """The restart policy applied to the processes of one run."""

    def __init__(
        self, layout: Layout, supervisor: Supervisor, sockets: Path, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._layout = layout
        self._sockets = sockets
        self._supervisor = supervisor
        self._clock = clock
        self._policy: RestartPolicy[DeathReport] = RestartPolicy()
        self._reasons: dict[str, str] = {}
        self._troubled: set[str] = set()
        self._oom_kills = oom_kills()
        self._write_end: Callable[[], None] | None = None
        with suppress(RlctlError, KeyError, TypeError, ValueError):  # without it, counts start anew
            stored = read_json(run_state.watch_file(layout), "restarts") or {}
            self._policy.restore(stored, clock())
            self._reasons = {name: str(values["reason"]) for name, values in stored.items()}

    def look(self) -> bool:
        """Poll all processes, judge deaths, start those that are due; returns False once the run has ended.

        Raises:
            BackendUnreachable: the supervisor does not answer.
        """
        # interrupted while ending the run
        if self._write_end is not None or run_state.read_end(self._layout) is not None:
            return self._end()
        now = self._clock()
        children = {name: child for name, child in self._supervisor.children().items() if is_role(name)}
        deaths = self._policy.observe([self._seen(child) for child in children.values()], now)
        for death in deaths:
            if not self._judge(death, children, now):
                return self._end()
        begun = self._policy.due(self._clock())
        if not self._start(begun, children, now):
            return self._end()
        if deaths or begun or self._policy.troubled(now) != self._troubled:
            self._store(now)
        return True

    def wait_s(self) -> float:
        """Seconds until the next poll, at most."""
        due = self._policy.next_due()
        return LONGEST_WAIT_S if due is None else min(LONGEST_WAIT_S, max(0.0, due - self._clock()))

    def _judge(self, death: Death, children: dict[str, Child], now: float) -> bool:
        child = children[death.name]
        kills = oom_kills()
        report = describe(
            death,
            self._layout.logs,
            started=_began(child, death.lived_s),
            error=child.error,
            out_of_memory=kills > self._oom_kills,
        )
        self._oom_kills = kills
        if death.exit_status != 0:  # an orderly end is no trouble: the reason before it stays
            self._reasons[death.name] = report.text
        verdict = self._policy.judge(death, report, now, report.error)
        match verdict:
            case Restart(delay_s):
                say(f"{report.text}; started again in {delay_s:g} s")
                return True
            case GiveUp(process, cause, short_lives):
                others = [shown(name) for name, other in children.items() if other.live and name != process]
                text = cause.text
                if short_lives > 1:
                    text += f" ({short_lives} short lives in a row: not started again)"
                if cause is not report:  # the process that ended the run is not the one to blame
                    text += f"; then {report.text}"
                say(f"given up: {text}")
                failure = Failure(shown(process), text, cause.last_lines, datetime.now(UTC), tuple(others))
                self._write_end = partial(run_state.write_failure, self._layout, failure)
        return False

    def _start(self, due: Sequence[str], children: dict[str, Child], now: float) -> bool:
        """Start processes; returns False if one of them is given up."""
        faults = self._supervisor.batch("startProcess", [(name, False) for name in due])
        for name, fault in zip(due, faults, strict=True):
            if fault is not None and fault.faultCode == BAD_NAME:  # removed
                continue
            self._policy.started(name)  # it lives, or has died again
            if fault is not None and fault.faultCode in NOT_TRIED:  # the supervisor shows its last life for ever
                child = children[name]
                children[name] = replace(child, state="FATAL", start=child.now, error=fault.faultString)
                if not self._judge(Death(name, None, 0.0, None), children, now):
                    return False
        return True

    def _seen(self, child: Child) -> Observation:
        seen = _seen(child)
        if seen.state == "stopped" or not self._policy.unsure(seen):
            return seen
        began = started(child.pid, boot_time()) or child.start
        return replace(seen, startup_s=startup_s(child.name, self._layout.logs, began))

    def _store(self, now: float) -> None:
        self._troubled = self._policy.troubled(now)
        stored = self._policy.stored(now, time.time())
        text = to_json({name: {**values, "reason": self._reasons.get(name, "")} for name, values in stored.items()})
        try:
            write_changed(run_state.watch_file(self._layout), text)
        except OSError as error:  # a full disk must not end the run
            say(f"cannot write {run_state.watch_file(self._layout)}: {error.strerror}")

    def _end(self) -> bool:
        self._record_end(lambda writing: writing())
        for name in stop_in_order(self._supervisor):
            say(f"{name} has ended")
        self._record_end(partial(write_at_last, self._layout.run))
        clear_sockets(self._sockets, keep=SOCKET)
        with _undisturbed():
            self._supervisor.shutdown()
            clear_sockets(self._sockets)
        return False

    def _record_end(self, how: Callable[[Callable[[], None]], None]) -> None:
        if self._write_end is not None:
            try:
                how(self._write_end)
            except OSError as error:
                say(f"cannot record the end of the run: {error.strerror}")


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Block SIGTERM: a supervisor that shuts down terminates us first, and then waits for us."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _seen(child: Child) -> Observation:
    if child.state in ("EXITED", "FATAL", "UNKNOWN"):
        lived_s = max(0.0, child.stop - child.start)
        return Observation(child.name, "dead", 0, lived_s, child.exit_status if child.state == "EXITED" else None)
    if child.state in _STOPPED_STATES:
        return Observation(child.name, "stopped")
    return Observation(child.name, "live", child.pid, max(0.0, child.now - child.start))


def _began(child: Child, lived_s: float) -> float:
    """Start of a dead process, unix time by the clock of its last log lines: the clock may have been set back since."""
    set_back = child.state == "EXITED" and child.stop < child.start
    return child.stop - lived_s if set_back else child.start


def say(text: str) -> None:
    with suppress(OSError):
        sys.stderr.write(f"{datetime.now(UTC).isoformat(timespec='milliseconds')} {text}\n")
        sys.stderr.flush()


class Events:
    """The listener's side of supervisor's protocol: read one event, say OK, be ready for the next."""

    def __init__(self, reader: int, writer: int) -> None:
        self._reader = reader
        self._writer = writer
        self._buffer = b""
        os.write(writer, b"READY\n")

    def wait(self, timeout_s: float) -> list[int] | None:
        """Wait for an event or the timeout; events that follow closely are included.

        Returns:
            Ids of processes that ended by themselves; None: the supervisor is gone.
        """
        ended: list[int] = []
        until: float | None = None
        while select.select([self._reader], [], [], timeout_s)[0]:
            chunk = os.read(self._reader, 65536)
            if not chunk:
                return None
            self._buffer += chunk
            while (event := self._take()) is not None:
                os.write(self._writer, b"RESULT 2\nOKREADY\n")
                header, values = event
                if header.get(b"eventname") == b"PROCESS_STATE_EXITED":
                    ended.append(int(values[b"pid"]))
            until = time.monotonic() + GATHER_AT_MOST_S if until is None else until
            timeout_s = min(GATHER_S, max(0.0, until - time.monotonic()))
            if timeout_s == 0.0:
                break
        return ended

    def _take(self) -> tuple[dict[bytes, bytes], dict[bytes, bytes]] | None:
        line, newline, rest = self._buffer.partition(b"\n")
        if not newline:
            return None
        header = _pairs(line)
        length = int(header[b"len"])
        if len(rest) < length:
            return None
        self._buffer = rest[length:]
        return header, _pairs(rest[:length])


def _pairs(line: bytes) -> dict[bytes, bytes]:
    """Parse `a:1 b:2` into {a: 1, b: 2}."""
    return {key: value for key, _, value in (word.partition(b":") for word in line.split())}


def main(arguments: Sequence[str] | None = None) -> int:
    """Watch until the run ends or the supervisor does."""
    parser = argparse.ArgumentParser(prog="rlctl-watch")
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--sockets", type=Path, required=True)
    options = parser.parse_args(arguments)
    events = Events(sys.stdin.fileno(), sys.stdout.fileno())
    watch = Watch(Layout(options.root), Supervisor(options.sockets / SOCKET), options.sockets)
    while True:
        try:
            if not watch.look():
                return 0
        except BackendUnreachable as error:  # it starts, ends, or is busy: poll again
            say(str(error))
            time.sleep(RETRY_S)
        except RlctlError as error:
            say(f"{error.message} {error.hint}")
        ended = events.wait(watch.wait_s())
        if ended is None:
            return 0
        for pid in ended:
            signal_group(pid, signal.SIGKILL)  # its orphans: simulators, workers of a vector environment


if __name__ == "__main__":
    sys.exit(main())
