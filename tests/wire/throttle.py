"""A slow link between two ends of a Unix socket."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def throttled(near: Path, far: Path, bytes_per_s: float) -> Iterator[None]:
    """Lead clients of `near` to `far`; everything in both directions shares so many bytes per second."""
    stop = threading.Event()
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(near))
    listening.listen(256)

    def run() -> None:
        ready, moved, began = selectors.DefaultSelector(), 0, time.monotonic()
        ready.register(listening, selectors.EVENT_READ)
        ends = [listening]
        while not stop.is_set():
            for key, _ in ready.select(0.05):
                if key.data is None:
                    one, other = listening.accept()[0], socket.socket(socket.AF_UNIX)
                    other.connect(str(far))
                    ends += [one, other]
                    ready.register(one, selectors.EVENT_READ, (one, other))
                    ready.register(other, selectors.EVENT_READ, (other, one))
                    continue
                source, sink = key.data
                try:
                    data = source.recv(1 << 16)
                    sink.sendall(data)
                except OSError:
                    data = b""
                if not data:
                    for end in key.data:
                        ready.unregister(end)
                        end.close()
                    break  # the other end may be among what is ready
                moved = moved + len(data)
                stop.wait(began + moved / bytes_per_s - time.monotonic())
        for end in ends:
            end.close()
        ready.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
