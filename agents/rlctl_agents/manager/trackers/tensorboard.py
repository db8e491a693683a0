"""Curves for TensorBoard: one writer per run, one file per life of the manager."""

from __future__ import annotations

import io
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from rlctl_agents.runtime.storage import append

log = logging.getLogger(__name__)


class CurveWriter:
    """Scalars by agent steps learned from, appended to a new file in whole records.

    Args:
        folder: results/tensorboard/; created.
        term: term of the manager, in the name of the file.
        unix: Unix time in seconds.

    Raises:
        OSError: the volume refuses.
    """

    def __init__(self, folder: Path, term: int, unix: Callable[[], float] = time.time) -> None:
        folder.mkdir(exist_ok=True)
        self._unix = unix
        name = f"events.out.tfevents.{int(unix()):010d}.{socket.gethostname()}.{os.getpid()}.{term}"
        self._file = (folder / name).open("ab", buffering=0)
        self.failure = ""
        """Why the newest points are not in the file; "" if they are."""
        self._write([Event(wall_time=unix(), file_version="brain.Event:2")])

    def add(self, steps: int, values: Mapping[str, float]) -> None:
        """Add a point to each curve; it is in the file when this returns, or `failure` says why not."""
        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in sorted(values.items())])
        self._write([Event(wall_time=self._unix(), step=steps, summary=summary)])

    def void_from(self, steps: int) -> None:
        """Hide points from these steps on: a learner went back to a generation."""
        session = SessionLog(status=SessionLog.START)
        self._write([Event(wall_time=self._unix(), step=steps, session_log=session)])

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, events: list[Event]) -> None:
        records = io.BytesIO()
        writer = RecordWriter(records)
        for event in events:
            writer.write(event.SerializeToString())
        try:
            append(self._file, records.getvalue())  # half a record would end the file for every reader
            self.failure = ""
        except OSError as error:
            if not self.failure:
                log.error("cannot write curves: %s", error)
            self.failure = f"cannot write results/tensorboard: {error.strerror}"
