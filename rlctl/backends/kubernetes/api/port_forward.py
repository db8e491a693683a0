"""One forwarded port: bytes between a socket of this process and the channels of a WebSocket.

The protocol of the API server: binary frames whose first byte is a channel, 0 for data and 1 for an error; the first
frame of each names the port. There is no half-close: either side's close ends it for both.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Any, Final

_BLOCK_BYTES: Final = 1 << 16
_DATA: Final = b"\x00"
_CLOSE: Final = 0x8
_BINARY: Final = 0x2


class Pipe:
    """Bridge between a socket and a WebSocket, until one side ends.

    Args:
        websocket: connected; `websocket.WebSocket` of the package websocket-client.

    Attributes:
        near: our end, a socket.
        error: message of the far side if it could not reach the port.
    """

    def __init__(self, websocket: Any) -> None:
        self._websocket = websocket
        self.near, self._far = socket.socketpair()
        self.error = ""
        self._threads = [
            threading.Thread(target=carry, name=f"forward {way}", daemon=True)
            for way, carry in (("out", self._out), ("in", self._in))
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Close both ends; both threads end."""
        self.near.close()
        self._end()
        for thread in self._threads:
            thread.join(timeout=5.0)
        self._far.close()
        with suppress(Exception):
            self._websocket.shutdown()

    def _out(self) -> None:
        with suppress(Exception):  # whatever error it is: the connection is over
            while block := self._far.recv(_BLOCK_BYTES):
                self._websocket.send_binary(_DATA + block)
        self._end()

    def _in(self) -> None:
        named: set[int] = set()  # channels that have named their port
        with suppress(Exception):
            while True:
                code, frame = self._websocket.recv_data_frame(True)
                if code == _CLOSE:
                    break
                if code != _BINARY or not frame.data:
                    continue
                channel, data = frame.data[0], frame.data[1:]
                if channel not in named:
                    named.add(channel)
                elif channel == 0:
                    self._far.sendall(data)
                else:
                    self.error += data.decode("utf-8", "replace")
                    break
        self._end()

    def _end(self) -> None:
        """Wake both threads, and the reader of our end."""
        with suppress(OSError):
            self._far.shutdown(socket.SHUT_RDWR)
        with suppress(Exception):
            self._websocket.abort()
