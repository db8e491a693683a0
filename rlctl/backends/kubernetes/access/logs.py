"""Log records of the processes of a run: from the manager, which keeps them beyond the life of a pod, and, through the
API server, from pods that could not send theirs.
"""

from __future__ import annotations

import heapq
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlencode

from rlctl.backends.base import LogQuery, LogRecord, RunState
from rlctl.backends.kubernetes.access import control, listing
from rlctl.backends.kubernetes.api.interface import Api, Object
from rlctl.backends.kubernetes.diagnose import explain
from rlctl.backends.kubernetes.diagnose.causes.base import container_statuses, moment, name_of, restarts
from rlctl.backends.kubernetes.run_state.inventory import role_of
from rlctl.backends.records.entries import TIMESTAMP, Parser, entries, parted
from rlctl.backends.records.filtering import Filter
from rlctl.errors import RlctlError
from rlctl.spec import names

MOST_STREAMS: Final = 50
"""Pods read at once, at most; a note tells of those beyond."""
STREAM_LINES: Final = 5000
"""Lines of one pod; the manager keeps more."""
POD_S: Final = 5.0
"""Seconds that one pod has to answer: its node may be gone."""
SEARCH_S: Final = 40.0
"""Timeout of a search in seconds: the manager gives it 25."""
POLL_S: Final = 1.0
_PODS_EVERY: Final = 5
"""Polls between two listings of pods, with a check whether the run is live."""
_REMEMBERED: Final = 50_000
_PODS_REMEMBERED: Final = 2 * MOST_STREAMS
_ID = re.compile(rb'"id": ?"([a-z]+/[0-9]+)"')
_BOOT = re.compile(rb'"boot": ?"[^"]')
_GONE = re.compile(r"unable to retrieve container logs for \S+$|failed to try resolving symlinks in path ")
"""Messages that a node writes in place of a log that it no longer has."""

Warn = Callable[[str], object]


def read(
    api: Api, state: RunState, query: LogQuery, *, warn: Warn = lambda text: None,
    clock: Callable[[], float] = time.time, wait: Callable[[float], object] = time.sleep,
) -> Iterator[LogRecord]:  # fmt: skip
    """All records that match a query, by time; following ends with the run.

    Args:
        warn: called with a sentence about everything that could not be read, or was left out.
        clock: unix time.
        wait: pauses for the given seconds, while following.

    Raises:
        UsageError: `grep` or `level` of the query is wrong.
    """
    reader = _Reader(api, state, query, warn, clock)
    yield from reader.all()
    if query.follow:
        yield from reader.follow(wait)


@dataclass(frozen=True, slots=True)
class _Answer:
    """One page of the manager's reply."""

    lines: tuple[str, ...]
    page: str


class _Reader:
    def __init__(self, api: Api, state: RunState, query: LogQuery, warn: Warn, clock: Callable[[], float]) -> None:
        self._api, self._state, self._query, self._warn, self._clock = api, state, query, warn, clock
        self._wanted = Filter(query)
        self._next, self._boot = 0, ""  # of the manager: number of its newest line that was read, and its boot
        self._answers = state.managed
        self._said: set[str] = set()
        self._seen: dict[bytes, None] = {}  # records that came from pods, newest last
        self._read: dict[str, tuple[int, list[int]]] = {}  # pod -> its restarts, and line hashes of the last poll

    def all(self) -> Iterator[LogRecord]:
        """Records written until now."""
        first = None
        if self._answers:
            first = self._asked(self._question())
        else:
            again = "" if self._state.phase == "finished" else ", and rlctl up SPEC shows them again"
            self._tell(f"run {self._state.run} is {self._state.phase}: its logs lie on its volume{again}")
        spoken = self._of_pods(previous=self._query.previous)
        merged = heapq.merge(self._stored(first), spoken, key=lambda record: record.time)
        yield from merged if self._query.tail is None else deque(merged, maxlen=self._query.tail)

    def follow(self, wait: Callable[[float], object]) -> Iterator[LogRecord]:
        """Records written from now on, until the run is over or the query's `until` has passed."""
        polls = 0
        until = self._query.until
        while True:
            polls += 1
            look = polls % _PODS_EVERY == 0
            over = (look and not self._live()) or (until is not None and self._clock() > until.timestamp())
            fresh = list(self._newer())
            if look or not self._answers:
                fresh += self._of_pods(previous=False)
            yield from sorted(fresh, key=lambda record: record.time)
            if over:
                return
            wait(POLL_S)

    def _live(self) -> bool:
        try:
            found = listing.find(self._api, self._state.run)
        except RlctlError:
            return True  # the next poll tells
        return found is not None and found.phase == "running"

    # from the manager

    def _question(self) -> dict[str, str]:
        query = self._query
        asked = {
            "process": _process(query),
            "since": query.since.astimezone(UTC).isoformat() if query.since else "",
            "until": query.until.astimezone(UTC).isoformat() if query.until else "",
            "grep": query.grep or "",
            "level": {"WARN": "WARNING"}.get((query.level or "").upper(), query.level or ""),
            "tail": "" if query.tail is None else str(query.tail),
            "previous": "1" if query.previous else "",
        }
        return {name: value for name, value in asked.items() if value}

    def _stored(self, answer: _Answer | None) -> Iterator[LogRecord]:
        asked = self._question()
        while answer is not None:
            yield from self._records(answer.lines, "?")
            if not answer.page:
                return
            answer = self._asked({**asked, "page": answer.page})

    def _newer(self) -> Iterator[LogRecord]:
        asked = {"after": str(self._next), "process": _process(self._query)}
        answer = self._asked({name: value for name, value in asked.items() if value})
        if answer is not None:
            yield from self._records(answer.lines, "?")

    def _asked(self, question: dict[str, str]) -> _Answer | None:
        path = "/logs" + (f"?{urlencode(question)}" if question else "")
        try:
            told = control.ask(self._api, self._state.run, "GET", path, timeout_s=SEARCH_S)
        except RlctlError as error:
            self._tell(f"{error.message}; this is only what live pods still have")
            self._answers = False
            return None
        self._answers = True
        if not isinstance(told, dict):
            told = {}
        newest, before, self._boot = int(told.get("next") or 0), self._boot, str(told.get("boot") or "")
        if "after" in question and before not in ("", self._boot):  # another manager counts from its own first line
            return self._asked({**question, "after": "0"})
        self._next = newest if "page" not in question else self._next
        if lost := told.get("lost"):
            self._tell(f"{lost} lines were lost before the manager could store them")
        return _Answer(tuple(map(str, told.get("lines") or ())), str(told.get("page") or ""))

    def _records(self, lines: Iterable[str], process: str) -> Iterator[LogRecord]:
        return self._parsed(list(lines), process, lambda: datetime.fromtimestamp(self._clock(), UTC))

    # from pods

    def _of_pods(self, *, previous: bool) -> list[LogRecord]:
        """Records of pods whose logs may not have reached the manager, by time."""
        try:
            pods = self._pods(previous)
        except RlctlError as error:
            self._tell(f"pods cannot be listed: {error.message}")
            return []
        if len(pods) > MOST_STREAMS:
            self._tell(
                f"reading {MOST_STREAMS} of {len(pods)} pods that are not well; name one role, as in rlctl logs learner"
            )
        found: list[LogRecord] = []
        silent = set[str]()  # nodes that are gone: each of their pods would take POD_S
        for pod in pods[:MOST_STREAMS]:
            node = str((pod.get("spec") or {}).get("nodeName", ""))
            if node in silent:
                continue
            records = self._of_pod(pod, previous)
            if records is not None:
                found += records
            elif node:
                silent.add(node)
                self._tell(f"node {node} does not answer: its other pods are left out")
        return sorted(found, key=lambda record: record.time)

    def _pods(self, previous: bool) -> list[Object]:
        """Pods that have started and are not healthy; without a reachable manager, all that have started."""
        role = self._query.role
        if self._answers:
            pods = listing.unwell(self._api, self._state, role)
        else:
            pods = self._api.list(
                "Pod", labels=names.selector(self._state.run, role or ""), most=2 * MOST_STREAMS
            ).items  # fmt: skip
        pods = [pod for pod in pods if _has_spoken(pod, previous)]
        if self._query.index is not None and role in names.STATEFUL:
            pods = [pod for pod in pods if explain.ordinal(pod) == self._query.index]
        return pods

    def _of_pod(self, pod: Object, previous: bool) -> list[LogRecord] | None:
        """Records of one pod; None: there was no answer."""
        name = name_of(pod)
        query = self._query
        filtered = any((query.grep, query.level, query.since, query.until, query.index is not None, query.follow))
        tail = STREAM_LINES if filtered or query.tail is None else min(STREAM_LINES, query.tail)
        try:
            lines = list(self._api.pod_log(name, previous=previous, tail=tail, within_s=POD_S))
        except RlctlError as error:
            self._tell(f"pod {name}: {error.message}")
            return [] if getattr(error, "status", 0) else None
        if len(lines) == STREAM_LINES:
            self._tell(f"pod {name}: only its last {STREAM_LINES} lines")
        lines = [line for line in lines if not _GONE.match(line)]
        known = self._known(name, restarts(pod), lines) if query.follow else 0
        begun = moment((pod.get("status") or {}).get("startTime")) or datetime.fromtimestamp(self._clock(), UTC)
        role = role_of(pod)
        parts = (part for line in lines for part in parted(line.encode()))
        ids = (found[1].decode() for part in parts if part.startswith(b'{"') and (found := _ID.search(part)))
        process = f"{role}/{explain.ordinal(pod)}" if role in names.STATEFUL else next(ids, name)
        records = list(self._parsed(lines, process, lambda: begun, known))
        self._remember(lines)
        return records

    def _known(self, pod: str, life: int, lines: Sequence[str]) -> int:
        """Number of first lines that the last poll had already; this one may begin later in the log."""
        now = [hash(line) for line in lines]
        before_life, before = self._read.pop(pod, (life, []))
        before = before if before_life == life else []
        starts = (at for at, line in enumerate(before) if now and line == now[0])
        start = next((at for at in starts if before[at : at + len(now)] == now[: len(before) - at]), len(before))
        known = min(len(now), len(before) - start)
        self._read[pod] = (life, before if known == len(now) else now)
        while len(self._read) > _PODS_REMEMBERED:
            del self._read[next(iter(self._read))]
        return known

    def _parsed(
        self, lines: Sequence[str], process: str, origin: Callable[[], datetime], known: int = 0
    ) -> Iterator[LogRecord]:
        """Records of the lines, without the first `known`, which only give process and time of those after them."""
        parser = Parser(process, origin)
        for part, told in ((lines[:known], True), (lines[known:], False)):
            for entry in entries(line.encode() for line in part):
                parser.see(entry)
                named = _ID.search(entry.head) if entry.is_json else None
                of = named[1].decode() if named else process
                process = process if process == "?" else of
                if told or entry.head in self._seen or not self._wanted.maybe(entry):
                    continue
                record = replace(parser.parse(entry), process=of)
                if self._wanted.wants(record) and self._asked_for(record):
                    yield record

    def _asked_for(self, record: LogRecord) -> bool:
        role, slash, index = record.process.partition("/")
        if not slash or record.process == "?":
            return True  # a pod without an index yet: it was selected by its role
        query = self._query
        return query.role in (None, role) and (query.index is None or index == str(query.index))

    def _remember(self, lines: Sequence[str]) -> None:
        """Remember records that the manager may have too. Raw text of two pods, or two lives of one, may be equal."""
        encoded = (part for line in lines for part in parted(line.encode()))
        self._seen.update(dict.fromkeys(one for one in encoded if TIMESTAMP.match(one) and _BOOT.search(one)))
        while len(self._seen) > max(_REMEMBERED, len(lines)):
            del self._seen[next(iter(self._seen))]

    def _tell(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._warn(text)


def _process(query: LogQuery) -> str:
    return query.role or "" if query.index is None else f"{query.role}/{query.index}"


def _has_spoken(pod: Object, previous: bool) -> bool:
    """Whether a container of the pod has run; `previous`: and has been restarted."""
    states: list[dict[str, Any]] = []
    for status, _ in container_statuses(pod):
        states += [status.get("lastState") or {}]
        states += [] if previous else [status.get("state") or {}]
    return any("terminated" in state or "running" in state for state in states)
