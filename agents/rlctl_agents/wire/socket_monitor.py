"""Diagnosis of failed connections. ZeroMQ reports them to neither end: messages do not arrive, and after some failures
it does not even reconnect. Only a socket's monitor has the events."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import zmq
from zmq.utils.monitor import recv_monitor_message

from rlctl_agents.wire.log_throttle import LogThrottle

HANDSHAKE_S = 15.0
"""Timeout of a handshake: thousands of actors may say hello to one manager at the same moment."""
ENDED_AFTER_S = 1.0
"""Seconds after which a connection that was lost and is not being made again has ended: it never will be."""
BROKEN_OFF = 3
"""Handshakes in a row that the other side breaks off before it is a fault: fewer may be the restart of a process."""
_CLOSING_S = 2.0

_CONNECTS = (
    zmq.EVENT_CONNECTED
    | zmq.EVENT_CONNECT_RETRIED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_MONITOR_STOPPED
)
_LISTENS = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_MONITOR_STOPPED

_NOT_ADMITTED = (
    "our key of class {whose} is not admitted there: another run's process listens, or the keys were made anew"
)
_NO_CURVE = "the process there does not use CURVE: it has no keys, or is none of this run"
_OTHER = "the process there does not speak our protocol"
_SILENT = f"the process there does not answer the handshake within {HANDSHAKE_S:g} s: it is stopped, or overloaded"
_SERVER_KEY = (
    "the handshake is broken off every time: most likely another key than our server.pub is in use there, because the "
    "keys were made anew or it is another run's process; no keys at all, or a proxy to nothing, look the same"
)

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Link:
    """State of the connection of a watched socket."""

    address: str
    listens: bool
    shaking_since: float | None = None  # start of the handshake under way
    lost_at: float | None = None  # connection lost and, as far as is known, not being made again


class SocketMonitor:
    """Reads the monitors of all sockets of a process in one thread; logs failures, throttled and in words.

    A monitor blocks ZeroMQ's own thread when its events are not read, so each is read, from an unbounded queue, until
    its own event says that it has stopped.

    Args:
        context: ZeroMQ context of the sockets.
        whose: key class of this process.
        clock: monotonic seconds.
    """

    refused: dict[str, int]
    """Failed connections to this process, by reason: `key`, `plain`, `server_key`, `protocol`, `broken_off`."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], whose: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.refused = {}
        self._context = context
        self._whose = whose
        self._clock = clock
        self._lock = threading.Lock()
        self._throttle = LogThrottle(clock)
        self._count = 0
        self._new: list[tuple[zmq.Socket[bytes], Link]] = []
        self._trouble: dict[str, str] = {}  # address -> why the last handshake failed
        self._broken_off: dict[str, int] = {}  # address -> handshakes in a row
        self._closing = threading.Event()
        self._read, self._write = os.pipe()
        self._thread = threading.Thread(target=self._run, name="handshakes", daemon=True)
        self._thread.start()

    def add(self, socket: zmq.Socket[bytes], address: str, *, listens: bool) -> Link:
        """Watch a socket, from any thread: before it connects, or once it is bound."""
        with self._lock:
            self._count += 1
            place = f"inproc://handshakes.{self._count}"
            socket.monitor(place, _LISTENS if listens else _CONNECTS)
            events = self._context.socket(zmq.PAIR)
            events.setsockopt(zmq.LINGER, 0)
            events.setsockopt(zmq.RCVHWM, 0)
            events.connect(place)
            link = Link(address, listens)
            self._new.append((events, link))
        os.write(self._write, b"\0")
        return link

    def ended(self, link: Link) -> bool:
        """True if ZeroMQ has given up on this socket: it will never reconnect, a new socket may."""
        lost_at = link.lost_at
        return lost_at is not None and self._clock() - lost_at >= ENDED_AFTER_S

    def trouble(self, address: str) -> str:
        """Reason why there is no connection to an address, "" while none is known."""
        return self._trouble.get(address, "")

    def refuse(self, reason: str, text: str) -> None:
        """Count and log, from any thread, a failed connection to this process."""
        with self._lock:
            self.refused[reason] = count = self.refused.get(reason, 0) + 1
            due = self._throttle.due(reason)  # not by the text: strangers could cause many lines
        if due:
            log.warning("connection refused (%s, %d so far): %s", reason, count, text)

    def close(self) -> None:
        """End the thread, once every socket that was watched has been closed. A second call does nothing."""
        if self._closing.is_set():
            return
        self._closing.set()
        os.write(self._write, b"\0")
        self._thread.join()
        os.close(self._read)
        os.close(self._write)

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._read, zmq.POLLIN)
        links: dict[zmq.Socket[bytes], Link] = {}
        until = float("inf")
        while not self._closing.is_set() or ((links or self._new) and time.monotonic() < until):
            if self._closing.is_set():
                until = min(until, time.monotonic() + _CLOSING_S)
            for ready, _ in poller.poll(100 if self._closing.is_set() else None):
                if ready == self._read:
                    os.read(self._read, 4096)
                    for events, link in self._take_new():
                        links[events] = link
                        poller.register(events, zmq.POLLIN)
                elif not self._hear(ready, links[ready]):
                    poller.unregister(ready)
                    del links[ready]
                    ready.close(0)
        for events in (*links, *(events for events, _ in self._take_new())):
            events.close(0)

    def _take_new(self) -> list[tuple[zmq.Socket[bytes], Link]]:
        with self._lock:
            new, self._new = self._new, []
        return new

    def _hear(self, events: zmq.Socket[bytes], link: Link) -> bool:
        """Handle one event; False when it was the last."""
        said = recv_monitor_message(events)
        event, value = said["event"], said["value"]
        if event == zmq.EVENT_MONITOR_STOPPED:
            return False
        if link.listens:
            self._refused(link.address, event, value)
        elif event == zmq.EVENT_CONNECTED:
            link.shaking_since, link.lost_at = self._clock(), None
        elif event == zmq.EVENT_CONNECT_RETRIED:
            link.lost_at = None
        elif event == zmq.EVENT_DISCONNECTED:
            if link.shaking_since is not None:  # the one failure that has no event of its own
                self._failed(link, _OTHER)
            link.lost_at = self._clock()
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._succeeded(link)
        elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            self._failed(link, _NOT_ADMITTED.format(whose=self._whose))
        elif event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
            self._failed(link, _NO_CURVE if value == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH else _OTHER)
        elif event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
            self._broke_off(link)
        return True

    def _broke_off(self, link: Link) -> None:
        since, link.shaking_since = link.shaking_since, None
        if since is not None and self._clock() - since >= 0.9 * HANDSHAKE_S:
            self._failed(link, _SILENT)
            return
        self._broken_off[link.address] = count = self._broken_off.get(link.address, 0) + 1
        # when one side has no keys, the side that sees it first hangs up; a known trouble is kept
        if count >= BROKEN_OFF and link.address not in self._trouble:
            self._failed(link, _SERVER_KEY)

    def _succeeded(self, link: Link) -> None:
        link.shaking_since = None
        self._broken_off.pop(link.address, None)
        if self._trouble.pop(link.address, ""):
            log.info("%s: connected at last", link.address)

    def _failed(self, link: Link, why: str) -> None:
        link.shaking_since = None
        self._trouble[link.address] = why
        with self._lock:
            due = self._throttle.due(f"{link.address} {why}")
        if due:
            log.warning("no connection to %s: %s", link.address, why)

    def _refused(self, address: str, event: int, value: int) -> None:
        if event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
            self.refuse("broken_off", f"{address}: a caller that hung up: without keys, a probe, or ended just then")
        elif value == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
            self.refuse("plain", f"{address}: a caller without CURVE: a process without keys, or none of this run")
        elif value == zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC:
            self.refuse("server_key", f"{address}: a caller that takes us for another: its server.pub is not our key")
        else:
            self.refuse("protocol", f"{address}: a caller that does not speak our protocol")
