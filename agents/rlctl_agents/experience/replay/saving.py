"""A shard's part of the generations of a run: written while the shard serves, restored when it starts."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from rlctl_agents.checkpoint.parts import SHARD, WAY_OUT, Corrupt, PartError, StateError, name_of, remove_leftovers
from rlctl_agents.experience.replay.server import SharedShard
from rlctl_agents.types.control import Contribute, Generation, Reply
from rlctl_agents.wire.rpc.client import RemoteError

LAST_S = 5.0
"""Longest wait, in seconds, for the part that is being written when the process is asked to stop: it has ten seconds,
and draws are answered for three of them."""
GIVES_UP_S = 1.0
"""Time for a report to be given up, before the sockets are closed."""
TELL_S, TRIES = 10.0, 6
"""Timeout, in seconds, of a report of a part to the manager, and number of tries: the manager holds the generation for
minutes."""

log = logging.getLogger(__name__)


class ShardSaver:
    """Writer of a shard's parts, one at a time; an order that arrives meanwhile is taken up afterwards.

    Args:
        folder: folder of checkpoints, on the volume.
        policy, index, boot: of the shard.
        tell: reports the outcome of a part to the manager; its second argument turns False once there is no time left.
        count: records the seconds and the bytes of a part in the metrics.
    """

    def __init__(
        self,
        shared: SharedShard,
        folder: Path,
        *,
        policy: str,
        index: int,
        boot: str,
        tell: Callable[[Contribute, Callable[[], bool]], Reply],
        count: Callable[[float, int], None],
    ) -> None:
        self._shared, self._folder, self._policy, self._index = shared, folder, policy, index
        self._boot, self._tell, self._count = boot, tell, count
        self._taken = 0  # the newest order that was taken up
        self._thread: threading.Thread | None = None
        self._given_up = threading.Event()

    def obey(self, number: int, term: int) -> None:
        """Begin the part of a generation, if it is a new one and none is being written.

        Args:
            number: of the ordered generation; 0: none.
            term: of the manager that orders it.
        """
        if number <= self._taken or (self._thread is not None and self._thread.is_alive()):
            return
        self._taken = number
        self._thread = threading.Thread(target=self.write, args=(number, term), name="generations", daemon=True)
        self._thread.start()

    def write(self, number: int, term: int) -> None:
        """Write the part of a generation, and report it to the manager; a failure is logged, and reported too."""
        began, file, sha256, fault, size = time.monotonic(), "", "", "", 0
        try:
            name = name_of(self._policy, number, f"{SHARD}{self._index}")
            file, sha256 = self._shared.snapshot().write(self._folder, name)
            size = (self._folder / file).stat().st_size
        except Exception as error:  # of any kind: the manager waits for an answer
            expected = isinstance(error, (PartError, OSError, MemoryError))
            fault = (str(error) or type(error).__name__)[:1000]
            log.error("the part of generation %d was not saved: %s", number, fault, exc_info=not expected)
        seconds = time.monotonic() - began
        told = Contribute(self._boot, term, number, file, sha256, fault)
        for _ in range(TRIES):
            try:
                said = self._tell(told, lambda: not self._given_up.is_set())
                break
            except TimeoutError as error:
                log.error("the manager did not hear of the part of generation %d: %s", number, error)
            except RemoteError as error:
                log.error("the manager refuses the part of generation %d: %s", number, error)
                return
            if self._given_up.is_set():
                return
        else:
            return
        if fault:
            return
        self._count(seconds, size)
        kv = {"file": file, "bytes": size, "seconds": round(seconds, 3)}
        log.info("saved its part of generation %d%s", number, "" if said.ok else f": {said.why}", extra={"kv": kv})

    def close(self) -> None:
        """Wait for the part that is being written, and for its report, as long as there is time."""
        if self._thread is not None:
            self._thread.join(LAST_S)
            self._given_up.set()
            self._thread.join(GIVES_UP_S)


class Restored(NamedTuple):
    rows: int  # rows of the shard afterwards
    unreadable: int  # parts that generations name and that cannot be used


def restore_newest(
    shared: SharedShard, folder: Path, generations: Iterable[Generation], *, index: int, shards: int
) -> Restored:
    """Restore the newest readable parts: that of this shard, and those of removed shards that fall to it.

    Args:
        folder: folder of checkpoints.
        generations: newest first.
        index: of this shard.
        shards: number of shards now.

    Raises:
        PartError: the file system refuses to read one: it may be whole.
    """
    remove_leftovers(folder)
    unreadable = 0
    wanted = set[str]()  # this shard's part, and those of removed shards, by the newest generation
    left = set[str]()  # parts that are restored
    for generation in generations:
        shared_out = {part for part in (*generation.parts, *generation.absent) if part.startswith(SHARD)}
        if shared_out and f"{SHARD}{index}" not in shared_out:
            break  # there was no shard of this number: its earlier rows were dropped
        wanted = wanted or {part for part in shared_out if _shard_of(part) % shards == index}
        for part in sorted(wanted & generation.parts.keys() - left):
            before = shared.rows
            try:
                rows = shared.restore(folder, generation.parts[part], generation.sha256[part])
            except (Corrupt, StateError, ValueError, KeyError) as error:
                unreadable += 1
                if shared.rows > before:  # it ended midway; an older part holds the same rows again
                    left.add(part)
                    log.error("%s of generation %d was restored in part: %s", part, generation.number, error)
                    continue
                log.error("%s of generation %d cannot be used, trying an older one: %s", part, generation.number, error)
                continue
            except PartError as error:
                raise PartError(f"{error}; {WAY_OUT}") from error
            left.add(part)
            log.info("restored %s of generation %d: %d rows", part, generation.number, rows)
        if wanted and wanted <= left:
            break
    for part in sorted(wanted - left):
        log.warning("no generation holds a part of %s that can be used: its rows are filled anew", part)
    return Restored(shared.rows, unreadable)


def _shard_of(part: str) -> int:
    """Number of the shard that wrote a part; -1: none did."""
    number = part.removeprefix(SHARD)
    return int(number) if number.isdecimal() else -1
